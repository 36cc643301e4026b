//! Nodes, and drivers at nodes.

use std::time::Duration;

use proto::admin::cells::age;
use proto::host::plain;
use proto::names::certificate::Subject;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Verdict};
use super::explainer::Explainer;
use crate::nodes::driver_health::DriverHealth;
use crate::state::known::State;

/// What is known of a node, for one driver or for none.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFacts {
    /// Whether it ever had a link.
    is_known: bool,
    is_removed: bool,
    /// Whether its certificates were revoked and it has not joined again.
    is_revoked: bool,
    /// How long it has had no link; none if it has one.
    away: Option<Duration>,
    /// Why it is set apart: for the driver, or for any if none is asked about.
    apart: Option<String>,
    /// Whether it has the driver.
    has_driver: bool,
    /// How the driver is there, by the node's word.
    health: Option<DriverHealth>,
}

/// What a node is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Something new shall be made there.
    NewVolumes,
    /// What it has shall be used.
    Use,
}

impl Explainer<'_> {
    pub(super) fn node_facts(&self, node: &NodeName, driver: Option<&DriverName>) -> NodeFacts {
        let facts = self.store.read(|state| stored(state, node, driver));
        NodeFacts {
            away: self.links.away(node),
            health: driver.and_then(|driver| self.links.driver_health(node, driver)),
            ..facts
        }
    }

    /// Follows the chain to a node, and to a driver there.
    pub(super) fn follow_node(
        &self,
        chain: &mut Chain,
        node: &NodeName,
        driver: Option<&DriverName>,
        need: Need,
    ) {
        let facts = self.node_facts(node, driver);
        chain.step(format!("node {node}"), facts.state(), facts.found());
        if let Some(driver) = driver.filter(|_| facts.away.is_none() && !facts.is_removed) {
            let (state, why) = facts.driver_state();
            chain.step(format!("driver {driver} at node {node}"), state, why);
        }
        chain.judge(judge(&facts, node, driver, need));
    }

    /// A node by itself, with all its drivers.
    pub(super) fn node(&self, node: &NodeName) -> super::answer::Explanation {
        let mut chain = Chain::default();
        self.follow_node(&mut chain, node, None, Need::NewVolumes);
        for driver in &self.drivers {
            if self.node_facts(node, Some(driver)).has_driver {
                self.follow_node(&mut chain, node, Some(driver), Need::NewVolumes);
            }
        }
        chain.end(|| Verdict::fine(format!("node {node} has a link, and its drivers are up")))
    }
}

fn stored(state: &State, node: &NodeName, driver: Option<&DriverName>) -> NodeFacts {
    let revocation = state.trust().revocation(&Subject::Node(node.clone()));
    let at = driver.and_then(|driver| state.driver(driver)?.at(node));
    let apart = state.apart();
    let why = match driver {
        Some(driver) => apart.why(node, driver),
        None => apart.at(node).map(|(_, apart)| apart).next(),
    };
    NodeFacts {
        is_known: state.node(node).is_some(),
        is_removed: state.is_removed(node),
        is_revoked: revocation.is_some_and(|revocation| !revocation.is_overcome()),
        apart: why.map(|apart| apart.reason.to_string()),
        has_driver: at.is_some_and(|at| at.gone.is_none()),
        ..NodeFacts::default()
    }
}

impl NodeFacts {
    /// Its state, in a word.
    fn state(&self) -> &'static str {
        match self.away {
            _ if self.is_removed => "removed",
            None => "linked",
            Some(_) if self.is_revoked => "revoked",
            Some(_) if !self.is_known => "unknown",
            Some(_) => "away",
        }
    }

    fn found(&self) -> String {
        let away = self.away.filter(|_| self.is_known);
        let away = away.map(|away| format!("no link for {}", age(away)));
        let apart = self.apart.as_ref().map(|why| format!("set apart: {why}"));
        away.into_iter().chain(apart).collect::<Vec<_>>().join("; ")
    }

    /// The driver's state, and why.
    fn driver_state(&self) -> (&'static str, String) {
        match &self.health {
            _ if !self.has_driver => ("missing", String::new()),
            Some(health) => (health.name(), plain(&health.why)),
            None => ("unknown", "the node has not said how it is".into()),
        }
    }
}

