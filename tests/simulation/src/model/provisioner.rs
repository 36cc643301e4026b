//! external-provisioner: volumes for claims, and their end.
//!
//! After an answer that leaves the outcome open, it repeats the call with the same topology, even
//! if the claim is deleted (`claimsInProgress`). After a final answer it does not, whatever earlier
//! attempts did. A restart loses that memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::csi;
use tonic::Code;

use super::api::{ApiVolume, Claim};
use super::maker::Maker;
use super::pace;
use super::pace::Next;
use super::sidecar::Sidecar;
use super::world::Topology;
use crate::keys::{LIAR_AT, NODES, name};
use crate::record::is_open;
use drivers::testdriver::TOPOLOGY_KEY;
use harness::requests::capability;

/// The process's memory of claims; it is lost when the process exits.
#[derive(Default)]
pub(super) struct Memory(Mutex<BTreeMap<usize, InProgress>>);

#[derive(Clone, Copy)]
struct InProgress {
    /// The topology cache: where it was tried first.
    node: usize,
    /// In `claimsInProgress`.
    open: bool,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, InProgress>> {
        self.0.lock()
    }
}

/// Makes a claim's volume.
pub(super) async fn provision(sidecar: Arc<Sidecar>, memory: Arc<Memory>, at: usize) {
    pace::keep(&sidecar.world, || sidecar.provision(&memory, at), |api| api.claim(at).version)
        .await;
}

/// Deletes the volume of a deleted claim.
pub(super) async fn reclaim(sidecar: Arc<Sidecar>, at: usize) {
    pace::keep(&sidecar.world, || sidecar.reclaim(at), |api| api.claim(at).version).await;
}

impl Sidecar {
    async fn provision(&self, memory: &Memory, at: usize) -> Next {
        let api = &self.world.api;
        let claim = api.claim(at);
        if claim.volume.is_some() || claim.settled {
            return Next::Done;
        }
        let remembered = memory.lock().get(&at).copied();
        if claim.deleted && !remembered.is_some_and(|memory| memory.open) {
            api.change_claim(at, |claim| {
                claim.settled = true;
                claim.forgotten = claim.open;
            });
            return Next::Done;
        }
        let Some(node) = remembered.map(|memory| memory.node).or(claim.node) else {
            return self.schedule(at).await;
        };
        memory.lock().entry(at).or_insert(InProgress { node, open: false });
        // From here on the outcome is open until the answer arrives, even if this process ends
        // before.
        api.change(|objects| objects.claims.get_mut(at).map(|claim| claim.open = true));
        let request = self.create(&claim, node);
        let reply = self.call("CreateVolume", &claim.name, &request).await;
        if is_open(reply.code) {
            memory.lock().insert(at, InProgress { node, open: true });
            return Next::Retry;
        }
        memory.lock().remove(&at);
        match reply.code {
            Code::Ok => {
                let answer = reply.decode::<csi::CreateVolumeResponse>().unwrap_or_default();
                self.provisioned(at, &claim.name, node, answer.volume.unwrap_or_default());
                Next::Done
            }
            Code::ResourceExhausted => {
                api.change_claim(at, |claim| (claim.open, claim.node) = (false, None));
                Next::Now
            }
            code => {
                api.change(|objects| objects.claims.get_mut(at).map(|claim| claim.open = false));
                if code == Code::InvalidArgument { Next::Slow } else { Next::Retry }
            }
        }
    }

    /// The claim has its volume.
    fn provisioned(&self, at: usize, name: &str, node: usize, volume: csi::Volume) {
        let id = volume.volume_id.clone();
        let maker = self.world.maker_of_volume(name, &id);
        let node = match maker {
            Some(Maker::Liar) => LIAR_AT,
            Some(Maker::Honest) | None => lives_at(&volume).unwrap_or(node),
        };
        if maker.is_none() {
            let text = format!("{name} got {id:?}, which nobody made under that name");
            self.world.found.add([text]);
        }
        let size = volume.capacity_bytes;
        let volume = ApiVolume { id, node, size, ..ApiVolume::default() };
        self.world.api.change_claim(at, |claim| {
            (claim.open, claim.at_liar) = (false, node == LIAR_AT);
            claim.volume = Some(volume);
        });
    }

    /// The scheduler selects a node again.
    async fn schedule(&self, at: usize) -> Next {
        let strict = self.world.api.claim(at).strict;
        let places = self.world.places();
        let choice = if strict { self.world.fleet.drivers.len() } else { places.len() };
        let (wait, which) = self.dice(|dice| (dice.time(500, 5_000), dice.below(choice)));
        let node = places.get(which).copied().unwrap_or_default();
        tokio::time::sleep(wait).await;
        self.world.trace.say(format_args!("scheduler: claim {at} goes to {}", name(node)));
        self.world.api.change_claim(at, |claim| claim.node = Some(node));
        Next::Now
    }

    fn create(&self, claim: &Claim, node: usize) -> csi::CreateVolumeRequest {
        let asked = match self.world.topology {
            _ if claim.strict => vec![topology(node)],
            Topology::Strict => vec![topology(node)],
            Topology::Preferred => {
                let mut places = self.world.places();
                let first = places.iter().position(|place| *place == node).unwrap_or(0);
                places.rotate_left(first);
                places.into_iter().map(topology).collect()
            }
            Topology::Anywhere => Vec::new(),
        };
        let requirements = csi::TopologyRequirement { requisite: asked.clone(), preferred: asked };
        csi::CreateVolumeRequest {
            name: claim.name.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: claim.size, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            accessibility_requirements: Some(requirements)
                .filter(|asked| !asked.requisite.is_empty()),
            ..Default::default()
        }
    }

    async fn reclaim(&self, at: usize) -> Next {
        let api = &self.world.api;
        let (claim, free) = api.read(|objects| {
            (objects.claims.get(at).cloned().unwrap_or_default(), objects.free(at))
        });
        if claim.settled {
            return Next::Done;
        }
        let Some(volume) = claim.volume.filter(|_| claim.deleted && free) else {
            return Next::Idle;
        };
        if volume.gone {
            return Next::Done;
        }
        let request =
            csi::DeleteVolumeRequest { volume_id: volume.id.clone(), ..Default::default() };
        let reply = self.call("DeleteVolume", &volume.id, &request).await;
        let gone = reply.code == Code::Ok && !self.is_unwritten();
        api.change(|objects| {
            if let Some(volume) = objects.claims.get_mut(at).and_then(|claim| claim.volume.as_mut())
            {
                volume.gone = gone;
            }
        });
        if gone { Next::Done } else { Next::Retry }
    }
}

/// The one node where a volume is accessible; none if the driver does not say.
fn lives_at(volume: &csi::Volume) -> Option<usize> {
    let [topology] = volume.accessible_topology.as_slice() else { return None };
    let node = topology.segments.get(TOPOLOGY_KEY)?;
    NODES.iter().position(|name| name == node)
}

fn topology(node: usize) -> csi::Topology {
    csi::Topology { segments: [(TOPOLOGY_KEY.to_owned(), name(node).to_owned())].into() }
}
