//! `csi-cloud driver profile`: what a driver's front reports from now on.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::{Capabilities, Local, Method};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::state::clock::now;
use crate::state::profile;
use crate::state::record::Profile;

/// Report what the driver at this node says it can, for example after an upgrade everywhere.
///
/// Sidecars read that once: the answer says which ones are to be started again. Nodes whose
/// driver can less are set apart.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetProfile {
    /// Its name
    pub driver: DriverName,
    /// The node whose driver says what the front is to report
    #[arg(long, value_name = "NODE")]
    pub from: NodeName,
}

impl Command<AdminState> for SetProfile {
    const NAME: &'static str = "driver profile";
    const PATH: &'static str = "/driver/profile";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { driver, from } = self;
        if !admin.policies.contains_key(&driver) {
            return Err(Refusal::unknown(format!("no driver {driver} has a front here")));
        }
        let found = admin.store.read(|state| {
            let of = state.driver(&driver)?;
            let at = of.at(&from).filter(|at| at.has_spoken() && of.is_member(&from))?;
            Some((of.profile().cloned(), at.answers.clone()))
        });
        let Some((before, answers)) = found else {
            return Err(Refusal::unknown(format!(
                "node {from} has not said what driver {driver} can, or counts for nothing there; \
                 `csi-cloud nodes` shows why"
            )));
        };
        let profile = Profile { answers, since: now(), from: vec![from.clone()] };
        let text = report(&driver, &from, before.as_ref(), &profile);
        let of = driver.clone();
        admin.store.write(move |txn| txn.set_profile(&of, Some(profile))).await?;
        profile::check(&admin.store, &driver);
        admin.links.refresh_scopes();
        Ok(Done::logged(text))
    }
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
