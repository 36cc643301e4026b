//! Parses a call of the node's front into the work on a direct volume.
//!
//! The volume's context decides when it is staged and published; later calls have no context, so
//! the records decide. Every fault of a request is reported here, before anything is done.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use proto::control::not_taken::Pod;
use proto::csi;
use proto::csi::direct;
use proto::csi::direct::options;
use proto::csi::direct::options::GuestOptions;
use proto::csi::direct::{Contradiction, Direct, FileSystem, Mount};
use proto::csi::status::BadRequest;
use proto::csi::wire;
use proto::csi::{DirectCall, Method, NodeStep, VolumeCapability};
use proto::names::DriverName;
use tracing::{info, warn};

use super::runtime_class::{Decided, POD_UID, pod_uid};
use crate::error::{Error, HANDED_OVER, not_yet};
use crate::records::journal::Journal;
use crate::records::published;
use crate::records::published::{PublicationState, Published};
use crate::records::staged;
use crate::runtimes::mount_info::{DRIVER, VOLUME};
use crate::volume::target::climbs;

/// The work to do with a direct volume.
pub(super) enum Work {
    /// Stage the volume of this id; the message is the driver's.
    Stage(String, Vec<u8>),
    /// Hand it over.
    Publish(Box<Publish>),
    /// Take it back.
    Unpublish(Published),
    /// Unstage it, once nothing of it is published; the message is the driver's.
    Unstage(String, Vec<Published>, Vec<u8>),
    /// Grow it in its guest; the message is the caller's.
    Grow(Published, Bytes),
    /// Grow the device of a volume that is staged only; the message is the caller's.
    GrowStaged(Bytes),
    /// Ask the driver for its health; the message is the driver's.
    Health(Vec<u8>),
    /// Ask its guest for statistics.
    Stats(Published),
}

/// A volume that is to be handed over.
pub(super) struct Publish {
    pub(super) volume_id: String,
    /// The target as the kubelet names it.
    pub(super) target: PathBuf,
    pub(super) staging: PathBuf,
    pub(super) direct: Direct,
    pub(super) mount: Mount,
    pub(super) options: Vec<String>,
    pub(super) metadata: BTreeMap<String, String>,
    /// The pod, if the kubelet told.
    pub(super) pod: Option<Pod>,
    /// The pod's uid, which the target has too; empty if nothing names it.
    pub(super) pod_uid: String,
    /// The request for the driver, without a target.
    pub(super) message: Vec<u8>,
}

/// A call for a driver of this node.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) state: Option<&'a Path>,
    pub(super) driver: &'a DriverName,
    pub(super) method: Method,
    pub(super) message: &'a Bytes,
}

// All of these requests have the volume's id in field 1; those with a path only have it in field 2.
const VOLUME_ID: u32 = 1;
const PATH: u32 = 2;

/// True if calls of this method may be about a direct volume on its node.
pub(super) fn concerns(method: Method) -> bool {
    matches!(method.direct(), Some(DirectCall::Node(_)))
}