/// What keeps a node from doing what it is needed for.
pub(super) fn judge(
    facts: &NodeFacts,
    node: &NodeName,
    driver: Option<&DriverName>,
    need: Need,
) -> Option<Verdict> {
    let verdict = if facts.is_removed {
        Verdict::of(
            Cause::NodeRemoved,
            format!("node {node} was removed for good"),
            format!("`csi-cloud node admit {node}` lets it in again"),
        )
    } else if let Some(away) = facts.away {
        unlinked(facts, node, away)
    } else {
        linked(facts, node, driver, need)?
    };
    Some(verdict.at(node))
}

fn unlinked(facts: &NodeFacts, node: &NodeName, away: Duration) -> Verdict {
    if facts.is_revoked {
        return Verdict::of(
            Cause::NodeRevoked,
            format!("the certificates of node {node} were revoked"),
            format!("if it is trusted again, `csi-cloud token create {node}` lets it join"),
        );
    }
    if !facts.is_known {
        return Verdict::of(
            Cause::NodeUnknown,
            format!("no csi-edge at node {node} has ever linked"),
            "look whether csi-edge runs there, and at its log (`csi-edge doctor`)",
        );
    }
    Verdict::of(
        Cause::NodeAway,
        format!("node {node} has had no link to csi-cloud for {}", age(away)),
        "look at its power and network, and at csi-edge's log there (`csi-edge doctor`)",
    )
}

fn linked(
    facts: &NodeFacts,
    node: &NodeName,
    driver: Option<&DriverName>,
    need: Need,
) -> Option<Verdict> {
    if let Some(driver) = driver {
        if !facts.has_driver {
            return Some(Verdict::of(
                Cause::DriverMissing,
                format!("csi-edge at node {node} does not name driver {driver}"),
                "look at `csi-edge drivers` and the driver's log there",
            ));
        }
        let down = facts.health.as_ref().filter(|health| !health.is_up());
        if let Some(health) = down {
            let lasts = age(health.lasts());
            let (state, why) = (health.name(), plain(&health.why));
            return Some(Verdict::of(
                Cause::DriverDown,
                format!("driver {driver} at node {node} has been {state} for {lasts} ({why})"),
                "look at the driver's log there",
            ));
        }
    }
    let why = facts.apart.as_ref().filter(|_| need == Need::NewVolumes)?;
    Some(Verdict::of(
        Cause::NodeSetApart,
        format!("node {node} is set apart, so nothing new is made there: {why}"),
        "docs/operations.md says what to do (Nodes that are set apart)",
    ))
}

#[cfg(test)]
mod tests {
    use proto::control::health::{Health, HealthState};

    use super::*;

    fn good() -> NodeFacts {
        NodeFacts { is_known: true, has_driver: true, ..NodeFacts::default() }
    }

    fn cause(facts: &NodeFacts, need: Need) -> Option<Cause> {
        let driver: DriverName = "d.example".parse().unwrap();
        let verdict = judge(facts, &"n1".parse().unwrap(), Some(&driver), need)?;
        assert!(verdict.text.contains("n1") && verdict.node.is_some(), "{verdict:?}");
        Some(verdict.cause)
    }

    #[tokio::test(start_paused = true)]
    async fn each_state_of_a_node_is_a_cause_of_its_own() {
        let minute = Some(Duration::from_secs(60));
        let down = Health { state: HealthState::Gone, seconds: 9, why: "no socket".into() };
        let down = Some(DriverHealth::told(&down));
        let apart = Some("w".to_owned());
        let table = [
            (good(), None),
            (NodeFacts { away: minute, ..good() }, Some(Cause::NodeAway)),
            (NodeFacts { away: minute, is_known: false, ..good() }, Some(Cause::NodeUnknown)),
            (NodeFacts { away: minute, is_revoked: true, ..good() }, Some(Cause::NodeRevoked)),
            (NodeFacts { is_revoked: true, ..good() }, None),
            (NodeFacts { away: minute, is_removed: true, ..good() }, Some(Cause::NodeRemoved)),
            (NodeFacts { has_driver: false, ..good() }, Some(Cause::DriverMissing)),
            (NodeFacts { health: down.clone(), ..good() }, Some(Cause::DriverDown)),
            (NodeFacts { apart: apart.clone(), ..good() }, Some(Cause::NodeSetApart)),
            (NodeFacts { apart: apart.clone(), health: down, ..good() }, Some(Cause::DriverDown)),
        ];
        for (facts, expected) in table {
            assert_eq!(cause(&facts, Need::NewVolumes), expected, "{facts:?}");
        }
        assert_eq!(cause(&NodeFacts { apart, ..good() }, Need::Use), None);
    }
}
