//! A node whose driver says that it is at another node's place, to get that node's creates.

use std::time::Duration;

use drivers::testdriver::{Fault, TOPOLOGY_KEY, TestDriver, Times};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use harness::requests::created;
use harness::wait::until;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::csi::topology::NODE_SEGMENT;

use super::fleet::{Fleet, create_at};
use super::report::Row;
use super::world::{DRIVER, TRANSPORTS};

/// Creates for the victim's place.
const CREATES: usize = 1_000;
const SHORT: usize = 100;
/// Creates at a time.
const AT_ONCE: usize = 8;
/// How long the claimant may take to be set apart.
const SOON: Duration = Duration::from_secs(10);
/// By its name the claimant is the first of all.
pub(super) const CLAIMANT: &str = "a-claimant";
const VICTIM: &str = "victim";
const ASKED: &str = "0 creates at the claimant";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let creates = if short { SHORT } else { CREATES };
    for is_first in [true, false] {
        let claims = TRANSPORTS.map(|transport| claimed(transport, is_first, creates));
        rows.extend(try_join_all(claims).await?);
    }
    Ok(())
}

async fn claimed(transport: &'static str, is_first: bool, creates: usize) -> anyhow::Result<Row> {
    let section = format!("scope = \"node\"\ntopology = {{ \"{TOPOLOGY_KEY}\" = \"node\" }}");
    let mut fleet = Fleet::new(transport, &section).await?;
    let claimant = TestDriver::new(DRIVER, CLAIMANT);
    claimant.inject("NodeGetInfo", Fault::raw(at_the_victims_place()), Times::All);
    claimant.count_from(1_000_000);
    let victim = TestDriver::new(DRIVER, VICTIM);
    let mut joining = [(CLAIMANT, &claimant), (VICTIM, &victim)];
    if !is_first {
        joining.reverse();
    }
    for (name, driver) in joining {
        fleet.join(name, driver.clone()).await?;
    }
    fleet.ready().await?;
    let reasons = fleet.set_apart(CLAIMANT, SOON).await?;
    let create = async |number: usize| {
        let key = if number.is_multiple_of(2) { NODE_SEGMENT } else { TOPOLOGY_KEY };
        let request = create_at(&format!("pvc-{number}"), key, VICTIM)?;
        created(&fleet.call(Method::CreateVolume, &request).await?)?;
        anyhow::Ok(())
    };
    // An odd number: by the driver's own key, which csi-edge tells when its driver has answered.
    until("the victim has told its place", || create(creates + 1)).await?;
    let creating = stream::iter((0..creates).map(create)).buffer_unordered(AT_ONCE);
    creating.try_collect::<Vec<_>>().await?;
    let at_claimant = claimant.calls_of("CreateVolume").len();
    let at_victim = victim.volumes().len();
    fleet.stop().await?;
    let when = if is_first { "before" } else { "after" };
    Ok(Row {
        case: format!("victim's segments, claimed {when} it linked, {creates} creates"),
        transport,
        asked: ASKED,
        measured: format!(
            "{at_claimant} at the claimant, {at_victim} at the victim; {}",
            reasons.join(", ")
        ),
        ok: at_claimant == 0 && at_victim == creates + 1,
    })
}

/// The answer to NodeGetInfo that claims the driver's own segment of the victim, and ours.
pub(super) fn at_the_victims_place() -> Vec<u8> {
    let segment = |key: &str| (key.to_owned(), VICTIM.to_owned());
    let segments = [segment(TOPOLOGY_KEY), segment(NODE_SEGMENT)].into();
    csi::NodeGetInfoResponse {
        node_id: CLAIMANT.into(),
        accessible_topology: Some(csi::Topology { segments }),
        ..Default::default()
    }
    .encode_to_vec()
}
