//! What a call of the node's front asks for, if it is about a direct volume: by what the volume's context says when it
//! is staged and published, and by our records afterwards, since later calls have no context.
//!
//! All that is wrong with a request is said here, before anything is done.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::VolumeCapability;
use proto::csi::direct;
use proto::csi::direct::{Contradiction, Direct, Mount};
use proto::csi::wire;
use proto::error::{BadRequest, Error};
use proto::names::DriverName;

use crate::records::published;
use crate::records::published::{Published, State};
use crate::records::staged;
use crate::runtimes::mount_info::{DRIVER, VOLUME};
use crate::volume::options;

/// What is to be done with a direct volume.
pub(super) enum Work {
    /// The driver stages the volume of this id; the message is the driver's.
    Stage(String, Vec<u8>),
    /// It is handed over.
    Publish(Box<Publish>),
    /// It is taken back.
    Unpublish(Published),
    /// The driver unstages it, once nothing of it is published; the message is the driver's.
    Unstage(String, Vec<Published>, Vec<u8>),
    /// The driver grows the device of a volume that nobody has; the message is the caller's.
    GrowStaged(Bytes),
    /// The driver says how it is; the message is the driver's.
    Health(Vec<u8>),
    /// Its runtime knows; the message is the caller's.
    Runtime(Published, Bytes),
}

/// A volume that is to be handed over.
pub(super) struct Publish {
    pub(super) volume_id: String,
    /// As the kubelet says it.
    pub(super) target: PathBuf,
    pub(super) staging: PathBuf,
    pub(super) direct: Direct,
    pub(super) mount: Mount,
    pub(super) options: Vec<String>,
    pub(super) metadata: BTreeMap<String, String>,
    /// The request for the driver, without a target.
    pub(super) message: Vec<u8>,
}

/// Whether calls of this method may be about a direct volume.
pub(super) fn concerns(method: &str) -> bool {
    matches!(
        method,
        "NodeStageVolume"
            | "NodeUnstageVolume"
            | "NodePublishVolume"
            | "NodeUnpublishVolume"
            | "NodeGetVolumeStats"
            | "NodeExpandVolume"
            | "NodeGetVolumeHealth"
    )
}

/// What is to be done for a call; none if it is not a direct one.
pub(super) fn work(
    state: Option<&Path>,
    driver: &DriverName,
    method: &'static str,
    message: &Bytes,
) -> Result<Option<Work>, Error> {
    match method {
        "NodeStageVolume" => stage(state, driver, message),
        "NodePublishVolume" => publish(state, driver, message),
        _ => of_record(state, driver, method, message),
    }
}

// All of these requests have the volume's id in field 1; those with a path only have it in field 2.
const VOLUME_ID: u32 = 1;
const PATH: u32 = 2;

/// The volume that a call is about.
pub(super) fn volume(method: &'static str, message: &Bytes) -> Result<String, Error> {
    Ok(text(method, message, VOLUME_ID)?.unwrap_or_default())
}

/// A field of text; of several the last counts.
fn text(method: &'static str, message: &Bytes, number: u32) -> Result<Option<String>, Error> {
    let mut text = None;
    for field in wire::fields(message) {
        let field = field.map_err(malformed(method))?;
        let content = field.content.filter(|_| field.number == number);
        text = content.map(|content| String::from_utf8_lossy(content).into_owned()).or(text);
    }
    Ok(text)
}

/// Refuses a DeleteVolume of a volume that is handed over at this node.
///
/// # Errors
/// Where it is, or that it is not known.
pub(super) fn may_be_deleted(
    state: Option<&Path>,
    driver: &DriverName,
    message: &Bytes,
) -> Result<(), Error> {
    let volume = volume("DeleteVolume", message)?;
    match records(state, driver, &volume)?.first() {
        // CSI: "Volume in use".
        Some(there) => {
            let at = there.target.display();
            Err(refused(
                &volume,
                format!("it is not deleted while it is handed over at {at}; unpublish it first"),
            ))
        }
        None => Ok(()),
    }
}

fn malformed(method: &'static str) -> impl Fn(wire::Malformed) -> Error {
    move |source| Error::BadRequest { method, source: source.into() }
}

fn decoded<M: Message + Default>(method: &'static str, message: &Bytes) -> Result<M, Error> {
    let bad = |source| Error::BadRequest { method, source: BadRequest::Protobuf(source) };
    M::decode(message.clone()).map_err(bad)
}

fn asked(method: &'static str, source: Contradiction) -> Error {
    Error::DirectAsked { method, source }
}

fn refused(volume: &str, why: impl Into<String>) -> Error {
    Error::DirectRefused { volume: volume.to_owned(), why: why.into() }
}

/// What the context of a volume that comes says; none if it is not to be direct.
fn directed(
    (state, driver): (Option<&Path>, &DriverName),
    method: &'static str,
    (volume, message): (&str, &Bytes),
    capability: Option<&VolumeCapability>,
) -> Result<Option<(Direct, Mount, Vec<u8>)>, Error> {
    // Both methods have places.
    let Some(places) = direct::places(method) else { return Ok(None) };
    let ours = direct::asked(message, places).map_err(malformed(method))?;
    let Some(direct) = Direct::read(&ours).map_err(|source| asked(method, source))? else {
        if records(state, driver, volume)?.is_empty() {
            return Ok(None);
        }
        let why = "it is handed over directly now, and this call does not ask for that; unpublish it first";
        return Err(refused(volume, why));
    };
    if state.is_none() {
        let why = "csi-edge has no directory to remember it in; give it one with --state";
        return Err(refused(volume, why));
    }
    let capability = capability.ok_or(Error::Missing(method, "a volume capability"))?;
    let mount = direct.mount(capability).map_err(|source| asked(method, source))?;
    let message = direct::for_driver(message, places).map_err(malformed(method))?;
    Ok(Some((direct, mount, message)))
}