impl Request<'_> {
    /// The work of the call; none if its volume is not a direct one.
    ///
    /// # Errors
    /// The request is malformed, or is refused for this volume as things are. It also fails if the
    /// records cannot be read.
    pub(super) fn work(&self) -> Result<Option<Work>, Error> {
        let Some(DirectCall::Node(step)) = self.method.direct() else { return Ok(None) };
        match step {
            NodeStep::Stage => self.stage(),
            NodeStep::Publish => self.publish(),
            NodeStep::Unstage => self.unstage(),
            NodeStep::Unpublish => Ok(self.published()?.map(Work::Unpublish)),
            NodeStep::Stats => Ok(self.published()?.map(Work::Stats)),
            NodeStep::Expand => self.expand(),
            NodeStep::Health => self.health(),
        }
    }

    /// The decision about the volume that the call publishes. None for other calls, and if nothing
    /// was left open.
    ///
    /// # Errors
    /// The request is malformed.
    pub(super) fn decided(&self) -> Result<Option<Decided>, Error> {
        if self.method.direct() != Some(DirectCall::Node(NodeStep::Publish)) {
            return Ok(None);
        }
        let settings = self.settings()?;
        let Some(is_direct) = direct::decision(&settings) else { return Ok(None) };
        let request: csi::NodePublishVolumeRequest = self.decoded()?;
        let target = Path::new(&request.target_path);
        let pod = pod_uid(&request.volume_context, target);
        let is_earlier = direct::is_ordinary_since_before(&settings);
        Ok(Some(Decided { volume: request.volume_id, pod, is_direct, is_earlier }))
    }

    /// The message for the driver of an ordinary volume that a decision made one; none if it passes
    /// as it is.
    ///
    /// # Errors
    /// The request is malformed.
    pub(super) fn without_decision(&self) -> Result<Option<Bytes>, Error> {
        let Some(places) = self.method.places() else { return Ok(None) };
        if direct::decision(&self.settings()?) != Some(false) {
            return Ok(None);
        }
        let message = direct::without_settings(self.message, places);
        Ok(message.map_err(|source| self.malformed(source))?.map(Bytes::from))
    }

    /// The settings of direct volumes in the context.
    fn settings(&self) -> Result<BTreeMap<String, String>, Error> {
        let Some(places) = self.method.places() else { return Ok(BTreeMap::new()) };
        direct::settings(self.message, places).map_err(|source| self.malformed(source))
    }

    /// The target of a call that names one.
    ///
    /// # Errors
    /// The request is malformed.
    pub(super) fn target(&self) -> Result<Option<PathBuf>, Error> {
        Ok(match self.method.direct() {
            Some(DirectCall::Node(NodeStep::Publish)) => self.text(TARGET)?.map(PathBuf::from),
            Some(DirectCall::Node(NodeStep::Stage | NodeStep::Unstage)) => None,
            Some(
                DirectCall::Create
                | DirectCall::Capacity
                | DirectCall::Attach
                | DirectCall::Validate
                | DirectCall::Expand
                | DirectCall::Delete
                | DirectCall::Node(
                    NodeStep::Unpublish | NodeStep::Stats | NodeStep::Health | NodeStep::Expand,
                ),
            )
            | None => Some(self.path()?),
        })
    }

    /// The volume that the call is about.
    ///
    /// # Errors
    /// The request is malformed.
    pub(super) fn volume(&self) -> Result<String, Error> {
        Ok(self.text(VOLUME_ID)?.unwrap_or_default())
    }

    /// A field of text; of several the last counts.
    fn text(&self, number: u32) -> Result<Option<String>, Error> {
        let mut text = None;
        for field in wire::fields(self.message) {
            let field = field.map_err(|source| self.malformed(source))?;
            let content = field.content.filter(|_| field.number == number);
            text = content.map(|content| String::from_utf8_lossy(content).into_owned()).or(text);
        }
        Ok(text)
    }

    fn stage(&self) -> Result<Option<Work>, Error> {
        let request: csi::NodeStageVolumeRequest = self.decoded()?;
        let volume = request.volume_id;
        let directed = self.directed(&volume, request.volume_capability.as_ref())?;
        if directed.is_some() {
            let staging = Path::new(&request.staging_target_path);
            self.is_plain(staging, &self.records(&volume)?)?;
        }
        Ok(directed.map(|(_, _, message)| Work::Stage(volume, message)))
    }

    fn publish(&self) -> Result<Option<Work>, Error> {
        let request: csi::NodePublishVolumeRequest = self.decoded()?;
        let volume_id = request.volume_id;
        let directed = self.directed(&volume_id, request.volume_capability.as_ref())?;
        let Some((direct, mount, message)) = directed else { return Ok(None) };
        let file_system = mount.file_system.unwrap_or_default();
        let found = options::for_guest(&mount.flags, file_system, request.readonly);
        let found = found.map_err(|source| self.refused_as(source))?;
        if !found.dropped.is_empty() {
            let words = found.dropped.join(",");
            info!(volume = volume_id, words, "mount options of the host are not for the guest");
        }
        let metadata = metadata(self.driver, &volume_id, &direct, (&mount, &found));
        let metadata = metadata.map_err(|source| self.refused_as(source))?;
        let target = PathBuf::from(request.target_path);
        let staging = PathBuf::from(request.staging_target_path);
        let records = self.records(&volume_id)?;
        [&target, &staging].into_iter().try_for_each(|path| self.is_plain(path, &records))?;
        let there = records.iter().find(|record| {
            is_at(record, &target) && says_the_same(record, &found.options, &metadata)
        });
        let (options, metadata) = match there {
            Some(there) => (there.options.clone(), there.metadata.clone()),
            None => (found.options, metadata),
        };
        let publish = Publish {
            pod: pod(&request.volume_context),
            pod_uid: pod_uid(&request.volume_context, &target),
            volume_id,
            target,
            staging,
            options,
            metadata,
            message: untargeted(&message).map_err(|source| self.malformed(source))?,
            direct,
            mount,
        };
        Ok(Some(Work::Publish(Box::new(publish))))
    }

    fn unstage(&self) -> Result<Option<Work>, Error> {
        let volume = self.volume()?;
        let records = self.records(&volume)?;
        let is_direct = self.is_staged(&volume)? || !records.is_empty();
        Ok(is_direct.then(|| Work::Unstage(volume, records, self.message.to_vec())))
    }

    /// The path that the call names does not count: the guest grows what is handed over, and the
    /// driver has a block volume.
    fn expand(&self) -> Result<Option<Work>, Error> {
        let volume = self.volume()?;
        let path = self.path()?;
        let records = self.records(&volume)?;
        let is_direct = self.is_staged(&volume)? || !records.is_empty();
        let mut records = records.into_iter();
        let record = records
            .find(|record| record.state == PublicationState::Published || is_at(record, &path));
        let message = || self.message.clone();
        Ok(match record {
            Some(record) => Some(Work::Grow(record, message())),
            None => is_direct.then(|| Work::GrowStaged(message())),
        })
    }

    fn health(&self) -> Result<Option<Work>, Error> {
        let Some(record) = self.published()? else { return Ok(None) };
        let private = record.private_path.as_os_str().as_encoded_bytes();
        let replace = |_: &[u8]| Ok(wire::Edit::Replace(private.to_vec()));
        let edited = wire::edit(self.message, &[PATH], replace);
        let edited = edited.map_err(|source| self.malformed(source))?;
        Ok(Some(Work::Health(edited.unwrap_or_else(|| self.message.to_vec()))))
    }

    /// The record of the volume at the path that the call names.
    fn published(&self) -> Result<Option<Published>, Error> {
        let path = self.path()?;
        let records = self.records(&self.volume()?)?;
        Ok(records.into_iter().find(|record| is_at(record, &path)))
    }

    fn path(&self) -> Result<PathBuf, Error> {
        Ok(self.text(PATH)?.unwrap_or_default().into())
    }

    /// The settings in a volume's context; none if the volume is not to be direct.
    fn directed(
        &self,
        volume: &str,
        capability: Option<&VolumeCapability>,
    ) -> Result<Option<(Direct, Mount, Vec<u8>)>, Error> {
        // Both methods have places.
        let Some(places) = self.method.places() else { return Ok(None) };
        let asked = direct::settings(self.message, places);
        let asked = asked.map_err(|source| self.malformed(source))?;
        let read = Direct::read(&asked).map_err(|source| self.refused_as(source))?;
        let Some(direct) = read else {
            if self.records(volume)?.is_empty() {
                return Ok(None);
            }
            let why = "it is handed over directly now, and this call does not ask for that; \
                       unpublish it first";
            return Err(refused(volume, why));
        };
        if self.state.is_none() {
            let why = "csi-edge has no directory to remember it in; give it one with --state";
            return Err(refused(volume, why));
        }
        let missing = Error::Missing(self.method.name(), "a volume capability");
        let mount = direct.mount(capability.ok_or(missing)?);
        let mount = mount.map_err(|source| self.refused_mount(volume, source))?;
        let message = direct::for_driver(self.message, places);
        let message = message.map_err(|source| self.malformed(source))?;
        Ok(Some((direct, mount, message)))
    }

    fn records(&self, volume: &str) -> Result<Vec<Published>, Error> {
        let Some(state) = self.state else { return Ok(Vec::new()) };
        published::of(state, self.driver.as_str(), volume).map_err(unknown(volume))
    }

    fn is_staged(&self, volume: &str) -> Result<bool, Error> {
        let Some(state) = self.state else { return Ok(false) };
        staged::is(state, self.driver.as_str(), volume).map_err(unknown(volume))
    }

    /// Refuses a path that climbs; finally only if nothing of the volume is handed over.
    fn is_plain(&self, path: &Path, records: &[Published]) -> Result<(), Error> {
        if !climbs(path) {
            return Ok(());
        }
        let path = path.display().to_string();
        let Some(record) = records.first() else {
            return Err(Error::Climbs { method: self.method.name(), path });
        };
        Err(not_yet(&record.volume_id, HANDED_OVER)(format!("the path {path:?} climbs with ..")))
    }

    fn decoded<M: Message + Default>(&self) -> Result<M, Error> {
        let method = self.method.name();
        let bad = |source| Error::BadRequest { method, source: BadRequest::Protobuf(source) };
        M::decode(self.message.clone()).map_err(bad)
    }

    fn malformed(&self, source: wire::Malformed) -> Error {
        Error::BadRequest { method: self.method.name(), source: source.into() }
    }

    /// A refusal, unless a guest may have the volume already. Older versions gave any option to
    /// guests, and a kubelet does not unpublish after a final failure.
    fn refused_mount(&self, volume: &str, source: Contradiction) -> Error {
        let is_option = matches!(source, Contradiction::MountOption { .. });
        match self.records(volume) {
            Ok(records) if is_option && !records.is_empty() => not_yet(volume, HANDED_OVER)(source),
            Err(unknown) if is_option => unknown,
            _ => self.refused_as(source),
        }
    }

    fn refused_as(&self, source: Contradiction) -> Error {
        Error::DirectAsked { method: self.method.name(), source }
    }
}

