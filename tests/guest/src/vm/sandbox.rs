//! A VM runtime's sandbox: its work on a pod's mount, and the socket of the contract in
//! `docs/reference/runtime-contract.md`. The guest provides all numbers at the time of each
//! request.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto::host::tasks::Tasks;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

use super::machine::{Ground, Machine};
use super::protocol::{Disk, GuestRequest, Usage};
use crate::agent::Group;
use crate::contract::{Found, Info, OciMount, Runtime, detect};
use crate::scene::Scene;
use crate::shim;
use crate::shim::{parameter, reply};
use harness::wait::STOP;

/// Where the volume is mounted in its guest.
pub const AT: &str = "/run/volume";
/// The volume's disk in its guest.
const SERIAL: &str = "volume";
/// The same device, attached a second time.
const AGAIN: &str = "again";

#[derive(Deserialize)]
struct Resize {
    device: String,
    bytes: u64,
}

/// A guest with a volume.
struct Inner {
    machine: Machine,
    /// The published volume.
    info: Info,
    /// Its device in the guest.
    disk: Disk,
}

/// A sandbox with one container and one volume.
pub struct Sandbox {
    inner: Arc<Mutex<Inner>>,
    socket: Socket,
}

/// The task that serves the socket. It holds the machine too, so it must end with the sandbox.
struct Socket(Tasks);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Sandbox {
    /// Starts a machine, and in it a container as in [`Sandbox::with`].
    ///
    /// # Errors
    /// It does not come up, or cannot have the volume.
    pub async fn start(
        scene: &Scene,
        ground: &Ground,
        runtime: Runtime,
        target: &Path,
    ) -> anyhow::Result<Self> {
        let machine = Machine::start(ground, scene.stand.dir(), &[]).await?;
        Self::with(machine, scene, runtime, target).await
    }

    /// Starts a container with a mount of this target, which csi-edge has published, in a machine
    /// that runs.
    ///
    /// # Errors
    /// The mount is no direct volume, or the guest cannot have it.
    pub async fn with(
        mut machine: Machine,
        scene: &Scene,
        runtime: Runtime,
        target: &Path,
    ) -> anyhow::Result<Self> {
        // As containerd writes it, its symlinks resolved.
        let source = target.canonicalize()?;
        let entry =
            base64::engine::general_purpose::URL_SAFE.encode(source.as_os_str().as_encoded_bytes());
        let mount = OciMount {
            destination: "/data".into(),
            kind: Some("bind".into()),
            source,
            options: ["rbind", "rprivate", "rw"].map(str::to_owned).to_vec(),
        };
        let info = match detect(runtime, &scene.root(), &mount) {
            Found::Direct(info) => info,
            other => bail!("{} is no direct volume: {other:?}", target.display()),
        };
        let device = info.device.as_deref().context("no device")?;
        let disk = machine.plug(Path::new(device), SERIAL).await?;
        let kind = info.fstype.clone().context("no file system")?;
        let source = disk.path.display().to_string();
        let options = info.options.clone();
        let group = Group::of(&info.metadata)?;
        let mounting = GuestRequest::Mount { source, kind, options, group, at: AT.into() };
        let _: Value = machine.ask(&mounting).await?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        std::fs::File::create(scene.root().join(entry).join(&id))?;
        let socket = scene.sandboxes().join(id).join("direct.sock");
        std::fs::create_dir_all(socket.parent().context("no directory")?)?;
        let listener = UnixListener::bind(socket)?;
        let inner = Arc::new(Mutex::new(Inner { machine, info, disk }));
        let tasks = Tasks::default();
        tasks.spawn_until_stop("sandbox", accept(listener, inner.clone(), tasks.clone()));
        Ok(Self { inner, socket: Socket(tasks) })
    }

    /// Sends the guest another request.
    ///
    /// # Errors
    /// It could not.
    pub async fn ask<T: DeserializeOwned>(&self, ask: &GuestRequest) -> anyhow::Result<T> {
        self.inner.lock().await.machine.ask(ask).await
    }

    /// Writes a file of the volume so often, and has it on the disk.
    ///
    /// # Errors
    /// The guest's.
    pub async fn write(&self, name: &str, text: &str, times: usize) -> anyhow::Result<()> {
        let ask =
            GuestRequest::Write { path: Path::new(AT).join(name), text: text.to_owned(), times };
        self.ask::<Value>(&ask).await.map(drop)
    }

    /// The content of a file of the volume.
    ///
    /// # Errors
    /// The guest's.
    pub async fn read(&self, name: &str) -> anyhow::Result<String> {
        self.ask(&GuestRequest::Read { path: Path::new(AT).join(name) }).await
    }

