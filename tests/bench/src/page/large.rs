//! The page with thousands of light edges: how fast the first screen is, and what open pages cost.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::controller;
use harness::stand::{Cloud, Stand};
use harness::wait::{STOP, until};
use prost::Message;
use proto::control::health::{Health, HealthState};
use proto::csi;
use proto::csi::frame::frame;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::browser::{Browser, DESK, NIGHT, PHONE};
use super::checks::number;
use super::watchers::Watchers;
use super::{checks, claims, pages};
use crate::scale::edges::{Fleet, node_name};
use crate::scale::kind::{DRIVER, Kind, SEGMENT};
use crate::usage;

/// How long all edges may take to link.
const LINKING: Duration = Duration::from_secs(300);
/// The first screen is there within this time.
const FIRST_MS: f64 = 300.0;
/// How often it is loaded.
const LOADS: usize = 7;
/// Pages that are open at the same time.
const PAGES: usize = 100;
/// What they may cost, in parts of a core.
const SHARE: f64 = 0.05;
/// How long that is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// How often some edges come and go meanwhile.
const FLAPPING: Duration = Duration::from_millis(2500);
/// Nodes of a zone.
const ZONE: usize = 250;

/// The edges, by what is wrong with them.
struct Edges {
    /// All is well with them.
    good: Vec<Fleet>,
    /// They come and go.
    flapping: Fleet,
}

/// Looks at all of it.
pub(super) async fn look(nodes: usize, pictures: &Path) -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    stand.log("warn");
    // The last ten may not have the driver, so they are set apart.
    let apart: Vec<_> = (0..10).map(|back| node_name(nodes - 1 - back)).collect();
    let config = format!("[driver.\"{DRIVER}\"]\nnodes = [{}]\n", allowed(&apart));
    let cloud = pages::cloud(&stand, DRIVER, &config).await?;
    let mut edges = link(&stand, &cloud, nodes).await?;
    let page = pages::page(&stand).await?;
    let url = &*page.url;
    let browser = pages::browser(stand.dir(), pictures, url).await?;
    remove(&stand, nodes).await?;
    first_screen(&browser, url).await?;
    show(&browser, url).await?;
    stuck(&stand, &browser, url, &node_name(nodes - 60)).await?;
    live(&browser, url, &mut edges, &node_name(nodes - 15)).await?;
    browser.go("about:blank").await?;
    checks::console(&browser).await?;
    browser.end().await?;
    cost(&stand, [&cloud.process, &page.process], url, &mut edges).await?;
    for fleet in edges.good.iter_mut().chain([&mut edges.flapping]) {
        fleet.leave().await;
    }
    page.process.stop(STOP).await?;
    cloud.process.stop(STOP).await
}

/// Patterns for all nodes but these, whose names differ in their last digit alone.
fn allowed(apart: &[String]) -> String {
    let ten = apart.first().and_then(|name| name.get("edge-".len()..)?.get(..4));
    let digits: Vec<char> = ten.unwrap_or_default().chars().collect();
    let mut patterns = Vec::new();
    for (place, digit) in digits.iter().enumerate() {
        let before: String = digits.iter().take(place).collect();
        patterns.push(format!("\"edge-{before}[!{digit}]*\""));
    }
    patterns.join(", ")
}

/// Links all edges, and then lets some leave for good.
async fn link(stand: &Stand, cloud: &Cloud, nodes: usize) -> anyhow::Result<Edges> {
    let url = cloud.urls.first().context("no listener")?;
    let pki = stand.pki();
    let fleet = |kind| Fleet::of(Path::new(&pki), std::slice::from_ref(url), kind);
    let kind = |from: usize, to: usize| Kind {
        numbers: from..to,
        days: 30,
        zone: Some(format!("zone-{:02}", from / ZONE)),
        ..Kind::default()
    };
    let [away, down, ending, flapping] = [90, 50, 30, 15].map(|back| nodes - back);
    let mut good = Vec::new();
    for from in (0..away).step_by(ZONE) {
        good.push(fleet(kind(from, away.min(from + ZONE)))?);
    }
    let mut gone = fleet(kind(away, down))?;
    let why = "the socket /run/driver.sock does not answer".into();
    let health = Health { state: HealthState::Failing, seconds: 400, why };
    good.push(fleet(Kind { health: Some(health), ..kind(down, ending) })?);
    good.push(fleet(Kind { days: 2, ..kind(ending, flapping) })?);
    let flapping_kind = kind(flapping, nodes - 10);
    good.push(fleet(kind(nodes - 10, nodes))?);
    let flapping = fleet(flapping_kind)?;
    let begun = Instant::now();
    for fleet in good.iter().chain([&gone, &flapping]) {
        fleet.dial();
        fleet.all_linked(LINKING).await?;
    }
    println!("{nodes} edges linked in {:.1?}", begun.elapsed());
    gone.leave().await;
    Ok(Edges { good, flapping })
}

/// Removes two nodes for good.
async fn remove(stand: &Stand, nodes: usize) -> anyhow::Result<()> {
    let admin = stand.at("cloud/_admin.sock");
    for back in [89, 88] {
        let node = node_name(nodes - back);
        stand.run("csi-cloud", &["node", "remove", &node, "--yes", "--admin", &admin]).await?;
    }
    Ok(())
}

