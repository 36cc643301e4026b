//! `csi-cloud doctor`: what keeps an installation from working, and what to do.
//!
//! What the configuration alone shows is in `installation`; it is used without a csi-cloud too.

mod certificates;
mod contradicted;
pub mod installation;
mod sockets;
mod udp_buffer;
mod unconfirmed;
mod versions;

use proto::admin::command::{Answer, Command, Refusal};
use std::path::Path;
use std::time::SystemTime;

use anyhow::ensure;
use clap::Args;
use proto::admin::command_line::Printer;
use proto::admin::doctor::{Finding, Verdict, show};
use proto::link::endpoint::Transport;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::doctor::installation::Installation;
use crate::error::NotLeading;

/// Looks at an installation. `cli::doctor` asks, since it goes on without an answer.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct Examine {}

impl Command<AdminState> for Examine {
    const NAME: &'static str = "";
    const PATH: &'static str = "/doctor";
    const READS: bool = true;
    const IS_SLOW: bool = true;
    type Answer = Findings;

    async fn carry_out(self, admin: &AdminState) -> Result<Findings, Refusal> {
        Ok(Findings(admin.doctor().await))
    }
}

/// Nodes whose kubelet is KubeEdge's: rights, policies, CSINodes, the node's front, expansion.
///
/// It reads only. The exit code is 0 if all is well, and 1 if there is a problem or something
/// cannot be seen. Its rights are those of the chart with `kubeedge: true`.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct ExamineKubeEdge {}

impl Command<AdminState> for ExamineKubeEdge {
    const NAME: &'static str = "doctor kubeedge";
    const PATH: &'static str = "/doctor/kubeedge";
    const READS: bool = true;
    const IS_SLOW: bool = true;
    const NEEDS_LINKS: bool = true;
    type Answer = Findings;

    async fn carry_out(self, admin: &AdminState) -> Result<Findings, Refusal> {
        match &admin.doctor {
            Some(doctor) => Ok(Findings(doctor.kubeedge().await)),
            None => Err(Refusal::conflict(
                "this csi-cloud knows no Kubernetes, so it cannot look there; set [kubernetes] in \
                 its configuration (--kubernetes)",
            )),
        }
    }
}

/// Findings, of which nothing may be unknown: a cluster is ready for the walk only if all of it can
/// be seen.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Findings(pub Vec<Finding>);

impl Answer for Findings {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        show::report(&mut to.out, to.output, &self.0)?;
        let unseen = self.0.iter().filter(|of| of.verdict == Verdict::Unknown).count();
        ensure!(unseen == 0, "not to be seen: {unseen}");
        Ok(())
    }
}

/// Why a csi-cloud that does not lead says nothing of links, and whom to ask.
struct Elsewhere {
    why: String,
    advice: String,
}

impl AdminState {
    /// Looks at all that csi-cloud needs. One that does not lead leaves the links out.
    pub(super) async fn doctor(&self) -> Vec<Finding> {
        let version = env!("CARGO_PKG_VERSION");
        let found = format!("version {version} answers");
        let mut findings = vec![Finding::ok("csi-cloud", "admin socket", found)];
        let elsewhere = self.elsewhere();
        let elsewhere = elsewhere.as_ref();
        if let Some(installation) = &self.installation {
            findings.extend(installation.look(SystemTime::now()).await);
            findings.extend(self.served(installation, elsewhere));
        }
        findings.push(self.open_store());
        findings.push(match elsewhere {
            Some(Elsewhere { why, advice }) => versions::not_seen(why, advice),
            None => versions::finding(&self.versions(), version),
        });
        if elsewhere.is_none() {
            findings.extend(self.shared_certificates());
        }
        findings.extend(self.unconfirmed().await);
        findings.extend(self.contradicted().await);
        match &self.doctor {
            Some(doctor) => findings.extend(doctor.installation().await),
            None => {
                if let Some(installation) = &self.installation {
                    findings.push(installation.clock(SystemTime::now()).await);
                }
                let found = "csi-cloud is not told of any ([kubernetes])";
                findings.push(Finding::ok("api-server", "Kubernetes", found));
            }
        }
        findings
    }

    /// Where the links are, unless they are here.
    fn elsewhere(&self) -> Option<Elsewhere> {
        let (why, advice) = match self.links.leading().check() {
            Ok(()) => return None,
            Err(NotLeading::Follows(leader)) => (
                format!("this csi-cloud follows {leader}, which has the links of all nodes"),
                format!("ask {leader} (`csi-cloud replicas` shows who leads)"),
            ),
            Err(NotLeading::NoLeader | NotLeading::NoEtcd(_) | NotLeading::Deposed) => (
                "this csi-cloud does not lead, so no node has a link to it".to_owned(),
                "`csi-cloud replicas` shows who leads; ask there".to_owned(),
            ),
        };
        Some(Elsewhere { why, advice })
    }

