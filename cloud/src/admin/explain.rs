//! `csi-cloud explain`: why something waits. The verdict is the last line, since a terminal ends
//! there.

use proto::admin::command::{Answer, Command, Refusal};
use std::io::Write;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand, ValueEnum};
use proto::admin::cells::short;
use proto::admin::command_line::Printer;
use proto::admin::output::{ListWriter, Output};
use proto::admin::view::ExplainStep;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::explain::answer::{Cause, Explanation};
use crate::explain::ended::failure;
use crate::explain::explainer::Explainer;
use crate::explain::subject::{Namespaced, Subject};

/// Say why a pod, claim, snapshot, volume, node or driver waits, and what to do next.
///
/// It follows the chain to the node: claim, class, the scheduler's choice, volume, attachment,
/// link, driver. The last line is the verdict. It reads only.
#[derive(Debug, Args)]
struct ExplainArguments {
    /// What to explain.
    #[command(subcommand)]
    of: Explained,
}

/// What can be explained.
#[derive(Debug, Subcommand)]
enum Explained {
    /// A PersistentVolumeClaim
    Pvc {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
    },
    /// A PersistentVolume
    Pv {
        /// Its name
        name: String,
    },
    /// A Pod, with all its claims
    Pod {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
    },
    /// A VolumeSnapshot
    Snapshot {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        name: Namespaced,
    },
    /// A volume, by the driver's id
    Volume {
        /// Its driver
        driver: DriverName,
        /// Its id
        id: String,
    },
    /// A node, with its drivers
    Node {
        /// Its name
        node: NodeName,
    },
    /// A driver, with the nodes at which it cannot make volumes
    Driver {
        /// Its name
        driver: DriverName,
    },
}

/// The request of `csi-cloud explain`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Explain(pub(crate) Subject);

impl Args for Explain {
    fn augment_args(command: clap::Command) -> clap::Command {
        ExplainArguments::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ExplainArguments::augment_args_for_update(command)
    }
}