/// Refuses a DeleteVolume while the volume is handed over at this node.
///
/// # Errors
/// Where it is handed over, or that this is not known.
pub(super) fn may_be_deleted(request: &Request<'_>) -> Result<(), Error> {
    let volume = request.volume()?;
    let records = request.records(&volume)?;
    let Some(there) = records.first() else { return Ok(()) };
    // CSI: "Volume in use".
    let at = there.target.display();
    let why = format!("it is not deleted while it is handed over at {at}; unpublish it first");
    Err(refused(&volume, why))
}

/// Forgets the content of a volume that its driver has deleted. Until then the journal keeps a
/// blank device from being formatted in the volume's place.
pub(super) fn forget_deleted(request: &Request<'_>) {
    let (Some(state), Ok(volume)) = (request.state, request.volume()) else { return };
    let driver = request.driver;
    if let Err(error) = Journal::of(state, driver.as_str(), &volume).forget() {
        warn!(%driver, volume, %error, "the journal of a deleted volume is left in direct/volumes");
    }
}

/// Whether the volume is staged or handed over directly at this node.
///
/// # Errors
/// This is not known.
pub(super) fn is_direct(state: &Path, driver: &DriverName, volume: &str) -> Result<bool, Error> {
    let staged = staged::is(state, driver.as_str(), volume).map_err(unknown(volume))?;
    let records = published::of(state, driver.as_str(), volume).map_err(unknown(volume))?;
    Ok(staged || !records.is_empty())
}

