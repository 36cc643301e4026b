//! Counts what only its own node says that it has. It gets no secrets, and no snapshot is taken of
//! it.

use std::collections::HashSet;

use proto::admin::doctor::Finding;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::admin::admin_state::AdminState;
use crate::state::affinity::{Age, NodesOf, VolumeAnswer};
use crate::state::policy::{Policy, Scope};

const CHECK: &str = "unconfirmed";

/// The most homes of one driver that are looked at.
const MOST: usize = 10_000;
/// The most ids that are named.
const SHOWN: usize = 3;

impl AdminState {
    /// One finding for each driver with unconfirmed homes.
    pub(super) async fn unconfirmed(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let drivers: Vec<_> = self.store.read(|state| state.drivers().keys().cloned().collect());
        for driver in drivers {
            let ids = self.unconfirmed_of(&driver).await;
            findings.extend(finding(&driver, &ids));
        }
        findings
    }

    /// What a driver's nodes alone say that they have, and no PersistentVolume confirms.
    async fn unconfirmed_of(&self, driver: &DriverName) -> Vec<(Id, NodeName)> {
        if self.links.scope(driver) == Some(Scope::Shared) {
            return Vec::new();
        }
        let default = Policy::new(None);
        let policy = self.links.authority().policy(driver).unwrap_or(&default);
        let mut ids: Vec<(Id, NodeName)> = self.store.read(|state| {
            // The only node of a driver has all of it.
            let of = state.driver(driver).filter(|of| of.nodes().len() > 1);
            let homes = of.into_iter().flat_map(|of| of.homes());
            let homes = homes.filter(|(_, home)| !policy.is_confirmed(home));
            homes.take(MOST).map(|(id, home)| (id.clone(), home.node.clone())).collect()
        });
        let mut confirmed = HashSet::new();
        for (id, node) in &ids {
            let Id::Volume(volume) = id else { continue };
            let answer = self.links.ask_of_volume(driver, volume, Age::Minute, None).await;
            // Each further question would wait as long.
            if answer == VolumeAnswer::Silent {
                break;
            }
            let is_confirmed = self.store.read(|state| {
                let of = state.driver(driver);
                let nodes = of.map(|driver| NodesOf { driver, policy: Some(policy) });
                nodes.is_some_and(|nodes| answer.confirms(node, nodes))
            });
            if is_confirmed {
                confirmed.insert(id.clone());
            }
        }
        ids.retain(|(id, _)| !confirmed.contains(id));
        ids
    }
}

/// The warning about these.
fn finding(driver: &DriverName, ids: &[(Id, NodeName)]) -> Option<Finding> {
    if ids.is_empty() {
        return None;
    }
    let named = ids.iter().take(SHOWN);
    let named: Vec<_> =
        named.map(|(id, node)| format!("{} {:?} at {node}", id.word(), id.text())).collect();
    let more = if ids.len() > SHOWN { ", …" } else { "" };
    let count = if ids.len() == MOST { format!("{MOST} or more") } else { ids.len().to_string() };
    Some(Finding::warning(
        CHECK,
        driver.to_string(),
        format!(
            "only their own nodes say that they have these {count}: {}{more}; they get no call \
             with secrets and no snapshot",
            named.join(", ")
        ),
        "if it is true: `csi-cloud volume adopt`, or `csi-cloud homes rebuild --from FILE` for \
         many",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unconfirmed_is_counted_and_some_of_it_named() {
        let driver: DriverName = "d.example".parse().unwrap();
        let node: NodeName = "n1".parse().unwrap();
        assert!(finding(&driver, &[]).is_none());
        let ids: Vec<_> = (0..4).map(|n| (Id::Snapshot(format!("s{n}")), node.clone())).collect();
        let found = finding(&driver, &ids).unwrap().found;
        assert!(found.contains("these 4: snapshot \"s0\" at n1") && found.contains('…'), "{found}");
        assert!(!found.contains("s3"), "{found}");
    }
}
