//! Answers what the container runtime asks about one container.
//!
//! An unknown method is UNIMPLEMENTED, as ttrpc has it; the runtime asks only for the events it was
//! told.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tonic::Code;
use tracing::{info, warn};

use super::api;
use super::api::{CreateContainerRequest, CreateContainerResponse, PodSandbox};
use super::guard;
use super::guard::{Handlers, Verdict};
use super::ttrpc::{Request, Response, Status};
use crate::records::published;
use crate::records::published::Published;
use crate::runtimes::Runtimes;
use crate::runtimes::mount_info::FILE;
use crate::runtimes::sandbox::Sandbox;

/// The plugin's name at the runtime.
pub const NAME: &str = "edge-csi-direct";

/// What the plugin decides by.
#[derive(Clone)]
pub struct Plugin {
    /// The state directory of csi-edge, with the records.
    pub state: PathBuf,
    /// Two digits: the plugin's place among other plugins.
    pub index: String,
    /// Which handlers run VMs.
    pub handlers: Handlers,
    /// Where the entries are.
    pub runtimes: Arc<Runtimes>,
}

/// A refusal with its gRPC code.
#[derive(Debug)]
pub struct Refusal(Code, String);

impl Plugin {
    pub(super) async fn answer(&self, request: Request) -> Response {
        let done = if request.service == api::PLUGIN_SERVICE {
            self.call(&request.method, request.payload).await
        } else {
            Err(Refusal(
                Code::Unimplemented,
                format!("there is no service {} here", request.service),
            ))
        };
        match done {
            Ok(payload) => Response { status: None, payload },
            Err(Refusal(code, message)) => Response {
                status: Some(Status { code: code.into(), message }),
                payload: Bytes::new(),
            },
        }
    }

    async fn call(&self, method: &str, payload: Bytes) -> Result<Bytes, Refusal> {
        let bad = |error: prost::DecodeError| {
            Refusal(Code::InvalidArgument, format!("{method}: {error}"))
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
                Ok(bytes(&api::ConfigureResponse { events: api::CREATE_CONTAINER }))
            }
            // What runs already cannot be taken back.
            "Synchronize" => {
                let more = api::SynchronizeRequest::decode(payload).map_err(bad)?.more;
                Ok(bytes(&api::SynchronizeResponse { more }))
            }
            "CreateContainer" => {
                let request = CreateContainerRequest::decode(payload).map_err(bad)?;
                self.create(request).await.map(|answer| bytes(&answer))
            }
            "Shutdown" | "StateChange" => Ok(Bytes::new()),
            other => Err(Refusal(Code::Unimplemented, format!("{NAME} has no {other}"))),
        }
    }

    async fn create(
        &self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Refusal> {
        let pod = request.pod.unwrap_or_default();
        let container = request.container.unwrap_or_default();
        if !container.mounts.iter().any(guard::may_be_direct) {
            return Ok(CreateContainerResponse { adjust: None });
        }
        let plugin = self.clone();
        let told = pod.clone();
        let decided = tokio::task::spawn_blocking(move || {
            let verdict = plugin.decide(&told, &container)?;
            plugin.record(&told, &verdict).map(|()| verdict)
        });
        let unknown = |error: tokio::task::JoinError| Refusal(Code::Internal, error.to_string());
        let verdict = decided.await.map_err(unknown).flatten().inspect_err(|Refusal(_, why)| {
            warn!(pod = pod.name, namespace = pod.namespace, why, "a container is not made");
        })?;
        let mounts = verdict.mounts;
        let changed =
            (!mounts.is_empty()).then(|| api::ContainerAdjustment { mounts, ..Default::default() });
        Ok(CreateContainerResponse { adjust: changed })
    }

    fn decide(&self, pod: &PodSandbox, container: &api::Container) -> Result<Verdict, Refusal> {
        let state = self.state.display();
        // Without the records, a pod might write where its data is lost.
        let published: Vec<Published> = published::all(&self.state).map_err(|error| {
            Refusal(Code::Unavailable, format!("the records in {state} cannot be read: {error}"))
        })?;
        let handlers: &Handlers = &self.handlers;
        guard::decide(pod, container, &published, handlers)
            .map_err(|refused| Refusal(Code::FailedPrecondition, refused.to_string()))
    }

    /// Leaves the sandbox's id where Kata's Go runtime leaves it, for runtimes that do not.
    fn record(&self, pod: &PodSandbox, verdict: &Verdict) -> Result<(), Refusal> {
        for target in &verdict.targets {
            let failed = |why: String| {
                let target = target.display();
                Refusal(Code::FailedPrecondition, format!("the direct volume at {target} {why}"))
            };
            let entry = self.runtimes.entry(target).filter(|entry| entry.join(FILE).is_file());
            let again = "is not handed over; `csi-edge direct reconcile`, or a restart of \
                         csi-edge, does it again";
            let entry = entry.ok_or_else(|| failed(again.into()))?;
            let Some(sandbox) = Sandbox::parse(&pod.id) else {
                return Err(failed(format!("cannot go to a sandbox with the id {:?}", pod.id)));
            };
            leave(&entry.join(sandbox.as_str()))
                .map_err(|error| failed(format!("cannot have its sandbox recorded: {error}")))?;
        }
        Ok(())
    }
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