fn refused(volume: &str, why: impl Into<String>) -> Error {
    Error::DirectRefused { volume: volume.to_owned(), why: why.into() }
}

fn is_at(record: &Published, path: &Path) -> bool {
    record.target == path || record.target_as_given == path
}

// What a kubelet adds to the context for a CSIDriver with podInfoOnMount.
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";

/// The pod that a volume's context names.
fn pod(context: &HashMap<String, String>) -> Option<Pod> {
    let named = |key: &str| context.get(key).cloned();
    let pod =
        Pod { namespace: named(POD_NAMESPACE)?, name: named(POD_NAME)?, uid: named(POD_UID)? };
    Some(pod).filter(Pod::is_valid)
}

const GROUP: &str = "fsGroup";
const GROUP_CHANGE: &str = "fsGroupChangePolicy";

/// The further metadata for the runtime: no secrets and nothing of the pod, because the file is
/// plain text.
fn metadata(
    driver: &DriverName,
    volume: &str,
    direct: &Direct,
    (mount, found): (&Mount, &GuestOptions),
) -> Result<BTreeMap<String, String>, Contradiction> {
    let mut metadata = BTreeMap::new();
    metadata.insert(DRIVER.to_owned(), driver.to_string());
    metadata.insert(VOLUME.to_owned(), volume.to_owned());
    if mount.group.is_empty() {
        return Ok(metadata);
    }
    let group: u32 = mount.group.parse().map_err(|_| Contradiction::Group(mount.group.clone()))?;
    if found.is_read_only() {
        let why = "the volume is read-only, and an agent that changes its group would fail";
        info!(volume, group, why, "fsGroup is not for the guest");
        return Ok(metadata);
    }
    // The Go runtime takes 0 for an error; a new file system belongs to root.
    if group != 0 {
        metadata.insert(GROUP.to_owned(), group.to_string());
        let change = direct.group_change.map(|change| change.as_str().to_owned());
        metadata.extend(change.map(|change| (GROUP_CHANGE.to_owned(), change)));
    }
    Ok(metadata)
}

