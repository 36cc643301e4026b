//! `make documents`: the procedures of the documents, read out of their pages and run in order, as
//! a reader does who has a plain Kubernetes with three machines, Helm and kubectl.
//!
//! The machines are a stand's, which has nothing of ours but images. Stand-ins are there for a
//! registry (the images have its names already), for Kubernetes' example driver (hostdir under its
//! name), and for the load balancer and the name service of a site.

mod page;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use proto::host::publish::{Existing, publish};
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use self::page::{Block, Use, blocks, filled};
use crate::stand::Cluster;
use crate::stand::layout::{Layout, Tool};
use crate::stand::objects::within;

/// The pages, in the order in which one installation meets them, and the words that a reader
/// replaces there.
const PAGES: [(&str, &[(&str, &str)]); 5] = [
    ("docs/start/install.md", &[("label node node-1", "label node node-1 node-2")]),
    ("docs/how-to/join.md", &[("node-1", "node-2")]),
    ("docs/how-to/backup-restore.md", &[("DRIVER", DRIVER)]),
    ("docs/how-to/upgrade.md", &[("VERSION", VERSION), ("REVISION", "1")]),
    (
        "docs/how-to/remove-node.md",
        &[("NODE", "node-2"), ("DRIVER", DRIVER), ("--forget 12", FORGOTTEN)],
    ),
];
/// Procedures that are not followed here, and who holds them.
const ELSEWHERE: [(&str, &str); 4] = [
    ("docs/how-to/kubeedge.md", "the row `kubeedge-page` of make e2e"),
    ("docs/how-to/systemd.md", "make machines"),
    ("docs/how-to/high-availability.md", "make e2e DEPLOYED=ha, by the chart's values of the page"),
    ("docs/how-to/add-driver.md", "make e2e DEPLOYED=helm, whose driver is added by such values"),
];
/// The chart's example driver.
const DRIVER: &str = "hostpath.csi.k8s.io";
/// In place of the page's number: the trial's pod may have come to either node.
const FORGOTTEN: &str = "--forget $(kubectl -n edge-csi exec csi-cloud-0 -- \
     csi-cloud volumes --node node-2 --all -o json | jq length)";
/// The version that the pages install.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a block may take.
const LONGEST: Duration = Duration::from_secs(400);
/// How long until a block shows what the page says.
const SHOWN: Duration = Duration::from_secs(120);
/// What is shown when a block fails.
const SITUATION: &str = "kubectl get pods,pvc -A -o wide || true
kubectl get events -A --sort-by=.lastTimestamp | tail -n 40 || true
kubectl -n edge-csi exec csi-cloud-0 -- csi-cloud nodes || true";

/// Follows the procedures of the documents on a whole Kubernetes.
#[derive(clap::Args)]
pub struct Args {}

impl Args {
    /// As for `make e2e`.
    ///
    /// # Errors
    /// Namespaces are not allowed here.
    pub fn enter(&self) -> anyhow::Result<()> {
        Layout::of(Some(Tool::Pages)).enter()
    }
}

/// Runs every block of the pages on a stand of its own.
///
/// # Errors
/// A block failed, or the stand does not come up or left something behind.
pub async fn main(_: Args) -> anyhow::Result<()> {
    let cluster = Cluster::of(Layout::of(Some(Tool::Pages))).await?;
    let followed = tokio::select! {
        followed = all(&cluster) => followed,
        stopped = proto::host::tasks::signal() => {
            stopped?;
            Err(anyhow!("stopped"))
        }
    };
    if followed.is_err() {
        eprintln!("{}", cluster.log_tails());
    }
    cluster.down().await?;
    followed
}

async fn all(cluster: &Cluster) -> anyhow::Result<()> {
    let reader = Reader::new(cluster).await?;
    for (page, words) in PAGES {
        if let Err(error) = reader.follow(page, words).await {
            let (_, said) = reader.run(SITUATION).await?;
            return Err(error.context(format!("Kubernetes says:\n{said}")));
        }
    }
    for (page, by) in ELSEWHERE {
        println!("{page}: followed by {by}");
    }
    Ok(())
}

