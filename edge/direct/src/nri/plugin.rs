//! Answers what the container runtime asks about one container.
//!
//! An unknown method is UNIMPLEMENTED, as ttrpc has it; the runtime asks only for the events it was
//! told.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
pub use proto::control::metadata::NRI_PLUGIN as NAME;
use proto::host::chain;
use tokio::sync::Semaphore;
use tonic::Code;
use tracing::{info, warn};

use super::api;
use super::api::{CreateContainerRequest, CreateContainerResponse, PodSandbox};
use super::guard;
use super::guard::{Admitted, Handlers};
use super::sandboxes;
use super::ttrpc::{Request, Response, Status};
use super::uses::Uses;
use crate::device::host::Host;
use crate::records::published;
use crate::records::published::Published;
use crate::runtimes::Runtimes;
use crate::runtimes::entry;
use crate::runtimes::entry::{DevicePath, EntryState};
use crate::runtimes::sandbox::Sandbox;

/// The time limit for an answer. A container runtime that has none after 2 s goes on without the
/// plugin, and makes the container.
const ANSWER: Duration = Duration::from_secs(1);
/// The most looks at the host that may hang at once; after that nothing is admitted.
const LOOKS: usize = 8;

/// The inputs of the plugin's decisions.
#[derive(Clone)]
pub struct Plugin {
    /// The state directory of csi-edge, with the records.
    pub state: PathBuf,
    /// Two digits: the plugin's place among other plugins.
    pub index: String,
    /// The handlers that run VMs.
    pub handlers: Handlers,
    /// The runtimes, which have the entries.
    pub runtimes: Arc<Runtimes>,
    /// The kernel's files, which tell who has a device.
    pub host: Host,
    uses: Uses,
    /// One for each look that has not ended.
    looks: Arc<Semaphore>,
}

/// A refusal with its gRPC code.
#[derive(Debug)]
pub struct NriError(Code, String);

impl Plugin {
    /// A plugin that knows of no container yet.
    pub fn new(state: PathBuf, index: String, handlers: Handlers, runtimes: Arc<Runtimes>) -> Self {
        let host = Host::default();
        let looks = Arc::new(Semaphore::new(LOOKS));
        Self { state, index, handlers, runtimes, host, uses: Uses::default(), looks }
    }

    pub(super) async fn answer(&self, request: Request) -> Response {
        let done = if request.service == api::PLUGIN_SERVICE {
            self.call(&request.method, request.payload).await
        } else {
            Err(NriError(
                Code::Unimplemented,
                format!("there is no service {} here", request.service),
            ))
        };
        match done {
            Ok(payload) => Response { status: None, payload },
            Err(NriError(code, message)) => Response {
                status: Some(Status { code: code.into(), message }),
                payload: Bytes::new(),
            },
        }
    }

    async fn call(&self, method: &str, payload: Bytes) -> Result<Bytes, NriError> {
        let bad = |error: prost::DecodeError| {
            NriError(Code::InvalidArgument, format!("{method}: {error}"))
        };
        match method {
            "Configure" => {
                let runtime = api::ConfigureRequest::decode(payload).map_err(bad)?;
                let name = runtime.runtime_name;
                let version = runtime.runtime_version;
                info!(
                    runtime = name,
                    version, "the container runtime asks before it makes a container"
                );
                // What runs is told next.
                self.uses.clear();
                let events = api::CREATE_CONTAINER | api::STOP_CONTAINER | api::REMOVE_CONTAINER;
                Ok(bytes(&api::ConfigureResponse { events }))
            }
            // What runs already cannot be taken back.
            "Synchronize" => {
                let there = api::SynchronizeRequest::decode(payload).map_err(bad)?;
                let more = there.more;
                self.note(there);
                Ok(bytes(&api::SynchronizeResponse { more }))
            }
            // Their requests and answers have the same fields.
            "StopContainer" | "RemoveContainer" => {
                let ended = api::StopContainerRequest::decode(payload).map_err(bad)?;
                self.uses.ended(&ended.container.unwrap_or_default().id);
                Ok(bytes(&api::StopContainerResponse {}))
            }
            "CreateContainer" => {
                let request = CreateContainerRequest::decode(payload).map_err(bad)?;
                self.create(request).await.map(|answer| bytes(&answer))
            }
            "StateChange" => {
                let change = api::StateChangeEvent::decode(payload).map_err(bad)?;
                if change.event == api::CONTAINER_REMOVED {
                    self.uses.ended(&change.container.unwrap_or_default().id);
                }
                Ok(Bytes::new())
            }
            "Shutdown" => Ok(Bytes::new()),
            other => Err(NriError(Code::Unimplemented, format!("{NAME} has no {other}"))),
        }
    }

