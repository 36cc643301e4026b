//! Asks the runtime that has a volume for the statistics of its file system, or to grow it.
//!
//! A live socket of a shim identifies the runtime, never a name. No number comes from the host,
//! where the volume is not mounted at the target. The backends are pure; only this file does I/O.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use parking_lot::Mutex;
use proto::csi::direct::DeviceKind;

use super::backend::{Reject, Runtime, ShimRequest};
use super::error::Error;
use super::http::{Failure, Reply, exchange};
use super::kata_go::KataGo;
use super::kata_rs::KataRs;
use super::mount_info;
use super::mount_info::Root;
use super::reference::Reference;
use super::sandbox;
use super::sandbox::Sandbox;
use super::stats::Stats;
use crate::format::superblock::{Superblock, device_size};
use crate::records::published::{PublicationState, Published};

/// The time limit for one answer of a shim, as in Kata's own client.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// A resize may take this many times as long: the guest writes its new parts.
const RESIZE: u32 = 20;

/// The directories of this host's runtimes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The directory of the contract's entries.
    pub entries: PathBuf,
    /// The sandboxes of Kata's Go runtime.
    pub kata_go: PathBuf,
    /// The sandboxes of Kata's runtime-rs.
    pub kata_rs: PathBuf,
    /// The sandboxes of runtimes that serve our own contract.
    pub reference: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            entries: mount_info::ROOT.into(),
            kata_go: "/run/vc/sbs".into(),
            kata_rs: "/run/kata".into(),
            reference: "/run/edge-csi/sandboxes".into(),
        }
    }
}

/// The holder of a volume.
pub enum VolumeSandbox<'a> {
    /// Nobody can have it: it has no entry.
    NotHandedOver,
    /// It is handed over, and no runtime that left its sandbox's id is alive. A runtime that leaves
    /// none, such as runtime-rs, may have it all the same.
    Nobody {
        /// Sandboxes that had it.
        stale: Vec<Sandbox>,
    },
    /// A sandbox whose shim accepts connections.
    Live {
        /// Its runtime.
        runtime: &'a dyn Runtime,
        /// Its id.
        sandbox: Sandbox,
    },
}

/// The runtimes of this host.
pub struct Runtimes {
    entries: PathBuf,
    all: Vec<Box<dyn Runtime>>,
    patience: Duration,
    /// The names of those that have grown a volume, since csi-edge began.
    grew: Mutex<BTreeSet<&'static str>>,
}

impl Default for Runtimes {
    fn default() -> Self {
        Self::new(Roots::default(), PATIENCE)
    }
}

impl Runtimes {
    /// The runtimes with these roots. An answer may take `patience`, a resize twenty times as long.
    pub fn new(roots: Roots, patience: Duration) -> Self {
        let Roots { entries, kata_go, kata_rs, reference } = roots;
        let go: Box<dyn Runtime> = Box::new(KataGo { root: kata_go });
        let all =
            vec![go, Box::new(KataRs { root: kata_rs }), Box::new(Reference { root: reference })];
        Self { entries, all, patience, grew: Mutex::default() }
    }

    /// The directory of the entries.
    pub fn root(&self) -> Root {
        Root::new(self.entries.clone())
    }

    /// The path of a target's entry. `None` if the target is too long to have one.
    pub fn entry(&self, target: &Path) -> Option<PathBuf> {
        mount_info::entry_name(target).ok().map(|name| self.entries.join(name))
    }

    /// The targets of all entries, whoever wrote them; undecodable names are skipped.
    ///
    /// # Errors
    /// The file system's; a missing directory has no entries.
    pub fn targets(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(&self.entries) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        let decoded = names.iter().filter_map(|name| URL_SAFE.decode(name.as_encoded_bytes()).ok());
        Ok(decoded.map(|bytes| OsString::from_vec(bytes).into()).collect())
    }

