//! Volumes at every node, made before csi-cloud loses its store, and what must still hold of them
//! afterwards.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use proto::csi;
use proto::csi::volume_content_source::{SnapshotSource, Type};
use tonic::transport::Channel;

use harness::requests::capability;
use harness::stand::channel;

/// A volume at each node, published there, with a snapshot.
pub(super) struct KeptVolumes {
    things: Vec<Thing>,
}

struct Thing {
    node_id: String,
    request: csi::CreateVolumeRequest,
    volume: csi::Volume,
    snapshot_id: String,
}

impl KeptVolumes {
    /// Makes them through the cloud's front, at the nodes of these fronts.
    ///
    /// # Errors
    /// A call fails, or a volume is not at its requested node.
    pub(super) async fn make(front: &str, edges: Vec<String>) -> anyhow::Result<Self> {
        let mut controller = ControllerClient::new(channel(front).await?);
        let mut things = Vec::new();
        for edge in edges {
            let mut node = NodeClient::new(channel(&edge).await?);
            let info = node.node_get_info(csi::NodeGetInfoRequest {}).await?.into_inner();
            things.push(Thing::make(&mut controller, info).await?);
        }
        Ok(Self { things })
    }

    /// Uses all of them as their callers would, and deletes them.
    ///
    /// # Errors
    /// A volume is listed differently, has changed, or cannot be used; or something is left behind.
    pub(super) async fn is_usable(&self, front: &str) -> anyhow::Result<()> {
        let mut controller = ControllerClient::new(channel(front).await?);
        let expected = self
            .things
            .iter()
            .map(|thing| (thing.volume.volume_id.clone(), vec![thing.node_id.clone()]));
        let expected = expected.collect::<BTreeMap<_, _>>();
        let listed = volumes(&mut controller).await?;
        ensure!(
            listed == expected,
            "volumes and where they are published: {listed:?}, not {expected:?}"
        );
        let expected = self.things.iter().map(|thing| thing.snapshot_id.clone()).collect();
        let listed = snapshots(&mut controller).await?;
        ensure!(listed == expected, "snapshots: {listed:?}, not {expected:?}");
        for thing in &self.things {
            let context = || format!("volume {} of {}", thing.volume.volume_id, thing.node_id);
            thing.is_usable(&mut controller).await.with_context(context)?;
        }
        let left = (volumes(&mut controller).await?, snapshots(&mut controller).await?);
        ensure!(left.0.is_empty() && left.1.is_empty(), "{left:?} stay when all is deleted");
        Ok(())
    }
}

impl Thing {
    async fn make(
        controller: &mut ControllerClient<Channel>,
        info: csi::NodeGetInfoResponse,
    ) -> anyhow::Result<Self> {
        let here: Vec<_> = info.accessible_topology.into_iter().collect();
        let request = csi::CreateVolumeRequest {
            name: format!("kept-{}", info.node_id),
            volume_capabilities: vec![capability()],
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: here.clone(),
                preferred: here.clone(),
            }),
            ..Default::default()
        };
        let volume = made(controller, &request).await?;
        ensure!(
            volume.accessible_topology == here,
            "it was made at another node than {}",
            info.node_id
        );
        let snapshot = csi::CreateSnapshotRequest {
            source_volume_id: volume.volume_id.clone(),
            name: request.name.clone(),
            ..Default::default()
        };
        let snapshot = controller.create_snapshot(snapshot).await?.into_inner().snapshot;
        let snapshot_id = snapshot.context("no snapshot")?.snapshot_id;
        let thing = Self { node_id: info.node_id, request, volume, snapshot_id };
        thing.publish(controller).await?;
        Ok(thing)
    }

    async fn is_usable(&self, controller: &mut ControllerClient<Channel>) -> anyhow::Result<()> {
        let again = made(controller, &self.request).await?;
        ensure!(again == self.volume, "made again it is {}", again.volume_id);
        // A retry, then the calls for a pod that moved away and came back.
        self.publish(controller).await?;
        self.unpublish(controller).await?;
        self.publish(controller).await?;
        self.unpublish(controller).await?;
        let snapshot_id = self.snapshot_id.clone();
        let source = SnapshotSource { snapshot_id: snapshot_id.clone() };
        let restore = csi::CreateVolumeRequest {
            name: format!("{}-restored", self.request.name),
            volume_content_source: Some(csi::VolumeContentSource {
                r#type: Some(Type::Snapshot(source)),
            }),
            accessibility_requirements: None,
            ..self.request.clone()
        };
        let restored = made(controller, &restore).await?;
        let here = &self.volume.accessible_topology;
        let there = &restored.accessible_topology;
        ensure!(here == there, "a volume of its snapshot was made at another node");
        for volume_id in [restored.volume_id, self.volume.volume_id.clone()] {
            let delete = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
            controller.delete_volume(delete).await?;
        }
        let delete = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        controller.delete_snapshot(delete).await?;
        Ok(())
    }

    async fn publish(&self, controller: &mut ControllerClient<Channel>) -> anyhow::Result<()> {
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: self.volume.volume_id.clone(),
            node_id: self.node_id.clone(),
            volume_capability: Some(capability()),
            volume_context: self.volume.volume_context.clone(),
            ..Default::default()
        };
        controller.controller_publish_volume(publish).await.context("ControllerPublishVolume")?;
        Ok(())
    }

    async fn unpublish(&self, controller: &mut ControllerClient<Channel>) -> anyhow::Result<()> {
        let volume_id = self.volume.volume_id.clone();
        let node_id = self.node_id.clone();
        let unpublish =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        controller
            .controller_unpublish_volume(unpublish)
            .await
            .context("ControllerUnpublishVolume")?;
        Ok(())
    }
}

async fn made(
    controller: &mut ControllerClient<Channel>,
    request: &csi::CreateVolumeRequest,
) -> anyhow::Result<csi::Volume> {
    let answer = controller.create_volume(request.clone()).await.context("CreateVolume")?;
    answer.into_inner().volume.context("CreateVolume was answered without a volume")
}

/// All volumes, and where they are published.
async fn volumes(
    controller: &mut ControllerClient<Channel>,
) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let list =
        controller.list_volumes(csi::ListVolumesRequest::default()).await.context("ListVolumes")?;
    let entry = |entry: csi::list_volumes_response::Entry| {
        let nodes = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
        Some((entry.volume?.volume_id, nodes))
    };
    Ok(list.into_inner().entries.into_iter().filter_map(entry).collect())
}

/// All snapshots.
async fn snapshots(controller: &mut ControllerClient<Channel>) -> anyhow::Result<BTreeSet<String>> {
    let list = controller
        .list_snapshots(csi::ListSnapshotsRequest::default())
        .await
        .context("ListSnapshots")?;
    let snapshots = list.into_inner().entries.into_iter().filter_map(|entry| entry.snapshot);
    Ok(snapshots.map(|snapshot| snapshot.snapshot_id).collect())
}
