//! The dashboard and the alerts against the metrics of a csi-cloud that has worked for a while.

use super::*;
use crate::waiting::secrets::metrics;

/// A metric with conditions on its labels, as a query names it.
#[derive(Clone, Debug)]
struct Selector {
    metric: String,
    /// Label, operator and value.
    conditions: Vec<(String, String, String)>,
}

/// The selectors of a query.
fn selectors(query: &str) -> anyhow::Result<Vec<Selector>> {
    let mut selectors = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find("edge_csi_") {
        rest = &rest[start..];
        let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let (metric, after) = rest.split_at(end.unwrap_or(rest.len()));
        let within = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let conditions = within.map(|(within, _)| within.split(',').map(condition).collect());
        let conditions = conditions.unwrap_or_else(|| Ok(Vec::new()))?;
        selectors.push(Selector { metric: metric.to_owned(), conditions });
        rest = after;
    }
    Ok(selectors)
}

fn condition(text: &str) -> anyhow::Result<(String, String, String)> {
    let operator = text.find(['=', '!']).with_context(|| format!("{text} has no operator"))?;
    let value = text.find('"').with_context(|| format!("{text} has no value"))?;
    let label = text[..operator].trim();
    Ok((label.into(), text[operator..value].into(), text[value..].trim_matches('"').into()))
}

impl Selector {
    /// Whether a line of the metrics is one of its series.
    fn selects(&self, line: &str) -> bool {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
        let labels = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let labels = labels.map(|(labels, _)| labels).unwrap_or_default();
        let labels: BTreeMap<_, _> =
            labels.split(',').filter_map(|of| of.split_once('=')).collect();
        let holds = |(label, operator, value): &(String, String, String)| {
            let Some(found) = labels.get(label.as_str()) else { return false };
            let found = found.trim_matches('"');
            match operator.as_str() {
                "=" => found == value,
                "!=" => found != value,
                // Grafana's variable stands for any value.
                _ => value == "$driver" || value.split('|').any(|one| one == found),
            }
        };
        name == self.metric && self.conditions.iter().all(holds)
    }
}

/// The queries of the dashboard, with their legends.
fn targets() -> anyhow::Result<Vec<Value>> {
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/helm/edge-csi/files/dashboard.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(dashboard)?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    Ok(panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten().cloned().collect())
}

/// Whether each metric of a query is within the parentheses of an aggregation.
fn is_aggregated(query: &str) -> bool {
    let mut metrics = query.match_indices("edge_csi_");
    metrics.all(|(at, _)| open_parentheses(&query[..at]).into_iter().any(is_aggregation))
}

/// The text before each parenthesis that is open at the end.
fn open_parentheses(query: &str) -> Vec<&str> {
    let mut open = Vec::new();
    for (at, c) in query.char_indices() {
        match c {
            '(' => open.push(&query[..at]),
            ')' => {
                open.pop();
            }
            _ => {}
        }
    }
    open
}

/// Whether a text ends with `max`, or with `max by (driver) `.
fn is_aggregation(before: &str) -> bool {
    let before = before.trim_end();
    let labels = before.strip_suffix(')').and_then(|labels| labels.rsplit_once(" by ("));
    let name = labels.map_or(before, |(name, _)| name);
    ["sum", "max", "min"].iter().any(|aggregation| name.ends_with(aggregation))
}

/// Of several csi-clouds, each has its own series of all metrics. `tests/go/manifests` has the
/// values of such an installation.
#[test]
fn every_query_of_the_dashboard_is_about_all_csi_clouds_or_shows_each() -> anyhow::Result<()> {
    for target in targets()? {
        let query = target["expr"].as_str().context("no query")?;
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        assert!(legend.contains("{{instance}}") || is_aggregated(query), "{query}");
    }
    assert!(is_aggregated("max by (driver) (edge_csi_x{a=\"b\"}) - sum(rate(edge_csi_y[5m]))"));
    assert!(!is_aggregated("max(edge_csi_x) - edge_csi_y"));
    assert!(!is_aggregated("rate(edge_csi_y[5m])"));
    Ok(())
}

#[tokio::test]
async fn every_query_of_the_dashboard_has_data() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.published(NODE, true).await?;
    let front = site.world.front().await?;
    let made = created(&front.call(&controller("CreateVolume"), &create_for("u-1")).await?)?;
    // One that is refused.
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: made.volume_id.clone(),
        ..Default::default()
    };
    front.call(&controller("ControllerExpandVolume"), &expand.encode_to_vec()).await?;
    let text = String::from_utf8(metrics(&site.world).await?)?;
    let targets = targets()?;
    let queries = targets.iter().filter_map(|target| target["expr"].as_str());
    let selectors: Vec<_> = queries.map(selectors).collect::<anyhow::Result<_>>()?;
    let selectors = selectors.concat();
    assert!(selectors.len() > 30, "{selectors:?}");
    for selector in selectors {
        let found = text.lines().any(|line| selector.selects(line));
        assert!(found, "{selector:?} selects nothing of {text}");
    }
    site.stop().await
}

#[test]
fn a_selector_asks_for_name_and_labels() {
    let query =
        "sum(rate(edge_csi_calls_total{driver=~\"$driver\", rpc=~\"A|B\"}[5m])) - edge_csi_x";
    let [calls, plain] = selectors(query).unwrap().try_into().unwrap();
    assert!(calls.selects("edge_csi_calls_total{rpc=\"B\",driver=\"d\"} 1"));
    assert!(!calls.selects("edge_csi_calls_total{rpc=\"C\",driver=\"d\"} 1"));
    assert!(!calls.selects("edge_csi_calls_total{rpc=\"B\"} 1"));
    assert!(plain.selects("edge_csi_x 1") && !plain.selects("edge_csi_xy 1"));
    let not = selectors("edge_csi_x{state!=\"up\"}").unwrap();
    assert!(not[0].selects("edge_csi_x{state=\"gone\"} 0"));
    assert!(!not[0].selects("edge_csi_x{state=\"up\"} 0"));
}
