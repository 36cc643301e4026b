//! external-snapshotter: creates until the snapshot is ready, and deletes until the answer is OK.
//! An annotation of the API object records an open outcome, so that it survives the process.

use std::sync::Arc;

use proto::csi;
use tonic::Code;

use super::pace;
use super::pace::Next;
use super::sidecar::Sidecar;
use crate::record::is_open;

/// Keeps a snapshot as it should be.
pub(super) async fn snapshot(sidecar: Arc<Sidecar>, at: usize) {
    pace::keep(&sidecar.world, || sidecar.snapshot(at), |api| api.snapshot(at).version).await;
}

impl Sidecar {
    async fn snapshot(&self, at: usize) -> Next {
        let api = &self.world.api;
        let snapshot = api.snapshot(at);
        if snapshot.gone {
            return Next::Done;
        }
        match snapshot.id {
            Some(id) if snapshot.deleting && !snapshot.being_created => {
                self.unsnapshot(at, id).await
            }
            None if snapshot.deleting && !snapshot.being_created => {
                api.change_snapshot(at, |of| of.gone = true);
                Next::Done
            }
            // The annotation blocks the deletion: the creation goes on.
            _ if snapshot.ready => Next::Idle,
            _ => self.cut(at, &snapshot.name, snapshot.claim).await,
        }
    }

    async fn cut(&self, at: usize, name: &str, claim: usize) -> Next {
        let api = &self.world.api;
        let Some(source) = api.claim(claim).volume else {
            return Next::Idle;
        };
        if self.call("GetPluginInfo", "", &csi::GetPluginInfoRequest {}).await.code != Code::Ok {
            return Next::Retry;
        }
        api.change(|objects| objects.snapshots.get_mut(at).map(|of| of.being_created = true));
        let request = csi::CreateSnapshotRequest {
            source_volume_id: source.id,
            name: name.to_owned(),
            ..Default::default()
        };
        let reply = self.call("CreateSnapshot", name, &request).await;
        // RESOURCE_EXHAUSTED is open too for this sidecar.
        if is_open(reply.code) || reply.code == Code::ResourceExhausted {
            return Next::Retry;
        }
        let made = reply.decode::<csi::CreateSnapshotResponse>().and_then(|answer| answer.snapshot);
        let ready = made.as_ref().is_some_and(|made| made.ready_to_use);
        let id = made.as_ref().map(|made| &made.snapshot_id);
        if let Some(id) = id.filter(|id| self.world.maker_of_snapshot(name, id).is_none()) {
            let text = format!("{name} got {id:?}, which nobody made under that name");
            self.world.found.add([text]);
        }
        api.change(|objects| {
            if let Some(of) = objects.snapshots.get_mut(at) {
                of.being_created = made.is_some() && !ready;
                of.ready = ready;
                of.id = made.map(|made| made.snapshot_id).or_else(|| of.id.take());
            }
        });
        // An unready snapshot is requested again, at the pace of failures.
        if ready { Next::Now } else { Next::Retry }
    }

    async fn unsnapshot(&self, at: usize, id: String) -> Next {
        let api = &self.world.api;
        let request = csi::DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
        let reply = self.call("DeleteSnapshot", &id, &request).await;
        let gone = reply.code == Code::Ok && !self.is_unwritten();
        api.change(|objects| {
            if let Some(of) = objects.snapshots.get_mut(at) {
                of.gone = gone;
            }
        });
        if gone { Next::Done } else { Next::Retry }
    }
}