/// Somebody who follows a page.
struct Reader<'a> {
    cluster: &'a Cluster,
    /// Where the commands are run, beside the packed chart.
    dir: PathBuf,
    /// Where `helm` and our programs are found.
    path: String,
}

impl<'a> Reader<'a> {
    async fn new(cluster: &'a Cluster) -> anyhow::Result<Self> {
        let ground = &cluster.ground;
        let dir = ground.dir().join("release");
        std::fs::create_dir_all(&dir)?;
        let helm = ground.tool("helm");
        ensure!(helm.exists(), "helm is not built; `make documents` builds it");
        let ours = ground.program("csi-cloud");
        let dirs = [&helm, &ours].map(|program| program.parent().map(Path::display));
        let dirs: Vec<_> = dirs.iter().flatten().map(ToString::to_string).collect();
        let path = format!("{}:{}", dirs.join(":"), std::env::var("PATH")?);
        let reader = Self { cluster, dir, path };

        let chart = ground.checkout().join("deploy/helm/edge-csi");
        reader.succeed(&format!("helm package {}", chart.display())).await?;
        Ok(reader)
    }

    async fn follow(&self, page: &str, words: &[(&str, &str)]) -> anyhow::Result<()> {
        for block in blocks(&self.cluster.ground.source(page)?)? {
            let at = format!("{page}:{}", block.line);
            let begun = Instant::now();
            let outcome = self.step(&block, words).await.with_context(|| at.clone());
            let seconds = begun.elapsed().as_secs_f64();
            match (&outcome, &block.used) {
                (_, Use::NotRun(why)) => println!("{at:44} {:>7}  not run: {why}", "-"),
                (Ok(()), Use::File(name)) => println!("{at:44} {seconds:7.1}  written: {name}"),
                (Ok(()), _) => println!("{at:44} {seconds:7.1}  ok"),
                (Err(_), _) => println!("{at:44} {seconds:7.1}  FAILED"),
            }
            outcome?;
        }
        Ok(())
    }

    async fn step(&self, block: &Block, words: &[(&str, &str)]) -> anyhow::Result<()> {
        for text in &block.before {
            self.succeed(&filled(text, words)).await?;
        }

        let text = filled(&block.text, words);
        match &block.used {
            Use::NotRun(_) => Ok(()),
            Use::File(name) => {
                publish(&self.dir.join(name), text.as_bytes(), 0o644, Existing::Replace)?;
                Ok(())
            }
            Use::Run => self.succeed(&text).await.map(drop),
            Use::Until(shown) => {
                let shown: Vec<_> = shown.iter().map(|word| filled(word, words)).collect();
                self.until(&text, &shown).await
            }
        }
    }

    /// Runs a block until a line of its output has all of these words.
    async fn until(&self, text: &str, words: &[String]) -> anyhow::Result<()> {
        let has = |line: &str| words.iter().all(|word| line.contains(word.as_str()));

        within(&format!("a line with {words:?}"), SHOWN, || async {
            let said = self.succeed(text).await?;
            ensure!(said.lines().any(has), "{said}");
            Ok(())
        })
        .await
    }

    async fn succeed(&self, text: &str) -> anyhow::Result<String> {
        let (succeeded, said) = self.run(text).await?;
        ensure!(succeeded, "it failed:\n{text}{said}");
        Ok(said)
    }

    /// Runs a block as a person pastes it. Returns whether it succeeded, and all that it said.
    async fn run(&self, text: &str) -> anyhow::Result<(bool, String)> {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", text]).current_dir(&self.dir);
        command.env("KUBECONFIG", &self.cluster.control.kubeconfig).env("PATH", &self.path);
        command.env("HOME", &self.dir).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(LONGEST, command.output()).await;
        let output = output.with_context(|| format!("it does not end:\n{text}"))?;
        let output = output.context("`bash` cannot be started")?;
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        Ok((output.status.success(), said.concat()))
    }
}
