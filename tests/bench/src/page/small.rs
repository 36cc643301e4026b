//! The page with three real nodes: what an operator does with it, step by step.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use drivers::testdriver::{Fault, Running, TestDriver, Times};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::controller;
use harness::stand::{Cloud, Page, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, ready};
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::host::tasks::Tasks;
use tonic::Code;

use super::browser::{Browser, DESK, NIGHT, PHONE};
use super::{checks, claims, pages};

const NODES: [&str; 3] = ["shop-1", "shop-2", "shop-3"];
/// The volumes that are made first.
const VOLUMES: usize = 6;

/// csi-cloud and three edges with a driver each.
struct World {
    stand: Stand,
    cloud: Cloud,
    page: Page,
    edges: Vec<Option<Process>>,
    drivers: Vec<(Arc<TestDriver>, Running)>,
    tasks: Tasks,
}

/// Looks at all of it.
pub(super) async fn look(pictures: &Path) -> anyhow::Result<()> {
    let mut world = World::new().await?;
    let url = world.page.url.clone();
    let stuck = world.stick().await?;
    let away = NODES.iter().position(|node| *node != stuck).context("no other node")?;
    world.leave(away).await?;
    let browser = pages::browser(world.stand.dir(), pictures, &url).await?;
    browser.look(DESK).await?;
    first_screen(&browser, &url, NODES[away]).await?;
    stuck_claim(&world, &browser, &url).await?;
    walk(&browser, &url, NODES[away]).await?;
    live(&mut world, &browser, &url, away).await?;
    checks::console(&browser).await?;
    browser.end().await?;
    world.end().await
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        stand.log("info");
        let cloud = pages::cloud(&stand, DRIVER, "").await?;
        let page = pages::page(&stand).await?;
        let mut drivers = Vec::new();
        let mut edges = Vec::new();
        for (place, node) in (1..).zip(NODES) {
            let driver = Arc::new(TestDriver::new(DRIVER, node));
            // So that no two drivers give the same id.
            driver.count_from(place * 100);
            let running = driver.serve(stand.at(&format!("{node}.sock")).as_ref())?;
            drivers.push((driver, running));
            edges.push(None);
        }
        let tasks = Tasks::default();
        let mut world = Self { stand, cloud, page, edges, drivers, tasks };
        for place in 0..NODES.len() {
            world.come(place).await?;
        }
        let front = world.front().await?;
        until("csi-cloud knows the driver", || ready(&front)).await?;
        for number in 0..VOLUMES {
            until("a volume is made", || async {
                let [name, claim] = ["pvc", "data"].map(|of| format!("{of}-{number}"));
                let answer = world.create(&name, &claim).await?;
                ensure!(answer == Code::Ok, "{answer:?}");
                Ok(())
            })
            .await?;
        }
        Ok(world)
    }

    async fn front(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.stand.cloud_front(DRIVER)).await
    }

    async fn create(&self, name: &str, claim: &str) -> anyhow::Result<Code> {
        let front = self.front().await?;
        Ok(front.send(&controller("CreateVolume"), request(name, claim), &[]).await?.code())
    }

    /// Starts the edge of a node.
    async fn come(&mut self, place: usize) -> anyhow::Result<()> {
        let node = NODES[place];
        let url = self.cloud.urls.first().context("no listener")?.clone();
        let socket = self.stand.at(&format!("{node}.sock"));
        self.edges[place] = Some(self.stand.edge(node, &url, &[(DRIVER, &socket)]).await?);
        Ok(())
    }

    /// Stops it.
    async fn leave(&mut self, place: usize) -> anyhow::Result<()> {
        self.edges[place].take().context("it is away")?.stop(STOP).await
    }

    /// Lets the create for a claim hang at some node, which is returned.
    async fn stick(&self) -> anyhow::Result<&'static str> {
        for (driver, _) in &self.drivers {
            driver.inject("CreateVolume", Fault::Hang, Times::All);
        }
        let front = self.front().await?;
        self.tasks.spawn_until_stop("stuck", async move {
            // Nobody answers it.
            drop(front.send(&controller("CreateVolume"), request("pvc-stuck", "stuck"), &[]).await);
        });
        until("the create arrives", || async {
            let has = |place: &usize| {
                let calls = self.drivers[*place].0.calls_of("CreateVolume");
                let requests = calls.iter().filter_map(|call| call.decode().ok());
                requests.into_iter().any(|of: csi::CreateVolumeRequest| of.name == "pvc-stuck")
            };
            let place = (0..NODES.len()).find(has).context("it is at no node")?;
            Ok(NODES[place])
        })
        .await
    }

    async fn end(self) -> anyhow::Result<()> {
        for (driver, _) in &self.drivers {
            driver.clear_faults();
            driver.release();
        }
        self.tasks.finish(STOP).await;
        for edge in self.edges.into_iter().flatten() {
            edge.stop(STOP).await?;
        }
        self.page.process.stop(STOP).await?;
        self.cloud.process.stop(STOP).await
    }
}