    /// Finds the holder of the volume.
    ///
    /// # Errors
    /// Its entry cannot be read, so this is not known.
    pub async fn holder(&self, volume: &Published) -> Result<VolumeSandbox<'_>, Error> {
        let Some(entry) = self.entry(&volume.target) else {
            return Ok(VolumeSandbox::NotHandedOver);
        };
        let mut recorded = match sandbox::recorded(&entry) {
            // What is there instead of a directory is nobody's sandbox.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                if volume.custody.sandboxes.is_empty() {
                    return Ok(VolumeSandbox::NotHandedOver);
                }
                Vec::new()
            }
            Err(source) => return Err(unread(volume, &entry, source)),
            Ok(recorded) => recorded,
        };
        // While it is unpublished its entry is gone, and its guest may run.
        let before = volume.custody.sandboxes.iter().filter_map(|id| Sandbox::parse(id));
        recorded.extend(before);
        for sandbox in &recorded {
            for runtime in &self.all {
                if sandbox::listens(&runtime.socket(sandbox)).await {
                    return Ok(VolumeSandbox::Live {
                        runtime: runtime.as_ref(),
                        sandbox: sandbox.clone(),
                    });
                }
            }
        }
        Ok(VolumeSandbox::Nobody { stale: recorded })
    }

    /// The statistics of the volume, as its guest sees it.
    ///
    /// # Errors
    /// Nobody has it, or its runtime does not tell.
    pub async fn stats(&self, volume: &Published) -> Result<Stats, Error> {
        match self.holder(volume).await? {
            VolumeSandbox::Live { runtime, sandbox } => {
                let size =
                    if volume.kind == DeviceKind::Block { size(volume).await? } else { u64::MAX };
                self.live_stats(volume, runtime, &sandbox, size).await
            }
            VolumeSandbox::Nobody { stale } => {
                Err(Error::NoSandbox { volume: volume.volume_id.clone(), stale: stale.len() })
            }
            VolumeSandbox::NotHandedOver => Err(Error::NotHandedOver {
                volume: volume.volume_id.clone(),
                target: volume.target.clone(),
            }),
        }
    }

    async fn live_stats(
        &self,
        volume: &Published,
        runtime: &dyn Runtime,
        sandbox: &Sandbox,
        size: u64,
    ) -> Result<Stats, Error> {
        let talk = Talk { volume, runtime, sandbox, what: "say the statistics of" };
        let reply = talk.ask(runtime.stats(path(volume)?), self.patience).await?;
        runtime.read_stats(&reply, size).map_err(|answer| talk.failed(answer))
    }

    /// Has the volume's sandbox grow the file system to the device, which the driver has grown
    /// before. Returns the bytes.
    ///
    /// A kubelet asks this of a running pod, too, when it was started again. It goes on with the
    /// pod only after OK and [`Error::NotInGuest`]. So whatever a runtime answers is one of these,
    /// unless it has grown volumes and fails for once.
    ///
    /// # Errors
    /// The file system does not have them.
    pub async fn expand(&self, volume: &Published, required: u64) -> Result<u64, Error> {
        if volume.kind != DeviceKind::Block {
            let why = "its device is none of the host's, so its size is not known here".into();
            let cannot = Error::Cannot { runtime: "of any kind", what: "grow", why };
            return Err(not_in_guest(volume)(cannot));
        }
        let size = size(volume).await.map_err(not_in_guest(volume))?;
        if size < required {
            return Err(Error::TooSmall {
                volume: volume.volume_id.clone(),
                bytes: size,
                required,
            });
        }
        // It may have been grown before it was handed over, and the kubelet asks after that. It
        // never shrinks.
        if let Some(bytes) = filled(volume, size).await.map_err(not_in_guest(volume))? {
            return Ok(bytes);
        }
        let holder = self.holder(volume).await.map_err(not_in_guest(volume))?;
        // Even without an entry a guest may run. Nothing that was ever handed over is written to
        // here; `format::grow` grows it before the next hand-over.
        let VolumeSandbox::Live { runtime, sandbox } = holder else {
            let (volume, advice) = (volume.volume_id.clone(), advice(volume));
            return Err(Error::NotInGuest { volume, advice, source: None });
        };
        // Its container runs, if these are told.
        let before = self.live_stats(volume, runtime, &sandbox, size).await;
        let before = before.map_err(not_in_guest(volume))?.bytes.total;
        match self.expand_live(volume, runtime, &sandbox, (before, size)).await {
            Ok(bytes) => {
                self.grew.lock().insert(runtime.name());
                Ok(bytes)
            }
            Err(error) if is_passing(&error) && self.grew.lock().contains(runtime.name()) => {
                let volume = volume.volume_id.clone();
                Err(Error::NotThisTime { volume, source: error.into() })
            }
            Err(error) => Err(not_in_guest(volume)(error)),
        }
    }

    async fn expand_live(
        &self,
        volume: &Published,
        runtime: &dyn Runtime,
        sandbox: &Sandbox,
        (before, size): (u64, u64),
    ) -> Result<u64, Error> {
        let talk = Talk { volume, runtime, sandbox, what: "grow" };
        let reply = talk.ask(runtime.resize(path(volume)?, size), self.patience * RESIZE).await?;
        runtime.read_resize(&reply).map_err(|answer| talk.failed(answer))?;
        self.grown(volume, runtime, sandbox, before, size).await
    }

    /// Checks that the guest sees the growth: more bytes than before, or a file system that fills
    /// its device. The latter means an earlier growth whose answer was lost.
    async fn grown(
        &self,
        volume: &Published,
        runtime: &dyn Runtime,
        sandbox: &Sandbox,
        before: u64,
        size: u64,
    ) -> Result<u64, Error> {
        let bytes = self.live_stats(volume, runtime, sandbox, size).await?.bytes.total;
        if bytes > before || filled(volume, size).await?.is_some() {
            return Ok(size);
        }
        let runtime = runtime.name();
        let volume = volume.volume_id.clone();
        Err(Error::NotGrown { runtime, volume, bytes, size })
    }
}

