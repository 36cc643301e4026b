//! Marked secrets in every RPC, and which nodes' drivers get them.

use std::collections::BTreeSet;

use anyhow::ensure;
use drivers::testdriver::TestDriver;
use futures_util::future::try_join_all;
use harness::filled::{Spec, Texts};
use prost::Message;
use proto::csi;
use proto::csi::Method;

use super::fleet::{Fleet, SECRET, made_at};
use super::report::Row;
use super::world::{DRIVER, TRANSPORTS};

/// The node that has all, or that is elected; by its name it is not the first.
const HOME: &str = "home";
const OTHERS: [&str; 2] = ["a-other", "z-other"];
/// An id that no node has.
const UNKNOWN: &str = "never-seen";
const ASKED: &str = "at the home or the elected node only";

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let spec = Spec::read()?;
    for scope in ["node", "shared"] {
        let rows_of = TRANSPORTS.map(|transport| marked(transport, scope, &spec));
        rows.extend(try_join_all(rows_of).await?);
    }
    Ok(())
}

async fn marked(transport: &'static str, scope: &'static str, spec: &Spec) -> anyhow::Result<Row> {
    let fleet = fleet(transport, scope).await?;
    let ids = Ids::new(&fleet).await?;
    fleet.forget();
    let mut at_home = BTreeSet::new();
    let mut elsewhere = BTreeSet::new();
    for ids in [&ids, &Ids::unknown()] {
        let field = |name: &str| ids.text(name);
        let texts = Texts { secret: SECRET, field: &field, map: None };
        for rpc in spec.rpcs() {
            fleet.forget();
            fleet.front.call(&rpc.path, &spec.fill(&rpc.request, &texts)).await?;
            for node in fleet.who_got(SECRET) {
                let nodes = if node == HOME { &mut at_home } else { &mut elsewhere };
                nodes.insert(rpc.name().to_owned());
            }
        }
    }
    fleet.stop().await?;
    let expected = expected(scope);
    let missing: Vec<_> = expected.iter().filter(|name| !at_home.contains(**name)).collect();
    let missing = if missing.is_empty() { String::new() } else { format!(", not {missing:?}") };
    Ok(Row {
        case: format!("marked secrets in {} RPCs, scope {scope}", spec.rpcs().len()),
        transport,
        asked: ASKED,
        measured: format!(
            "{} RPCs at it{missing}, {} elsewhere",
            at_home.len(),
            if elsewhere.is_empty() { "0".into() } else { format!("{elsewhere:?}") }
        ),
        ok: elsewhere.is_empty() && missing.is_empty(),
    })
}

async fn fleet(transport: &str, scope: &str) -> anyhow::Result<Fleet> {
    let controllers = if scope == "shared" { "controllers = [\"home\"]" } else { "" };
    let section = format!("scope = \"{scope}\"\n{controllers}");
    let mut fleet = Fleet::new(transport, &section).await?;
    if scope == "node" {
        let names = [OTHERS[0], HOME, OTHERS[1]];
        fleet.join_all(&names).await?;
        fleet.listed(&names).await?;
    } else {
        let first = TestDriver::new(DRIVER, OTHERS[0]);
        for name in [OTHERS[0], HOME, OTHERS[1]] {
            fleet.join(name, first.beside(name)).await?;
        }
        fleet.ready().await?;
    }
    Ok(fleet)
}

/// The RPCs whose secrets must come to that node. A question to several nodes has none.
fn expected(scope: &str) -> Vec<&'static str> {
    let one_node = scope == "shared";
    let all = Method::ALL.iter().filter(|method| method.sent() && method.secrets().is_some());
    all.filter(|method| one_node || method.lists().is_none()).map(|method| method.name()).collect()
}

/// What requests are about.
struct Ids {
    volume: String,
    snapshot: String,
    group: String,
}

impl Ids {
    /// A volume, a snapshot and a group snapshot, all at the same node.
    async fn new(fleet: &Fleet) -> anyhow::Result<Self> {
        let volume = made_at(fleet, "data", HOME).await?;
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume.clone(),
            name: "snapshot".into(),
            ..Default::default()
        };
        let answer = fleet.call(Method::CreateSnapshot, &request).await?;
        let made = csi::CreateSnapshotResponse::decode(answer.message().unwrap_or_default())?;
        let snapshot = made.snapshot.unwrap_or_default().snapshot_id;
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: "group".into(),
            source_volume_ids: vec![volume.clone()],
            ..Default::default()
        };
        let answer = fleet.call(Method::CreateVolumeGroupSnapshot, &request).await?;
        let message = answer.message().unwrap_or_default();
        let made = csi::CreateVolumeGroupSnapshotResponse::decode(message)?.group_snapshot;
        let group = made.unwrap_or_default().group_snapshot_id;
        ensure!(!snapshot.is_empty() && !group.is_empty(), "{}", answer.status());
        Ok(Self { volume, snapshot, group })
    }

    fn unknown() -> Self {
        let unknown = || UNKNOWN.to_owned();
        Self { volume: unknown(), snapshot: unknown(), group: unknown() }
    }

    /// The text of a field of a request.
    fn text(&self, field: &str) -> Option<String> {
        Some(match field {
            "starting_token" => return None,
            "volume_id" | "source_volume_id" | "source_volume_ids" => self.volume.clone(),
            "group_snapshot_id" => self.group.clone(),
            field if field.contains("snapshot_id") => self.snapshot.clone(),
            field => format!("some-{field}"),
        })
    }
}