    async fn create(
        &self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, NriError> {
        let pod = request.pod.unwrap_or_default();
        let container = request.container.unwrap_or_default();
        if !container.mounts.iter().any(guard::may_be_direct) {
            return Ok(CreateContainerResponse { adjust: None });
        }
        let decided = self.decide_in_time(pod.clone(), container).await;
        let verdict = decided.inspect_err(|NriError(_, why)| {
            warn!(pod = pod.name, namespace = pod.namespace, why, "a container is not made");
        })?;
        let mounts = verdict.mounts;
        let changed =
            (!mounts.is_empty()).then(|| api::ContainerAdjustment { mounts, ..Default::default() });
        Ok(CreateContainerResponse { adjust: changed })
    }

    /// Decides on a container, or refuses it when that takes too long.
    async fn decide_in_time(
        &self,
        pod: PodSandbox,
        container: api::Container,
    ) -> Result<Admitted, NriError> {
        let permit = self.looks.clone().try_acquire_owned().map_err(|_| late())?;
        let plugin = self.clone();
        let asked = container.clone();
        let is_typed = self.handlers.typed.contains(&pod.runtime_handler);
        let decided = tokio::task::spawn_blocking(move || {
            // A look that hangs keeps it.
            let _permit = permit;
            let (verdict, volumes, all) = plugin.decide(&pod, &asked)?;
            plugin.record(&pod, &volumes)?;
            Ok((verdict, all))
        });
        let decided = tokio::time::timeout(ANSWER, decided).await.map_err(|_| late())?;
        let unknown = |error: tokio::task::JoinError| NriError(Code::Internal, error.to_string());
        let (verdict, all) = decided.map_err(unknown).flatten()?;
        if is_typed {
            let admitted = self.uses.admit(&container, &all);
            admitted.map_err(|refused| NriError(Code::FailedPrecondition, refused.to_string()))?;
        }
        Ok(verdict)
    }

    /// The verdict, the container's volumes, and all of the node.
    fn decide(
        &self,
        pod: &PodSandbox,
        container: &api::Container,
    ) -> Result<(Admitted, Vec<Published>, Vec<Published>), NriError> {
        let state = self.state.display();
        // Without the records, a pod might write where its data is lost.
        let unread =
            |why: String| NriError(Code::Unavailable, format!("the records in {state}: {why}"));
        let each = published::each(&self.state).map_err(|error| unread(error.to_string()))?;
        let targets = container.mounts.iter().filter(|mount| guard::may_be_direct(mount));
        let targets = targets.map(|mount| guard::possible_targets(Path::new(&mount.source)));
        let targets: Vec<_> = targets.flatten().collect();
        let mut published = Vec::new();
        for record in each {
            match record {
                Ok(record) => published.push(record),
                // It may be this container's; another's hinders nobody else.
                Err(damaged) if targets.iter().any(|target| damaged.may_be_at(target)) => {
                    return Err(unread(chain(&damaged)));
                }
                Err(_) => {}
            }
        }
        let handlers: &Handlers = &self.handlers;
        let verdict = guard::decide(pod, container, &published, handlers)
            .map_err(|refused| NriError(Code::FailedPrecondition, refused.to_string()))?;
        let mut volumes = published.clone();
        volumes.retain(|volume| verdict.targets.contains(&volume.target));
        Ok((verdict, volumes, published))
    }

    /// Leaves the sandbox's id where Kata's Go runtime leaves it, for runtimes that do not. The
    /// runtime will find what the record says, or nothing is made.
    fn record(&self, pod: &PodSandbox, volumes: &[Published]) -> Result<(), NriError> {
        for volume in volumes {
            let failed = |why: String| {
                let target = volume.target.display();
                NriError(Code::FailedPrecondition, format!("the direct volume at {target} {why}"))
            };
            self.is_whole(volume).map_err(failed)?;
            let Some(sandbox) = Sandbox::parse(&pod.id) else {
                return Err(failed(format!("cannot go to a sandbox with the id {:?}", pod.id)));
            };
            if self.handlers.typed.contains(&pod.runtime_handler) {
                sandboxes::admit(&self.host, &self.state, volume, &sandbox).map_err(failed)?;
            }
            let entry = self.runtimes.entry(&volume.target);
            let entry = entry.ok_or_else(|| failed("has too long a path".into()))?;
            leave(&entry.join(sandbox.as_str()))
                .map_err(|error| failed(format!("cannot have its sandbox recorded: {error}")))?;
        }
        Ok(())
    }

    /// The reason why the runtime would not find the recorded volume, if it would not.
    fn is_whole(&self, volume: &Published) -> Result<(), String> {
        if let Some(why) = &volume.custody.withheld {
            return Err(format!("is withheld: {why}"));
        }
        let again = "`csi-edge direct reconcile`, or a restart of csi-edge, does it again";
        let state = entry::compare(&self.runtimes.root(), volume);
        match state.map_err(|error| format!("is not known to be handed over: {}", chain(&error)))? {
            EntryState::Missing => Err(format!("is not handed over; {again}")),
            EntryState::Damaged(why) => Err(format!("has a damaged entry: {why}; {again}")),
            EntryState::Foreign(why) => {
                Err(format!("has somebody else's entry: {why}; remove it if nothing uses it"))
            }
            // The plugin may have another /dev than the host, where no device is.
            EntryState::Same => match entry::device(volume) {
                Ok(DevicePath::Another) => {
                    let device = volume.device.display();
                    Err(format!("is not handed over: {device} is another device now; {again}"))
                }
                // An error of the file system does not prove that it is another device.
                Ok(DevicePath::Same | DevicePath::Gone) | Err(_) => Ok(()),
            },
        }
    }

    /// Notes running containers, as after a restart of the plugin; it is too late to refuse them.
    fn note(&self, there: api::SynchronizeRequest) {
        let all = published::each(&self.state).unwrap_or_default();
        let all: Vec<_> = all.into_iter().flatten().collect();
        let is_typed = |container: &&api::Container| {
            there.pods.iter().any(|pod| {
                pod.id == container.pod_sandbox_id
                    && self.handlers.typed.contains(&pod.runtime_handler)
            })
        };
        let runs = |container: &&api::Container| container.state != api::CONTAINER_STOPPED;
        for container in there.containers.iter().filter(is_typed).filter(runs) {
            if let Err(refused) = self.uses.admit(container, &all) {
                let container = &container.name;
                warn!(container, %refused, "a container runs that would not be made");
            }
            for volume in all.iter().filter(|volume| is_used(container, volume)) {
                let noted = sandboxes::note(&self.state, volume, &container.pod_sandbox_id);
                if let Err(error) = noted {
                    let volume = &volume.volume_id;
                    warn!(volume, %error, "not noted which sandbox has it");
                }
            }
        }
    }
}

/// The refusal of a container whose volumes were not looked at in time.
fn late() -> NriError {
    let why = "it is not known in time who has the direct volumes of this container; is the node \
               overloaded, or a device or file server dead?";
    NriError(Code::Unavailable, why.into())
}

/// True if a container has a mount of a volume.
fn is_used(container: &api::Container, volume: &Published) -> bool {
    let is_at = [&volume.target, &volume.target_as_given];
    let mut sources = container.mounts.iter().map(|mount| Path::new(&mount.source));
    sources.any(|source| is_at.iter().any(|target| *target == source))
}

/// Creates an empty file unless it is there. It is whole as soon as it has its name.
fn leave(path: &Path) -> std::io::Result<()> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made.and_then(|mut file| file.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn bytes(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}
