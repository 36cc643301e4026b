//! `csi-cloud volumes`: where volumes, snapshots and groups live.

use clap::Args;
use prost::Message;
use proto::admin::command::{Command, Page, Refusal, Row};
use proto::csi;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::cells::{claim, joined, optional, short, since, size};
use crate::admin::leases::LeaseHolder;
use crate::admin::page::{Cursor, Records, Walk, ids_after, not_empty};
use crate::state::condition::HomeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::Home;

/// Show where volumes live.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumesQuery {
    /// Of this driver only
    #[arg(long, value_name = "NAME")]
    pub driver: Option<DriverName>,
    /// At this node only
    #[arg(long, value_name = "NODE")]
    pub node: Option<NodeName>,
    /// Snapshots and groups as well
    #[arg(long)]
    pub all: bool,
    /// The end of the page before.
    #[arg(skip)]
    pub after: Option<Cursor>,
}

impl Command<AdminState> for VolumesQuery {
    const NAME: &'static str = "volumes";
    const PATH: &'static str = "/volumes";
    const READS: bool = true;
    type Answer = Page<VolumeView, Cursor>;

    async fn carry_out(self, admin: &AdminState) -> Result<Page<VolumeView, Cursor>, Refusal> {
        Ok(admin.volumes(&self))
    }
}

/// A volume, snapshot or group.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// `volume`, `snapshot` or `group`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Its driver.
    pub driver: DriverName,
    /// Its home node.
    pub node: NodeName,
    /// The name under which it was created.
    pub name: Option<String>,
    /// Its last known size, in bytes.
    pub capacity_bytes: Option<i64>,
    /// The driver's ids of the nodes to which it is published.
    pub published: Vec<String>,
    /// The claim's namespace, if the provisioner sent it.
    pub claim_namespace: Option<String>,
    /// The claim's name.
    pub claim_name: Option<String>,
    /// The PersistentVolume's name.
    pub persistent_volume: Option<String>,
    /// The time at which csi-cloud learned of it, in ms since 1970.
    pub since_ms: u64,
    /// `ok`, `absent`, `lost` or `claimed`.
    ///
    /// Absent: its node's last list did not have it. Lost: its node was removed. Claimed: another
    /// node reports it too.
    pub state: String,
    /// The other nodes that report it.
    pub claimed_by: Vec<NodeName>,
    /// The holder of its exclusive lease, if it is a direct volume.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}

impl Row for VolumeView {
    const HEADERS: &'static [&'static str] =
        &["ID", "KIND", "DRIVER", "NODE", "SIZE", "PUBLISHED", "CLAIM", "AGE", "STATE", "HOLDER"];

    fn row(&self) -> Vec<String> {
        let others = joined(&self.claimed_by);
        let state = match self.state.as_str() {
            state if others.is_empty() => state.to_owned(),
            "claimed" => format!("claimed also by {others}"),
            state => format!("{state}, claimed also by {others}"),
        };
        vec![
            short(&self.id),
            self.kind.clone(),
            self.driver.to_string(),
            self.node.to_string(),
            self.capacity_bytes.map(size).unwrap_or_default(),
            self.published.join(","),
            claim(self.claim_namespace.as_deref(), self.claim_name.as_deref()),
            since(self.since_ms),
            state,
            optional(self.holder.holder_node.as_ref()),
        ]
    }
}

impl AdminState {
    /// Volumes by driver and id; with snapshots and groups if the query wants them.
    pub(crate) fn volumes(&self, query: &VolumesQuery) -> Page<VolumeView, Cursor> {
        let walk = Walk { driver: query.driver.as_ref(), after: query.after.as_ref() };
        let mut items = Vec::new();
        let next = self.store.read(|state| {
            walk.visit(
                state,
                |of, after| records(of, query.node.as_ref(), after),
                |driver, id, home| {
                    if query.all || matches!(id, Id::Volume(_)) {
                        items.push(view(state, driver, id, home));
                    }
                },
            )
        });
        Page { items, next }
    }

    /// One volume, snapshot or group; none if it has no home.
    pub(crate) fn volume(&self, driver: &DriverName, id: &Id) -> Option<VolumeView> {
        self.store.read(|state| {
            let home = state.driver(driver)?.home(id)?;
            Some(view(state, driver, id, home))
        })
    }
}

/// The homes of a driver after an id, at one node or at all.
fn records<'s>(
    of: &'s DriverState,
    node: Option<&NodeName>,
    after: Option<Id>,
) -> Records<'s, Home> {
    let Some(node) = node else {
        return Box::new(of.homes().range(ids_after(after)).map(|(id, home)| (id, &**home)));
    };
    let ids: Vec<_> = of.homes_of(node).map(|(id, _)| id).collect();
    let is_before = move |id: &&Id| after.as_ref().is_some_and(|after| *id <= after);
    let ids = ids.into_iter().skip_while(is_before);
    Box::new(ids.filter_map(|id| Some((id, of.home(id)?))))
}

fn view(state: &State, driver: &DriverName, id: &Id, home: &Home) -> VolumeView {
    let (capacity_bytes, published) = size_and_nodes(id, home);
    let claim = home.claim.as_ref();
    let lease = state.driver(driver).and_then(|of| of.lease(id));
    VolumeView {
        kind: id.word().into(),
        id: id.text().into(),
        driver: driver.clone(),
        node: home.node.clone(),
        name: home.name.as_deref().map(str::to_owned),
        capacity_bytes,
        published,
        claim_namespace: claim.and_then(|claim| not_empty(&claim.namespace)),
        claim_name: claim.and_then(|claim| not_empty(&claim.name)),
        persistent_volume: claim.and_then(|claim| not_empty(&claim.volume)),
        since_ms: home.since,
        state: HomeCondition::of(state, home).name().into(),
        claimed_by: home.conflicts.clone(),
        holder: lease.map(LeaseHolder::from).unwrap_or_default(),
    }
}

/// The size and the nodes to which it is published, of its entry in the driver's list.
fn size_and_nodes(id: &Id, home: &Home) -> (Option<i64>, Vec<String>) {
    let size = |bytes: i64| Some(bytes).filter(|bytes| *bytes > 0);
    let entry = home.entry.clone();
    match id {
        Id::Volume(_) => {
            let entry = csi::list_volumes_response::Entry::decode(entry).unwrap_or_default();
            let nodes = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
            (entry.volume.and_then(|volume| size(volume.capacity_bytes)), nodes)
        }
        Id::Snapshot(_) => {
            let entry = csi::list_snapshots_response::Entry::decode(entry).unwrap_or_default();
            (entry.snapshot.and_then(|snapshot| size(snapshot.size_bytes)), Vec::new())
        }
        Id::Group(_) | Id::Name(..) => (None, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_is_refused_and_not_overlooked() {
        let wrong = serde_json::from_str::<VolumesQuery>(r#"{"drver": "d"}"#).err().unwrap();
        assert!(wrong.to_string().contains("unknown field `drver`"), "{wrong}");
        assert!(serde_json::from_str::<VolumesQuery>("{}").is_ok());
    }
}