    /// The sockets and listeners that a running csi-cloud has.
    fn served(&self, installation: &Installation, elsewhere: Option<&Elsewhere>) -> Vec<Finding> {
        let linked = self.links.by_transport();
        let links = |transport: Transport| linked.get(transport.scheme()).copied().unwrap_or(0);
        let listening = installation.listen.iter().map(|endpoint| {
            let transport = endpoint.transport;
            let by = transport.scheme();
            let found = match elsewhere {
                Some(Elsewhere { why, .. }) => format!("it listens; {why}"),
                None => format!("it listens; links by {by}: {}", links(transport)),
            };
            Finding::ok("listen", endpoint.to_string(), found)
        });
        let takes_udp = installation.listen.iter().any(|endpoint| !endpoint.transport.is_tcp());
        let buffer = takes_udp.then(|| {
            let over_udp = Transport::ALL.into_iter().filter(|transport| !transport.is_tcp());
            let here = elsewhere.is_none().then(|| over_udp.map(links).sum());
            udp_buffer::finding(Path::new(udp_buffer::MOST), here)
        });
        listening.chain(buffer).chain(sockets::findings(installation)).collect()
    }

    fn open_store(&self) -> Finding {
        const CHECK: &str = "store-open";
        if let Some(lack) = self.store.may_lack_creates() {
            let found = format!("nothing is created, and no lease granted: {lack}");
            let next = "docs/how-to/backup-restore.md, \"Restore\"; then what the text names";
            return Finding::fault(CHECK, "store", found, next);
        }
        if self.store.is_open() {
            let found = format!("it is open; changes that wait: {}", self.store.queued());
            return Finding::ok(CHECK, "store", found);
        }
        Finding::fault(
            CHECK,
            "store",
            "it is closed after a commit that failed, so whatever must be kept is refused",
            "look at its disk (full, read-only, failing), and start csi-cloud again",
        )
    }

    /// The linked nodes, with their versions.
    fn versions(&self) -> Vec<(String, String)> {
        let version = |node| {
            let handle = self.links.now(&node)?;
            Some((node.to_string(), handle.peer.version.to_string()))
        };
        self.links.linked().into_iter().filter_map(version).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::admin::doctor::Verdict;
    use proto::control::leader::LeaderEpoch;
    use proto::host::tasks::Tasks;
    use proto::link::tls::Files;

    use super::*;
    use crate::admin::server;
    use crate::admin::tests::admin_state_over;
    use crate::state::store::leadership::{Leader, Leadership};
    use crate::state::store::memory::Memory;
    use crate::state::store::url::StoreAt;
    use crate::state::store::writer::Store;

    /// The finding of a check.
    async fn found(state: &AdminState, check: &str) -> (Verdict, String, String) {
        let findings = state.doctor().await;
        let finding = findings.into_iter().find(|finding| finding.check == check).unwrap();
        (finding.verdict, finding.found, finding.advice)
    }

    #[tokio::test]
    async fn one_that_follows_says_what_it_can_and_whom_to_ask_about_links() {
        let tasks = Tasks::default();
        let dir = tempfile::tempdir().unwrap();
        let leadership = Leadership::following();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let installation = Installation {
            listen: vec!["wss://0.0.0.0:7443".parse().unwrap()],
            advertise: None,
            drivers: Vec::new(),
            fronts: None,
            is_relayed: false,
            store: StoreAt::Memory,
            tls: Files::of(dir.path(), "cloud"),
            ca: None,
        };
        let state = AdminState {
            installation: Some(installation),
            ..admin_state_over(store.with_leadership(leadership.clone()), &tasks)
        };
        let (verdict, text, _) = found(&state, "versions").await;
        assert_eq!(verdict, Verdict::Unknown);
        assert!(text.contains("does not lead"), "{text}");
        let leader = Leader { name: "b".into(), epoch: LeaderEpoch(3), endpoints: Arc::new([]) };
        leadership.follow(Some(leader));
        let (verdict, text, advice) = found(&state, "versions").await;
        assert_eq!(verdict, Verdict::Unknown);
        assert!(text.contains("follows b") && advice.contains("ask b"), "{text}; {advice}");
        let (verdict, text, _) = found(&state, "listen").await;
        assert_eq!(verdict, Verdict::Ok);
        assert!(text.starts_with("it listens; this csi-cloud follows b"), "{text}");
        assert_eq!(found(&state, "store-open").await.0, Verdict::Ok);
        assert_eq!(found(&state, "certificate").await.0, Verdict::Fault, "it is not there");
        let refused = server::answer(&state, "/doctor/kubeedge", b"").await.unwrap_err();
        assert!(refused.text.contains("follows b"), "{refused:?}");
    }

    #[tokio::test]
    async fn one_that_is_alone_has_the_links_itself() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let state = admin_state_over(store, &tasks);
        let (verdict, text, _) = found(&state, "versions").await;
        assert_eq!(verdict, Verdict::Ok, "{text}");
    }
}
