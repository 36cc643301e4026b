//! Two nodes that have the same id, which has no home: one of them lies, and csi-cloud cannot know
//! which one. Or one node alone claims an id that nobody ever made.

use std::time::Duration;

use anyhow::Context;
use drivers::testdriver::{Fault, Times};
use futures_util::future::try_join_all;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::capability;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use tokio::time::{Instant, interval};
use tonic::Code;

use super::fleet::{Fleet, SECRET, secrets};
use super::harm::Watch;
use super::report::Row;
use super::served::Served;
use super::world::{TRANSPORTS, World};

/// Ids of each kind.
const ROUNDS: u64 = 100;
const SHORT: u64 = 3;
/// What the slower claimant waits before it answers.
const SLOWER: Duration = Duration::from_millis(50);
/// How long one node alone claims ids, and how often another one.
const TIME: Duration = Duration::from_secs(60);
const SHORT_TIME: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(100);
const LIAR: &str = "a-liar";
const OWNER: &str = "owner";
const ASKED: &str = "an error that names both, no delete answered OK";
const ALONE_ASKED: &str =
    "no secret, UNAVAILABLE but for deletes, log <= 100 KiB, honest p99 <= 2 x, <= 128 MiB";
const SHORT_ALONE_ASKED: &str = "no secret, UNAVAILABLE but for deletes, log <= 100 KiB, \
    honest p99 <= 2 x or + 100 ms, <= 128 MiB";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let rounds = if short { SHORT } else { ROUNDS };
    for faster in [LIAR, OWNER] {
        let claims = TRANSPORTS.map(|transport| claimed(transport, faster, rounds));
        rows.extend(try_join_all(claims).await?);
    }
    // One after the other: times are measured.
    for transport in TRANSPORTS {
        rows.push(claimed_alone(transport, short).await?);
    }
    Ok(())
}

/// One node has what was made past csi-cloud. Nobody else says that it is that node's.
async fn claimed_alone(transport: &'static str, short: bool) -> anyhow::Result<Row> {
    let time = if short { SHORT_TIME } else { TIME };
    let mut stand = World::stand().await?;
    stand.log("info");
    let mut fleet = Fleet::on(stand, transport, "scope = \"node\"", &[]).await?;
    let served = Served::new(&mut fleet.world).await?;
    fleet.join_all(&[LIAR, OWNER]).await?;
    fleet.listed(&[LIAR, OWNER]).await?;
    let watch = Watch::begin(&fleet.world, &served, time).await?;
    let (harm, claimed) = tokio::join!(watch.end(), Alone::repeated(&fleet, time));
    let (harm, Alone { calls, refused, other }) = (harm?, claimed?);
    let got = fleet.who_got(SECRET);
    served.stop().await?;
    fleet.stop().await?;
    let other = other.unwrap_or_default();
    Ok(Row {
        case: "an id that one node alone claims".into(),
        transport,
        asked: if short { SHORT_ALONE_ASKED } else { ALONE_ASKED },
        measured: format!(
            "{refused} of {calls} UNAVAILABLE, {} with secrets{other}, {harm}",
            got.len()
        ),
        ok: refused == calls && got.is_empty() && harm.is_small(short),
    })
}

/// What calls about ids were answered that one node alone claims.
#[derive(Default)]
struct Alone {
    calls: usize,
    refused: usize,
    /// The first answer that is none of these.
    other: Option<String>,
}

impl Alone {
    /// Calls about one id after the other for so long.
    async fn repeated(fleet: &Fleet, time: Duration) -> anyhow::Result<Self> {
        let mut seen = Self::default();
        let mut ticks = interval(EVERY);
        let end = Instant::now() + time;
        for round in 1.. {
            ticks.tick().await;
            if Instant::now() >= end {
                break;
            }
            seen.claimed(fleet, round).await?;
        }
        Ok(seen)
    }

    async fn claimed(&mut self, fleet: &Fleet, round: u64) -> anyhow::Result<()> {
        fleet.node(LIAR)?.driver.count_from(round * 10);
        let ids = Ids::made(&fleet.direct(LIAR).await?, round).await?;
        for (method, request) in ids.calls_that_need_a_home() {
            let status = fleet.front.call(method.path(), &request).await?.status();
            self.calls += 1;
            if status.code() == Code::Unavailable {
                self.refused += 1;
            } else {
                self.other.get_or_insert_with(|| format!("; {}: {status}", method.name()));
            }
        }
        // They may be OK, if all nodes say so.
        for (method, request) in ids.deletes() {
            fleet.front.call(method.path(), &request).await?;
        }
        Ok(())
    }
}

/// What calls about the ids were answered.
#[derive(Default)]
struct Seen {
    calls: usize,
    /// Errors that may pass and name both nodes.
    both: usize,
    deleted: usize,
    /// The first answer that is none of these.
    other: Option<String>,
}

async fn claimed(
    transport: &'static str,
    faster: &'static str,
    rounds: u64,
) -> anyhow::Result<Row> {
    let mut fleet = Fleet::new(transport, "scope = \"node\"").await?;
    fleet.join_all(&[LIAR, OWNER]).await?;
    fleet.listed(&[LIAR, OWNER]).await?;
    let slower = if faster == LIAR { OWNER } else { LIAR };
    fleet.node(slower)?.driver.inject("*", Fault::Delay(SLOWER), Times::All);
    let mut seen = Seen::default();
    for round in 1..=rounds {
        let ids = Ids::new(&fleet, round).await?;
        seen.add(&fleet, &ids).await?;
    }
    let got = fleet.who_got(SECRET);
    fleet.stop().await?;
    let Seen { calls, both, deleted, other } = seen;
    let other = other.map(|other| format!(", {other}")).unwrap_or_default();
    Ok(Row {
        case: format!("two claimants, the {} is faster", faster.trim_start_matches("a-")),
        transport,
        asked: ASKED,
        measured: format!("{both} of {calls} name both, {deleted} deletes OK{other}"),
        ok: both == calls && deleted == 0 && got.is_empty(),
    })
}

