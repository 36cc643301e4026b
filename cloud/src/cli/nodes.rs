//! `csi-cloud nodes`.

use proto::names::DriverName;
use tokio::time::Duration;

use crate::admin::driver_health::HealthView;
use crate::admin::nodes::{NodeView, NodesQuery, PATH, SetApartView};
use crate::cli::cells::{age, health, joined, optional, since, until};
use crate::cli::output::pages;
use crate::config::show_arguments::Show;

const HEADERS: &[&str] = &[
    "NAME",
    "STATE",
    "FOR",
    "TRANSPORT",
    "ADDRESS",
    "VERSION",
    "CERT",
    "VOLUMES",
    "NOT-TAKEN",
    "DRIVERS",
    "AGE",
    "NOT UP",
    "SET APART",
];

/// Prints the nodes.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(show: &Show) -> anyhow::Result<()> {
    pages(show, PATH, &NodesQuery::default(), HEADERS, row).await
}

fn row(node: &NodeView) -> Vec<String> {
    let in_state = match node.removed_ms {
        Some(removed) => Some(since(removed)),
        None => node.linked_s.or(node.away_s).map(|s| age(Duration::from_secs(s))),
    };
    vec![
        node.name.to_string(),
        node.state.clone(),
        in_state.unwrap_or_default(),
        optional(node.transport.as_ref()),
        optional(node.address.as_ref()),
        optional(node.version.as_ref()),
        node.not_after_ms.map(until).unwrap_or_default(),
        node.volumes.to_string(),
        node.not_taken.to_string(),
        joined(&[node.drivers.clone(), node.unserved.clone()].concat()),
        since(node.since_ms),
        node.health.iter().filter_map(not_up).collect::<Vec<_>>().join("; "),
        node.set_apart.iter().map(set_apart).collect::<Vec<_>>().join("; "),
    ]
}

fn not_up((driver, health): (&DriverName, &HealthView)) -> Option<String> {
    (!health.is_up()).then(|| format!("{driver}: {}", self::health(health)))
}

fn set_apart(apart: &SetApartView) -> String {
    match &apart.driver {
        Some(driver) => format!("{driver}: {}", apart.why),
        None => apart.why.clone(),
    }
}