/// True if a record has these options and groups, or those that an older version made of the same
/// request. That gave guests options of the host, and fsGroup with a read-only volume.
fn says_the_same(
    record: &Published,
    options: &[String],
    metadata: &BTreeMap<String, String>,
) -> bool {
    let file_system: FileSystem = record.fstype.parse().unwrap_or_default();
    let Ok(found) = options::for_guest(&record.options, file_system, false) else { return false };
    let mut expected = record.metadata.clone();
    if found.is_read_only() {
        expected.retain(|key, _| key != GROUP && key != GROUP_CHANGE);
    }
    found.options == options && expected == *metadata
}

// Fields of NodePublishVolumeRequest.
const TARGET: u32 = 4;
const READ_ONLY: u32 = 6;

/// A request for the driver, without a target and for writing: a blank device is formatted, and the
/// guest's options make it read-only.
fn untargeted(message: &[u8]) -> Result<Vec<u8>, wire::Malformed> {
    let mut edited = Vec::with_capacity(message.len());
    for field in wire::fields(message) {
        let field = field?;
        if field.number != TARGET && field.number != READ_ONLY {
            edited.extend_from_slice(field.raw);
        }
    }
    Ok(edited)
}

/// The same request with a target.
pub(super) fn targeted(message: &[u8], target: &Path) -> Vec<u8> {
    let mut message = message.to_vec();
    wire::append(&mut message, &[TARGET], target.as_os_str().as_encoded_bytes());
    message
}

fn unknown(volume: &str) -> impl Fn(io::Error) -> Error {
    move |source| Error::DirectNotYet {
        volume: volume.to_owned(),
        wanted: "known to be published directly or not: the state directory cannot be read, so it \
                 is not",
        source: source.into(),
    }
}

#[cfg(test)]
mod tests;