/// One question to one shim.
struct Talk<'a> {
    volume: &'a Published,
    runtime: &'a dyn Runtime,
    sandbox: &'a Sandbox,
    what: &'static str,
}

impl Talk<'_> {
    async fn ask(&self, ask: ShimRequest, patience: Duration) -> Result<Reply, Error> {
        let socket = self.runtime.socket(self.sandbox);
        let source = match exchange(&socket, (ask.method, &ask.target), ask.body, patience).await {
            Ok(reply) => return Ok(reply),
            Err(source) => source,
        };
        // A shim that died during the request has not refused.
        if let (Failure::Closed(_), Some(why)) = (&source, self.runtime.without_a_word())
            && sandbox::listens(&socket).await
        {
            return Err(self.failed(Reject::Cannot(why.into())));
        }
        let runtime = self.runtime.name();
        let sandbox = self.sandbox.clone();
        let what = self.what;
        Err(Error::Silent { runtime, sandbox, what, volume: self.volume.volume_id.clone(), source })
    }

    fn failed(&self, answer: Reject) -> Error {
        let runtime = self.runtime.name();
        let sandbox = self.sandbox.clone();
        let what = self.what;
        match answer {
            Reject::Cannot(why) => Error::Cannot { runtime, what, why },
            Reject::NoContainer => {
                Error::NoContainer { runtime, sandbox, volume: self.volume.volume_id.clone() }
            }
            source => Error::Answered {
                runtime,
                sandbox,
                what,
                volume: self.volume.volume_id.clone(),
                source,
            },
        }
    }
}

/// True unless the runtime cannot grow volumes, or nobody in the sandbox has this one any more.
fn is_passing(error: &Error) -> bool {
    !matches!(error, Error::Cannot { .. } | Error::NoContainer { .. })
}

/// The failure to grow a volume that only its guest could grow. None has one whose publication has
/// only begun.
fn not_in_guest(volume: &Published) -> impl Fn(Error) -> Error {
    let advice = advice(volume);
    let is_begun = volume.state == PublicationState::Begun;
    let volume = volume.volume_id.clone();
    move |source| match is_begun {
        true => source,
        false => {
            let volume = volume.clone();
            Error::NotInGuest { volume, advice, source: Some(source.into()) }
        }
    }
}

/// How the file system of a volume grows whose guest does not grow it.
fn advice(volume: &Published) -> &'static str {
    match volume.kind {
        DeviceKind::Block | DeviceKind::Vfio if volume.fstype == "ext4" => {
            "delete the pod: it grows before the next hand-over"
        }
        _ => "delete the pod, and grow the file system in the guest of the next one",
    }
}

/// The bytes of the volume's device, if it still is that device: names like `/dev/loop3` are
/// reused.
async fn size(volume: &Published) -> Result<u64, Error> {
    let device = volume.device.clone();
    let number = volume.number;
    // Opening a device may wait for it.
    let looking = tokio::task::spawn_blocking(move || {
        // 0 is the number of no device.
        let same = number == 0 || std::fs::metadata(&device)?.rdev() == number;
        Ok(if same { Some(device_size(&device)?) } else { None })
    });
    let size = looking.await.map_err(io::Error::from).flatten();
    let size = size.map_err(|source| unread(volume, &volume.device, source))?;
    size.ok_or_else(|| Error::AnotherDevice {
        volume: volume.volume_id.clone(),
        device: volume.device.clone(),
    })
}

/// The bytes of the volume's file system if it fills its device; none otherwise, or if not known.
async fn filled(volume: &Published, size: u64) -> Result<Option<u64>, Error> {
    let device = volume.device.clone();
    let looking = tokio::task::spawn_blocking(move || Superblock::at(&device)).await;
    let found = looking.map_err(io::Error::from).flatten();
    let found = found.map_err(|source| unread(volume, &volume.device, source))?;
    let fills = |found: &Superblock| found.is(&volume.fstype, &volume.uuid) && found.fills(size);
    Ok(found.filter(fills).map(|found| found.bytes))
}

fn path(volume: &Published) -> Result<&str, Error> {
    let bad = || unread(volume, &volume.device, io::ErrorKind::InvalidFilename.into());
    volume.device.to_str().ok_or_else(bad)
}

fn unread(volume: &Published, path: &Path, source: io::Error) -> Error {
    Error::Read { volume: volume.volume_id.clone(), path: path.to_owned(), source }
}