/// How long the first screen takes, here and in the browser.
async fn first_screen(browser: &Browser, url: &str) -> anyhow::Result<()> {
    browser.look(DESK).await?;
    let mut painted = Vec::new();
    let mut made = Vec::new();
    let mut answered = Vec::new();
    let script = r#"
        const navigation = performance.getEntriesByType("navigation")[0];
        const paint = performance.getEntriesByName("first-contentful-paint")[0];
        return { paint: paint ? paint.startTime : null, answered: navigation.responseEnd,
          made: navigation.serverTiming[0].duration };"#;
    for _ in 0..LOADS {
        browser.go(url).await?;
        let seen = until("the first screen is painted", || async {
            let seen = browser.run(script).await?;
            ensure!(seen["paint"].is_number(), "{seen}");
            Ok(seen)
        })
        .await?;
        painted.push(number(&seen["paint"], "the paint")?);
        made.push(number(&seen["made"], "the server's time")?);
        answered.push(number(&seen["answered"], "the answer")?);
    }
    let [made, answered, painted] = [made, answered, painted].map(median);
    println!(
        "first screen: made in {made:.1} ms, read after {answered:.1}, painted after {painted:.1}"
    );
    ensure!(painted <= FIRST_MS, "the first screen is painted after {painted:.0} ms");
    ensure!(made <= FIRST_MS, "the first screen is made in {made:.0} ms");
    Ok(())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// What is wrong is on the first screen; pictures of it, also by groups.
async fn show(browser: &Browser, url: &str) -> anyhow::Result<()> {
    let rows = browser.text(
        "return [...document.querySelectorAll('.problems li')].filter((row) => \
         row.getBoundingClientRect().bottom < innerHeight).map((row) => row.textContent).join('|')",
    );
    let rows = rows.await?;
    for wanted in ["nodes have no link to csi-cloud", "is down at 20 nodes", "are set apart"] {
        ensure!(rows.contains(wanted), "{wanted:?} is not on the first screen: {rows}");
    }
    for (path, name) in [
        ("/", "overview"),
        ("/?by=key:topology.scale.example%252Fzone", "zones"),
        ("/nodes?state=away", "nodes"),
    ] {
        browser.look(DESK).await?;
        browser.go(&format!("{url}{path}")).await?;
        checks::labels(browser, path).await?;
        for (look, word) in [(DESK, "light"), (NIGHT, "dark"), (PHONE, "phone")] {
            browser.look(look).await?;
            browser.picture(&format!("{name}-5000-{word}")).await?;
        }
        checks::width(browser, path).await?;
    }
    Ok(())
}

/// A claim whose create was refused, as its node is away, is found by its name. No intent is left.
async fn stuck(stand: &Stand, browser: &Browser, url: &str, away: &str) -> anyhow::Result<()> {
    let segments = [(SEGMENT.to_owned(), away.to_owned())].into();
    let requisite = vec![csi::Topology { segments }];
    let request = csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            preferred: requisite.clone(),
            requisite,
        }),
        ..claims::create("pvc-stuck", "stuck")
    };
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    let path = controller("CreateVolume");
    let answer = front.send(&path, frame(&request.encode_to_vec()), &[]).await?;
    let code = answer.code();
    ensure!(code == Code::Unavailable, "a create at a node that is away was answered {code:?}");
    browser.look(DESK).await?;
    let verdict = claims::find(stand, browser, url, "stuck").await?;
    let text = verdict["text"].as_str().unwrap_or_default();
    ensure!(text.contains("UNAVAILABLE") && text.contains(away), "{verdict}");
    Ok(())
}

/// A node that leaves is shown without loading the page anew.
async fn live(browser: &Browser, url: &str, edges: &mut Edges, node: &str) -> anyhow::Result<()> {
    browser.go(url).await?;
    browser.run("window.untouched = true").await?;
    edges.flapping.leave().await;
    let begun = Instant::now();
    let script = format!(
        r#"for (const svg of document.querySelectorAll("svg[data-nodes]")) {{
          const at = svg.dataset.nodes.split(" ").indexOf("{node}");
          if (at >= 0) return [svg.children[at].getAttribute("class"), window.untouched === true];
        }}"#
    );
    until("the page shows that a node is away", || async {
        let seen = browser.run(&script).await?;
        ensure!(seen == serde_json::json!(["away", true]), "{seen}");
        Ok(())
    })
    .await?;
    println!("a node that left is shown after {:.1?}", begun.elapsed());
    edges.flapping.dial();
    edges.flapping.all_linked(LINKING).await
}

/// What open pages cost while edges come and go.
async fn cost(
    stand: &Stand,
    programs: [&Process; 2],
    url: &str,
    edges: &mut Edges,
) -> anyhow::Result<()> {
    let mut pids = Vec::new();
    for program in programs {
        pids.push(program.pid().context("csi-cloud or csi-page has ended")?);
    }
    let without = share(&pids, edges).await?;
    let watchers = Watchers::open(Path::new(&stand.pki()), url, PAGES).await?;
    let before = watchers.read();
    let with = share(&pids, edges).await?;
    let events = watchers.read() - before;
    watchers.close().await;
    let more = (with - without).max(0.0);
    println!(
        "{PAGES} open pages: {:.1} % of a core beside {:.1} % without them; {events} events",
        more * 100.0,
        without * 100.0
    );
    ensure!(events >= PAGES * 5, "the pages got {events} events only");
    ensure!(more <= SHARE, "{PAGES} open pages cost {:.1} % of a core", more * 100.0);
    Ok(())
}

/// The part of a core that csi-cloud and csi-page use while some edges come and go.
async fn share(pids: &[u32], edges: &mut Edges) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let before = used(pids)?;
    while begun.elapsed() < WATCHED {
        edges.flapping.leave().await;
        sleep(FLAPPING).await;
        edges.flapping.dial();
        edges.flapping.all_linked(LINKING).await?;
        sleep(FLAPPING).await;
    }
    let used = used(pids)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// The CPU time of some programs.
fn used(pids: &[u32]) -> anyhow::Result<Duration> {
    pids.iter().map(|pid| usage::cpu(*pid)).sum()
}
