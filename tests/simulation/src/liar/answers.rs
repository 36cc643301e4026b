//! What a lying edge answers: a claim of what honest nodes have, a refusal, or garbage.

use bytes::Bytes;
use http::{HeaderValue, Response};
use prost::Message;
use proto::csi::{self, Id, Key, List, Method, frame, wire};
use proto::http2::body::Body;
use proto::http2::forward::{Answer, NOT_DISPATCHED};
use tonic::{Code, Status};

use super::heard::HeardCall;
use crate::check::ENDS;
use crate::dice::Dice;
use crate::keys::{LIAR, NODES};
use crate::liar_record::LiarRecord;
use crate::model::repeater::NEVER;
use drivers::testdriver::TOPOLOGY_KEY;

/// Codes of refusals.
const CODES: [Code; 8] = [
    Code::Unimplemented,
    Code::Unavailable,
    Code::NotFound,
    Code::Internal,
    Code::Aborted,
    Code::ResourceExhausted,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
];
/// How ids begin that nobody else has.
const FRESH: &str = "lie-";
/// More than a node may have.
const TOO_MANY: usize = 150;

/// The ids that the liar knows.
#[derive(Default)]
pub(super) struct Ids {
    /// Of volumes.
    pub(super) volumes: Vec<String>,
    /// Of volumes that have a home.
    pub(super) homed: Vec<String>,
    /// Of deleted volumes.
    pub(super) gone: Vec<String>,
    /// Of snapshots.
    pub(super) snapshots: Vec<String>,
    /// Of deleted snapshots.
    pub(super) gone_snapshots: Vec<String>,
    /// Those that it answered creates with.
    pub(super) own: Vec<String>,
}

impl Ids {
    /// Whether no node has this id.
    fn has_nobody(&self, id: &str) -> bool {
        let is_gone = |ids: &[String]| ids.iter().any(|gone| gone == id);
        id.starts_with(NEVER) || is_gone(&self.gone) || is_gone(&self.gone_snapshots)
    }
}

/// One of these ids.
pub(super) fn id(dice: &mut Dice, ids: &[String]) -> Option<String> {
    ids.get(dice.below(ids.len())).cloned()
}

/// A refusal with this code, which says that no driver got the call.
pub(super) fn refusal(code: Code) -> Response<Body> {
    let mut response = Status::new(code, "a lie").into_http();
    response.headers_mut().insert(&NOT_DISPATCHED, HeaderValue::from_static("1"));
    response
}

/// Whether csi-cloud asks all nodes this.
pub(super) fn is_question(method: Method) -> bool {
    method.lists().is_some()
        || matches!(method, Method::ValidateVolumeCapabilities | Method::GetCapacity)
}

/// The answer of a node that only has what is its own.
pub(super) fn decent(
    dice: &mut Dice,
    call: &HeardCall,
    ids: &Ids,
    record: &LiarRecord,
) -> Response<Body> {
    let is_own = |id: &Id| ids.own.iter().any(|own| own == id.text());
    let message = match call.method.key(&call.message) {
        Ok(Key::Create { name, .. }) => {
            let volume_id = format!("{FRESH}{}", dice.between(1_000, u64::MAX));
            record.make(&name, &volume_id);
            let volume = csi::Volume { volume_id, capacity_bytes: 1 << 40, ..Default::default() };
            csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec()
        }
        Ok(Key::Capacity(_)) => {
            let available_capacity = 1 << 40;
            csi::GetCapacityResponse { available_capacity, ..Default::default() }.encode_to_vec()
        }
        Ok(Key::Home(id)) if !is_own(&id) && call.method.lists().is_none() => {
            return refusal(Code::NotFound);
        }
        Ok(Key::Snapshot { .. }) => return refusal(Code::ResourceExhausted),
        Ok(Key::All) if call.method == Method::listing(List::Volumes) => own_volumes(ids),
        _ => Vec::new(),
    };
    Answer::of(frame::frame(&message)).response()
}

fn own_volumes(ids: &Ids) -> Vec<u8> {
    let is_fresh = |id: &&String| id.starts_with(FRESH);
    let entries = ids.own.iter().filter(is_fresh).map(|volume_id| {
        let volume = csi::Volume { volume_id: volume_id.clone(), ..Default::default() };
        csi::list_volumes_response::Entry { volume: Some(volume), status: None }
    });
    let entries = entries.collect();
    csi::ListVolumesResponse { entries, next_token: String::new() }.encode_to_vec()
}

/// A lie as the answer to a call. What it says to have made is recorded.
pub(super) fn lie(
    dice: &mut Dice,
    call: &HeardCall,
    ids: &Ids,
    record: &LiarRecord,
) -> Response<Body> {
    let is_end = ENDS.contains(&call.method.name());
    let message = match dice.below(10) {
        0..=4 if is_end => return refusal(dice.pick(&CODES)),
        0 | 1 => return refusal(dice.pick(&CODES)),
        2 => (0..9).map(|_| dice.pick(&[0, 8, 10, 26, 255])).collect(),
        3 => Vec::new(),
        _ => claim(dice, call, ids, record),
    };
    Answer::of(frame::frame(&message)).response()
}

