//! `csi-cloud driver profile`: what a driver's front reports from now on.

use proto::csi::{Capabilities, Local, Method};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::state::clock::now;
use crate::state::profile;
use crate::state::record::Profile;

/// The path of the command.
pub(crate) const PATH: &str = "/driver/profile";

/// Adopts the answers of a node's driver as the driver's profile.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetProfile {
    /// The driver.
    pub driver: DriverName,
    /// The node.
    pub from: NodeName,
}

/// The sidecars that read these capabilities, once, when they start.
fn readers(kind: Capabilities) -> &'static [&'static str] {
    match kind {
        Capabilities::Plugin => &["external-provisioner", "external-resizer"],
        Capabilities::Controller => &[
            "external-attacher",
            "external-provisioner",
            "external-resizer",
            "external-snapshotter",
        ],
        Capabilities::Group => &["external-snapshotter"],
        // A kubelet asks its node.
        Capabilities::Node => &[],
    }
}

impl AdminState {
    /// Adopts the last answers of a node's driver as the driver's profile.
    ///
    /// # Errors
    /// The driver has no front here, or the node's answers are not known or count for nothing. It
    /// also fails if the change is not durable.
    pub(super) async fn set_profile(&self, request: SetProfile) -> Result<Done, CommandError> {
        let SetProfile { driver, from } = request;
        if !self.policies.contains_key(&driver) {
            return Err(CommandError::unknown(format!("no driver {driver} has a front here")));
        }
        let found = self.store.read(|state| {
            let of = state.driver(&driver)?;
            let at = of.at(&from).filter(|at| at.has_spoken() && of.is_member(&from))?;
            Some((of.profile().cloned(), at.answers.clone()))
        });
        let Some((before, answers)) = found else {
            return Err(CommandError::unknown(format!(
                "node {from} has not said what driver {driver} can, or counts for nothing there; \
                 `csi-cloud nodes` shows why"
            )));
        };
        let profile = Profile { answers, since: now(), from: vec![from.clone()] };
        let text = report(&driver, &from, before.as_ref(), &profile);
        let of = driver.clone();
        self.store.write(move |txn| txn.set_profile(&of, Some(profile))).await?;
        profile::check(&self.store, &driver);
        self.links.refresh_scopes();
        Ok(done(text))
    }
}

/// The changes, and the sidecars that do not know them yet.
fn report(
    driver: &DriverName,
    from: &NodeName,
    before: Option<&Profile>,
    after: &Profile,
) -> String {
    let changed = profile::difference(before, after);
    if changed.is_empty() {
        return format!("the front of {driver} reports what {from} says, as it did before");
    }
    let mut text = format!("the front of {driver} reports what {from} says");
    for (kind, (more, less)) in &changed {
        let rpc = Method::answering(Local::Capabilities(*kind)).name();
        let more = more.iter().map(|name| format!("+{name}"));
        let words: Vec<_> = more.chain(less.iter().map(|name| format!("-{name}"))).collect();
        text += &format!("; {rpc}: {}", words.join(" "));
    }
    let mut readers: Vec<_> = changed.keys().flat_map(|kind| readers(*kind)).copied().collect();
    readers.sort_unstable();
    readers.dedup();
    if !readers.is_empty() {
        let readers = readers.join(", ");
        text += &format!(". Start these sidecars again, which read it once: {readers}");
    }
    text
}