    /// From now on makes and deletes files of the volume all the time.
    ///
    /// # Errors
    /// The guest's.
    pub async fn churn(&self) -> anyhow::Result<()> {
        self.ask::<Value>(&GuestRequest::Churn { below: Path::new(AT).join("churn") })
            .await
            .map(drop)
    }

    /// How full the volume is.
    ///
    /// # Errors
    /// The guest's.
    pub async fn usage(&self) -> anyhow::Result<Usage> {
        self.ask(&GuestRequest::Usage { at: AT.into() }).await
    }

    /// The guest's disk.
    ///
    /// # Errors
    /// It has none.
    pub async fn disk(&self) -> anyhow::Result<Disk> {
        let disk: Option<Disk> = self.ask(&GuestRequest::Disk { serial: SERIAL.into() }).await?;
        disk.context("the guest has no such disk")
    }

    /// Attaches the volume's device a second time and mounts that, as runtime-rs does for a
    /// container that is started again while another one has the volume.
    ///
    /// # Errors
    /// The guest's kernel refuses it, or QEMU does.
    pub async fn attach_again(&self) -> anyhow::Result<()> {
        let mut inner = self.inner.lock().await;
        let device = inner.info.device.clone().context("no device")?;
        let disk = inner.machine.plug(Path::new(&device), AGAIN).await?;
        let kind = inner.info.fstype.clone().context("no file system")?;
        let options = inner.info.options.clone();
        let (source, at) = (disk.path.display().to_string(), "/run/again".into());
        let mounting = GuestRequest::Mount { source, kind, options, group: None, at };
        inner.machine.ask::<Value>(&mounting).await.map(drop)
    }

    /// The container ends: the volume is unmounted in the guest and taken out of the machine, which
    /// then ends.
    ///
    /// # Errors
    /// The guest's, or QEMU's.
    pub async fn stop(self) -> anyhow::Result<()> {
        let mut inner = self.end().await?;
        let _: Value = inner.machine.ask(&GuestRequest::Unmount { at: AT.into() }).await?;
        inner.machine.unplug(SERIAL).await?;
        inner.machine.stop().await
    }

    /// QEMU is killed.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.end().await?.machine.kill().await
    }

    /// Serves no more.
    async fn end(self) -> anyhow::Result<Inner> {
        self.socket.0.finish(STOP).await;
        let inner =
            Arc::try_unwrap(self.inner).ok().context("the sandbox is being asked for something")?;
        Ok(inner.into_inner())
    }
}

async fn accept(listener: UnixListener, inner: Arc<Mutex<Inner>>, tasks: Tasks) {
    while let Ok((stream, _)) = listener.accept().await {
        tasks.spawn_until_stop("sandbox connection", serve(stream, inner.clone()));
    }
}

async fn serve(stream: UnixStream, inner: Arc<Mutex<Inner>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let inner = inner.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let answer = answer(&mut *inner.lock().await, &parts, &body).await;
            let failed = |error: anyhow::Error| {
                reply(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}").replace('\n', " "))
            };
            Ok::<_, hyper::Error>(answer.unwrap_or_else(failed))
        }
    });
    // Whoever asks finds out that the connection has broken.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    inner: &mut Inner,
    parts: &http::request::Parts,
    body: &Bytes,
) -> anyhow::Result<Response<Full<Bytes>>> {
    match (&parts.method, parts.uri.path()) {
        (&Method::GET, "/v1/stats") => {
            ensure!(parameter(&parts.uri, "device") == inner.info.device, "it has another device");
            let Usage { total, free, inodes, inodes_free } =
                inner.machine.ask(&GuestRequest::Usage { at: AT.into() }).await?;
            let used = total - free;
            let inodes_used = inodes - inodes_free;
            let volume = shim::GuestFileSystem { total, used, inodes, inodes_used, grows: true };
            Ok(reply(StatusCode::OK, shim::statistics(&volume).to_string()))
        }
        (&Method::POST, "/v1/resize") => {
            let Resize { device, bytes } = serde_json::from_slice(body)?;
            ensure!(Some(device) == inner.info.device, "it has another device");
            inner.machine.grown(SERIAL, bytes).await?;
            let device = inner.disk.path.clone();
            let at = AT.into();
            let kind = inner.info.fstype.clone().unwrap_or_default();
            let _: Value = inner.machine.ask(&GuestRequest::Grow { device, kind, at }).await?;
            Ok(reply(StatusCode::NO_CONTENT, ""))
        }
        _ => Ok(reply(StatusCode::NOT_FOUND, "")),
    }
}