/// An OK that says that the liar has what it was asked about, and more.
fn claim(dice: &mut Dice, call: &HeardCall, ids: &Ids, record: &LiarRecord) -> Vec<u8> {
    if call.method == Method::listing(List::Volumes) {
        return volumes(dice, ids, record);
    }
    if call.method == Method::listing(List::Snapshots) {
        return snapshots(dice, ids, record);
    }
    match call.method.key(&call.message) {
        Ok(Key::Create { name, .. }) => created_volume(dice, &name, ids, record),
        Ok(Key::Snapshot { name, volumes }) => {
            let id = made(dice, &ids.snapshots, ids);
            record.make(&name, &id);
            let source = volumes.first().map(Id::text).unwrap_or_default();
            let snapshot = csi::Snapshot {
                snapshot_id: id,
                source_volume_id: source.to_owned(),
                size_bytes: 1,
                ready_to_use: dice.chance(70),
                ..Default::default()
            };
            csi::CreateSnapshotResponse { snapshot: Some(snapshot) }.encode_to_vec()
        }
        Ok(Key::Capacity(_)) => capacity(dice),
        key => {
            if let Ok(Key::Home(id)) = key
                && ids.has_nobody(id.text())
            {
                record.count("claim of what nobody has", 1);
            }
            let expanded = csi::ControllerExpandVolumeResponse {
                capacity_bytes: i64::MAX,
                ..Default::default()
            };
            let volume = csi::Volume {
                volume_id: id(dice, &ids.volumes).unwrap_or_default(),
                ..Default::default()
            };
            let volume = csi::CreateVolumeResponse { volume: Some(volume) };
            let any =
                [Bytes::new(), expanded.encode_to_vec().into(), volume.encode_to_vec().into()];
            dice.pick(&any).into()
        }
    }
}

/// The id of something that it says to have made: most often one that nobody has.
fn made(dice: &mut Dice, honest: &[String], ids: &Ids) -> String {
    let fresh = format!("{FRESH}{}", dice.below(40));
    let known = match dice.below(8) {
        0 | 1 => id(dice, honest),
        2 => id(dice, &ids.gone),
        3 => id(dice, &ids.own),
        4 if dice.chance(20) => Some(String::new()),
        _ => None,
    };
    known.unwrap_or(fresh)
}

fn created_volume(dice: &mut Dice, name: &str, ids: &Ids, record: &LiarRecord) -> Vec<u8> {
    // What no node has claimed is believed to be the maker's (docs/security/README.md, "What
    // nothing stops"). So it names volumes of honest nodes that have homes.
    let id = made(dice, &ids.homed, ids);
    let node = dice.pick(&[LIAR, LIAR, NODES[0], "nowhere"]);
    let accessible_topology = match dice.below(4) {
        0 => Vec::new(),
        _ => vec![csi::Topology { segments: [(TOPOLOGY_KEY.into(), node.into())].into() }],
    };
    let volume = csi::Volume {
        volume_id: id.clone(),
        capacity_bytes: dice.pick(&[0, 1 << 30, 1 << 40, i64::MAX, -1]),
        accessible_topology,
        ..Default::default()
    };
    let mut message = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    let mut id = id;
    if dice.chance(20)
        && let Some(other) = self::id(dice, &ids.homed)
    {
        // Protobuf merges the two, so the id is the last one.
        let second = csi::Volume { volume_id: other.clone(), ..Default::default() };
        wire::append(&mut message, &[1], &second.encode_to_vec());
        id = other;
    }
    record.make(name, &id);
    message
}

fn capacity(dice: &mut Dice) -> Vec<u8> {
    let available_capacity = dice.pick(&[i64::MAX, -1, 0, 1 << 50]);
    csi::GetCapacityResponse { available_capacity, ..Default::default() }.encode_to_vec()
}

/// Of these ids some, with inventions, and at times with those that have ended.
fn listed(
    dice: &mut Dice,
    (honest, gone): (&[String], &[String]),
    own: &[String],
    record: &LiarRecord,
) -> Vec<String> {
    let mut listed: Vec<_> = honest.iter().filter(|_| dice.chance(60)).cloned().collect();
    listed.extend(own.iter().filter(|_| dice.chance(60)).cloned());
    let most = dice.pick(&[1, 2, 5, 5, TOO_MANY]);
    listed.extend((0..most).map(|_| format!("{FRESH}{}", dice.below(most))));
    if dice.chance(20) {
        record.count("ended id in a list of the liar", gone.len() as u64);
        listed.extend_from_slice(gone);
    }
    listed.extend(dice.chance(10).then(|| format!("{NEVER}{}", dice.below(5))));
    if dice.chance(10) {
        listed.push(String::new());
    }
    listed
}

fn next_token(dice: &mut Dice) -> String {
    dice.pick(&["", "", "", "", "again", "\u{1}"]).to_owned()
}

fn volumes(dice: &mut Dice, ids: &Ids, record: &LiarRecord) -> Vec<u8> {
    let node = dice.pick(&[LIAR, NODES[0]]);
    let listed = listed(dice, (&ids.volumes, &ids.gone), &ids.own, record);
    let entries = listed.into_iter().map(|volume_id| {
        let status =
            csi::list_volumes_response::VolumeStatus { published_node_ids: vec![node.into()] };
        let volume = csi::Volume { volume_id, capacity_bytes: 1, ..Default::default() };
        csi::list_volumes_response::Entry { volume: Some(volume), status: Some(status) }
    });
    let entries = entries.collect();
    csi::ListVolumesResponse { entries, next_token: next_token(dice) }.encode_to_vec()
}

fn snapshots(dice: &mut Dice, ids: &Ids, record: &LiarRecord) -> Vec<u8> {
    let listed = listed(dice, (&ids.snapshots, &ids.gone_snapshots), &ids.own, record);
    let entries = listed.into_iter().map(|snapshot_id| {
        let snapshot = csi::Snapshot { snapshot_id, ..Default::default() };
        csi::list_snapshots_response::Entry { snapshot: Some(snapshot) }
    });
    let entries = entries.collect();
    csi::ListSnapshotsResponse { entries, next_token: next_token(dice) }.encode_to_vec()
}