fn stage(
    state: Option<&Path>,
    driver: &DriverName,
    message: &Bytes,
) -> Result<Option<Work>, Error> {
    const METHOD: &str = "NodeStageVolume";
    let request: csi::NodeStageVolumeRequest = decoded(METHOD, message)?;
    let (volume, capability) = (request.volume_id, request.volume_capability.as_ref());
    let directed = directed((state, driver), METHOD, (&volume, message), capability)?;
    Ok(directed.map(|(_, _, message)| Work::Stage(volume, message)))
}

fn publish(
    state: Option<&Path>,
    driver: &DriverName,
    message: &Bytes,
) -> Result<Option<Work>, Error> {
    const METHOD: &str = "NodePublishVolume";
    let request: csi::NodePublishVolumeRequest = decoded(METHOD, message)?;
    let (volume_id, capability) = (request.volume_id, request.volume_capability.as_ref());
    let directed = directed((state, driver), METHOD, (&volume_id, message), capability)?;
    let Some((direct, mount, message)) = directed else { return Ok(None) };
    let bad_option = |why| asked(METHOD, Contradiction::MountOption(why));
    let options = options::for_guest(&mount.flags, request.readonly).map_err(bad_option)?;
    let metadata =
        metadata(driver, &volume_id, &direct, &mount).map_err(|source| asked(METHOD, source))?;
    let publish = Publish {
        volume_id,
        target: request.target_path.into(),
        staging: request.staging_target_path.into(),
        options,
        metadata,
        message: untargeted(&message).map_err(malformed(METHOD))?,
        direct,
        mount,
    };
    Ok(Some(Work::Publish(Box::new(publish))))
}

/// What the runtime is told besides. Never secrets, and nothing of the pod: the file is plain text.
fn metadata(
    driver: &DriverName,
    volume: &str,
    direct: &Direct,
    mount: &Mount,
) -> Result<BTreeMap<String, String>, Contradiction> {
    let mut metadata: BTreeMap<_, _> = [(DRIVER, driver.as_str()), (VOLUME, volume)]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    if mount.group.is_empty() {
        return Ok(metadata);
    }
    let group: u32 = mount.group.parse().map_err(|_| Contradiction::Group(mount.group.clone()))?;
    // The Go runtime takes 0 for an error; a new file system is root's own.
    if group != 0 {
        metadata.insert("fsGroup".into(), group.to_string());
        let change = direct.group_change.map(|change| change.as_str().to_owned());
        metadata.extend(change.map(|change| ("fsGroupChangePolicy".to_owned(), change)));
    }
    Ok(metadata)
}

// NodePublishVolumeRequest's fields.
const TARGET: u32 = 4;
const READ_ONLY: u32 = 6;

/// A request for the driver without a target, and for writing: what is blank is formatted, and a guest that is to
/// read only is told so in its options.
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

/// The same with a target.
pub(super) fn targeted(message: &[u8], target: &Path) -> Vec<u8> {
    let mut message = message.to_vec();
    wire::append(&mut message, &[TARGET], target.as_os_str().as_encoded_bytes());
    message
}

fn records(
    state: Option<&Path>,
    driver: &DriverName,
    volume: &str,
) -> Result<Vec<Published>, Error> {
    let Some(state) = state else { return Ok(Vec::new()) };
    published::of(state, driver.as_str(), volume).map_err(unknown(volume))
}

fn is_staged(state: Option<&Path>, driver: &DriverName, volume: &str) -> Result<bool, Error> {
    let Some(state) = state else { return Ok(false) };
    staged::is(state, driver.as_str(), volume).map_err(unknown(volume))
}

fn unknown(volume: &str) -> impl Fn(io::Error) -> Error {
    move |source| Error::DirectNotYet {
        volume: volume.to_owned(),
        wanted: "known to be published directly or not: the state directory cannot be read, so it is not",
        source: source.into(),
    }
}

/// What is asked of a volume that is handed over.
fn of_record(
    state: Option<&Path>,
    driver: &DriverName,
    method: &'static str,
    message: &Bytes,
) -> Result<Option<Work>, Error> {
    let volume = volume(method, message)?;
    let path: PathBuf = text(method, message, PATH)?.unwrap_or_default().into();
    let (records, staged) = (records(state, driver, &volume)?, is_staged(state, driver, &volume)?);
    if method == "NodeUnstageVolume" {
        let ours = staged || !records.is_empty();
        return Ok(ours.then(|| Work::Unstage(volume, records, message.to_vec())));
    }
    // Whichever of its paths is named: what is handed over is grown by its guest, and the driver has a block volume.
    let grow = method == "NodeExpandVolume";
    let ours = staged || !records.is_empty();
    let at = |record: &Published| {
        let named = record.target == path || record.target_as_given == path;
        named || (grow && record.state == State::Published)
    };
    let Some(record) = records.into_iter().find(at) else {
        let grow = ours && grow;
        return Ok(grow.then(|| Work::GrowStaged(message.clone())));
    };
    Ok(Some(match method {
        "NodeUnpublishVolume" => Work::Unpublish(record),
        "NodeGetVolumeHealth" => {
            let private = record.private_path.as_os_str().as_encoded_bytes();
            let edited =
                wire::edit(message, &[PATH], |_| Ok(wire::Edit::Replace(private.to_vec())));
            let edited = edited.map_err(malformed(method))?.unwrap_or_else(|| message.to_vec());
            Work::Health(edited)
        }
        _ => Work::Runtime(record, message.clone()),
    }))
}

#[cfg(test)]
mod tests;