/// A create for the claim shop/NAME.
fn request(name: &str, claim: &str) -> Bytes {
    frame::frame(&claims::create(name, claim).encode_to_vec())
}

/// What is wrong is on the first screen, without scrolling, with the next step.
async fn first_screen(browser: &Browser, url: &str, away: &str) -> anyhow::Result<()> {
    browser.go(url).await?;
    let wanted = format!("node {away} has had no link to csi-cloud");
    let script = format!(
        r#"const rows = [...document.querySelectorAll(".problems li")];
        const row = rows.find((row) => row.textContent.includes("{wanted}"));
        return row && row.getBoundingClientRect().bottom < innerHeight ? row.textContent : "";"#
    );
    let row = browser.text(&script).await?;
    ensure!(row.contains("look at its power and network"), "{wanted} is not shown: {row:?}");
    Ok(())
}

/// A claim that waits is found by its name, and says what `explain` says.
async fn stuck_claim(world: &World, browser: &Browser, url: &str) -> anyhow::Result<()> {
    until("explain says why", || async {
        let verdict = claims::explain(&world.stand, "stuck").await?;
        ensure!(verdict["cause"] == "call-hangs", "{verdict}");
        Ok(())
    })
    .await?;
    claims::find(&world.stand, browser, url, "stuck").await?;
    browser.picture("claim").await
}

/// Every page is labelled, narrow enough for a phone, and can be walked by keyboard.
async fn walk(browser: &Browser, url: &str, away: &str) -> anyhow::Result<()> {
    browser.go(&format!("{url}/node/{away}")).await?;
    let volume = "return [...document.querySelectorAll('main a')].map((a) => a.pathname)\
                  .find((path) => path.startsWith('/volume/'))";
    let volume = browser.text(volume).await.context("the node has no volume")?;
    let node = format!("/node/{away}");
    let driver = format!("/driver/{DRIVER}");
    for (page, picture) in [
        ("/", "overview-3"),
        ("/wrong", ""),
        ("/nodes", "nodes-3"),
        (&node, "node"),
        (&volume, "volume"),
        ("/claim/shop/stuck", ""),
        (&driver, "driver"),
        ("/volumes", ""),
        ("/calls", "calls"),
        ("/certificates", "certificates"),
        ("/find?q=pvc", "find"),
    ] {
        browser.look(DESK).await?;
        browser.go(&format!("{url}{page}")).await?;
        checks::labels(browser, page).await?;
        checks::keyboard(browser, page).await?;
        checks::skip(browser).await?;
        browser.run("document.activeElement.blur(); scrollTo(0, 0);").await?;
        for (look, word) in [(DESK, "light"), (NIGHT, "dark"), (PHONE, "phone")] {
            browser.look(look).await?;
            if !picture.is_empty() {
                browser.picture(&format!("{picture}-{word}")).await?;
            }
        }
        checks::width(browser, page).await?;
    }
    browser.look(DESK).await
}

/// A node that comes back is shown without loading the page anew.
async fn live(world: &mut World, browser: &Browser, url: &str, place: usize) -> anyhow::Result<()> {
    browser.go(url).await?;
    until("the page is live", || async {
        let live = browser.text("return document.getElementById('live').textContent").await?;
        ensure!(live == "live", "{live}");
        Ok(())
    })
    .await?;
    browser.run("window.untouched = true").await?;
    world.come(place).await?;
    let node = NODES[place];
    let script = format!(
        r##"const svg = document.querySelector("svg[data-nodes]");
        const at = svg.dataset.nodes.split(" ").indexOf("{node}");
        return {{
          square: svg.children[at].getAttribute("class"),
          away: [...document.querySelectorAll("#counts li.away")].length,
          wrong: document.getElementById("wrong").textContent.includes("node {node} has had"),
          untouched: window.untouched === true,
          news: document.getElementById("news").textContent,
        }};"##
    );
    let begun = tokio::time::Instant::now();
    let seen = until("the page shows that the node is back", || async {
        let seen = browser.run(&script).await?;
        let is_back = seen["square"] == "linked" && seen["away"] == 0 && seen["wrong"] == false;
        ensure!(is_back, "{seen}");
        Ok(seen)
    })
    .await?;
    println!("a node that is back is shown after {:.1?}", begun.elapsed());
    ensure!(begun.elapsed() < START, "it took {:?}", begun.elapsed());
    ensure!(seen["untouched"] == true, "the page was loaded anew");
    let news = seen["news"].as_str().unwrap_or_default();
    ensure!(news.contains("0 away"), "a screen reader is told {news:?}");
    Ok(())
}