/// The ids of things that a node has, made past csi-cloud.
#[derive(PartialEq, Eq)]
struct Ids {
    volume: String,
    snapshot: String,
    group: String,
}

impl Ids {
    /// Those of things that both nodes have.
    async fn new(fleet: &Fleet, round: u64) -> anyhow::Result<Self> {
        let mut ids = None;
        for name in [LIAR, OWNER] {
            fleet.node(name)?.driver.count_from(round * 10);
            let made = Self::made(&fleet.direct(name).await?, round).await?;
            anyhow::ensure!(ids.as_ref().is_none_or(|ids| *ids == made), "the ids differ");
            ids = Some(made);
        }
        ids.context("no node")
    }

    async fn made(driver: &RawClient, round: u64) -> anyhow::Result<Self> {
        let name = format!("past-{round}");
        let request = csi::CreateVolumeRequest {
            name: name.clone(),
            volume_capabilities: vec![capability()],
            ..Default::default()
        };
        let answer = made(driver, Method::CreateVolume, &request).await?;
        let volume = csi::CreateVolumeResponse::decode(&*answer)?.volume.unwrap_or_default();
        let volume = volume.volume_id;
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume.clone(),
            name: name.clone(),
            ..Default::default()
        };
        let answer = made(driver, Method::CreateSnapshot, &request).await?;
        let snapshot = csi::CreateSnapshotResponse::decode(&*answer)?.snapshot;
        let snapshot = snapshot.unwrap_or_default().snapshot_id;
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name,
            source_volume_ids: vec![volume.clone()],
            ..Default::default()
        };
        let answer = made(driver, Method::CreateVolumeGroupSnapshot, &request).await?;
        let group = csi::CreateVolumeGroupSnapshotResponse::decode(&*answer)?.group_snapshot;
        Ok(Self { volume, snapshot, group: group.unwrap_or_default().group_snapshot_id })
    }

    fn expand(&self) -> csi::ControllerExpandVolumeRequest {
        csi::ControllerExpandVolumeRequest {
            volume_id: self.volume.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 31, limit_bytes: 0 }),
            secrets: secrets(),
            ..Default::default()
        }
    }

    /// Calls that carry secrets, or copy what the node says to have.
    fn calls_that_need_a_home(&self) -> [(Method, Vec<u8>); 4] {
        let volume_id = self.volume.clone();
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: LIAR.into(),
            volume_capability: Some(capability()),
            secrets: secrets(),
            ..Default::default()
        };
        let snapshot = csi::CreateSnapshotRequest {
            source_volume_id: volume_id.clone(),
            name: format!("of-{volume_id}"),
            ..Default::default()
        };
        let with_secrets = csi::CreateSnapshotRequest {
            name: format!("secret-of-{volume_id}"),
            secrets: secrets(),
            ..snapshot.clone()
        };
        [
            (Method::ControllerExpandVolume, self.expand().encode_to_vec()),
            (Method::ControllerPublishVolume, publish.encode_to_vec()),
            (Method::CreateSnapshot, snapshot.encode_to_vec()),
            (Method::CreateSnapshot, with_secrets.encode_to_vec()),
        ]
    }

    fn deletes(&self) -> [(Method, Vec<u8>); 3] {
        let snapshot =
            csi::DeleteSnapshotRequest { snapshot_id: self.snapshot.clone(), secrets: secrets() };
        let group = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: self.group.clone(),
            secrets: secrets(),
            ..Default::default()
        };
        let volume =
            csi::DeleteVolumeRequest { volume_id: self.volume.clone(), secrets: secrets() };
        [
            (Method::DeleteSnapshot, snapshot.encode_to_vec()),
            (Method::DeleteVolumeGroupSnapshot, group.encode_to_vec()),
            (Method::DeleteVolume, volume.encode_to_vec()),
        ]
    }
}

async fn made(
    driver: &RawClient,
    method: Method,
    request: &impl Message,
) -> anyhow::Result<Vec<u8>> {
    let answer = driver.call(method.path(), &request.encode_to_vec()).await?;
    Ok(answer.message().with_context(|| answer.status().to_string())?.to_vec())
}

impl Seen {
    /// Makes each call about the ids.
    async fn add(&mut self, fleet: &Fleet, ids: &Ids) -> anyhow::Result<()> {
        let volume_id = ids.volume.clone();
        let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
        self.saw(&fleet.call(Method::ControllerGetVolume, &get).await?, false);
        self.saw(&fleet.call(Method::ControllerExpandVolume, &ids.expand()).await?, false);
        let unpublish = csi::ControllerUnpublishVolumeRequest {
            volume_id,
            node_id: OWNER.into(),
            secrets: secrets(),
        };
        self.saw(&fleet.call(Method::ControllerUnpublishVolume, &unpublish).await?, true);
        for (method, request) in ids.deletes() {
            self.saw(&fleet.front.call(method.path(), &request).await?, true);
        }
        Ok(())
    }

    fn saw(&mut self, answer: &RawAnswer, deletes: bool) {
        self.calls += 1;
        let status = answer.status();
        let names_both = [LIAR, OWNER].iter().all(|name| status.message().contains(name));
        if status.code() == Code::Unavailable && names_both {
            self.both += 1;
        } else if status.code() == Code::Ok && deletes {
            self.deleted += 1;
        } else {
            self.other.get_or_insert_with(|| status.to_string());
        }
    }
}