impl FromArgMatches for Explain {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let ExplainArguments { of } = ExplainArguments::from_arg_matches(matches)?;
        Ok(Self(match of {
            Explained::Pvc { name } => Subject::Pvc(name),
            Explained::Pv { name } => Subject::Pv(name),
            Explained::Pod { name } => Subject::Pod(name),
            Explained::Snapshot { name } => Subject::Snapshot(name),
            Explained::Volume { driver, id } => Subject::Volume { driver, id },
            Explained::Node { node } => Subject::Node(node),
            Explained::Driver { driver } => Subject::Driver(driver),
        }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Command<AdminState> for Explain {
    const NAME: &'static str = "explain";
    const PATH: &'static str = "/explain";
    const READS: bool = true;
    const IS_SLOW: bool = true;
    const NEEDS_LINKS: bool = true;
    type Answer = Explanation;

    async fn carry_out(self, admin: &AdminState) -> Result<Explanation, Refusal> {
        Ok(admin.explain(&self.0).await)
    }
}

const HEADERS: &[&str] = &["OBJECT", "STATE", "FOUND"];

impl Answer for Explanation {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        match to.output {
            Output::Json => Ok(writeln!(to.out, "{}", serde_json::to_string_pretty(self)?)?),
            Output::Table => table(to.out, self),
        }
    }
}

fn table(mut out: &mut dyn Write, explanation: &Explanation) -> anyhow::Result<()> {
    if !explanation.steps.is_empty() {
        let mut writer = ListWriter::new(Output::Table, HEADERS);
        writer.add(&mut out, &explanation.steps, row)?;
        writer.end(&mut out)?;
        writeln!(out)?;
    }
    let verdict = &explanation.verdict;
    if verdict.cause != Cause::Fine
        && let Some(cause) = verdict.cause.to_possible_value()
    {
        let cause = cause.get_name();
        writeln!(out, "{cause}, of which `csi-cloud explain cause {cause}` says more:")?;
    }
    Ok(writeln!(out, "{}", verdict.sentence())?)
}

fn row(step: &ExplainStep) -> Vec<String> {
    vec![step.object.clone(), step.state.clone(), short(&step.found)]
}

impl AdminState {
    /// Says why something waits.
    ///
    /// A create that was refused leaves no record. So without Kubernetes, the last call for a claim
    /// says why there is none.
    pub(crate) async fn explain(&self, subject: &Subject) -> Explanation {
        let mut explanation = self.explainer().explain(subject).await;
        if let Subject::Pvc(claim) = subject
            && explanation.verdict.cause == Cause::NotVisible
            && let Some(last) = self.calls.ended.for_claim(&claim.to_string())
            && let Some(failed) = failure(&last)
        {
            explanation.verdict = failed;
        }
        explanation
    }

    /// The explainer for one question.
    pub(crate) fn explainer(&self) -> Explainer<'_> {
        Explainer {
            store: &self.store,
            links: &self.links,
            calls: &self.calls,
            drivers: self.policies.keys().cloned().collect(),
            objects: self.doctor.as_ref().map(|doctor| &doctor.objects),
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::admin::tests::{admin_state, admin_state_into, refuse};
    use crate::explain::answer::Verdict;
    use crate::state::record::Node;
    use crate::state::store::backend::StoreError;
    use crate::state::store::memory::{Crash, Memory};

    #[test]
    fn the_verdict_is_the_last_line() {
        let verdict = Verdict {
            cause: Cause::NodeAway,
            node: Some("n1".parse().unwrap()),
            text: "node n1 has no link".into(),
            next: "look there".into(),
        };
        let step =
            ExplainStep { object: "node n1".into(), state: "away".into(), found: String::new() };
        let mut out = Vec::new();
        table(&mut out, &Explanation { steps: vec![step], verdict }).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().last(), Some("node n1 has no link; look there"));
        assert!(text.contains("`csi-cloud explain cause node-away`"), "{text}");
        assert!(text.starts_with("OBJECT") && text.contains("node n1"), "{text}");
    }

    #[tokio::test]
    async fn a_store_that_takes_no_more_changes_is_the_first_cause() {
        let tasks = Tasks::default();
        let failing = Memory::default().crashing(Crash::Before(0));
        let admin = admin_state_into(Box::new(failing), &tasks);
        let node = || "n1".parse().unwrap();
        let asked = || Subject::Node(node());
        assert_eq!(admin.explain(&asked()).await.verdict.cause, Cause::NodeUnknown);
        let written = admin.store.write(move |txn| {
            txn.set_node(&node(), Some(Node { since: 1, ..Node::default() }));
        });
        assert!(matches!(written.await, Err(StoreError::Closed)));
        let verdict = admin.explain(&asked()).await.verdict;
        assert_eq!(verdict.cause, Cause::StoreFails);
        assert!(verdict.sentence().contains("EdgeCsiStoreFailing"), "{verdict:?}");
    }

    #[tokio::test]
    async fn without_kubernetes_the_last_call_for_a_claim_says_why_it_waits() {
        let tasks = Tasks::default();
        let state = admin_state(&tasks);
        refuse(&state, "shop/stuck", "pvc-7", "n1");
        let of = async |claim: &str| {
            let verdict = state.explain(&Subject::Pvc(claim.parse().unwrap())).await.verdict;
            (verdict.cause, verdict.node, verdict.text)
        };
        let (cause, node, text) = of("shop/stuck").await;
        assert_eq!(
            (cause, node.as_ref().map(|node| node.as_str())),
            (Cause::CallFailed, Some("n1"))
        );
        assert!(text.starts_with("CreateVolume of pvc-7 failed at node n1 "), "{text}");
        assert!(text.ends_with(" with UNAVAILABLE: node n1 has no link"), "{text}");
        assert_eq!(of("shop/other").await.0, Cause::NotVisible);
    }
}
