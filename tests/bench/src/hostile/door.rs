//! Strangers who open TCP connections and say nothing, or a byte each second.

use futures_util::future::try_join_all;
use harness::flood::{Flood, Sends};
use harness::wait::until;

use super::report::Row;
use super::world::World;

/// Open connections at a time.
const SOCKETS: u32 = 16_000;
const SHORT: u32 = 1_000;
/// The addresses that they come from.
const ADDRESSES: [u32; 3] = [4, 40, 400];
const ASKED: &str = "honest relink < 2 s, RSS < 100 MiB";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let sockets = if short { SHORT } else { SOCKETS };
    for sends in [Sends::Nothing, Sends::Slowly] {
        if short {
            // So few connections use little of a core.
            let floods = ADDRESSES.map(|addresses| flood(sockets, addresses, sends, 5));
            rows.extend(try_join_all(floods).await?);
            continue;
        }
        for addresses in ADDRESSES {
            rows.push(flood(sockets, addresses, sends, 50).await?);
        }
    }
    Ok(())
}

async fn flood(sockets: u32, addresses: u32, sends: Sends, links: u32) -> anyhow::Result<Row> {
    let world = World::new("wss").await?;
    // It has linked before, as edges have.
    world.relink(1).await?;
    let each = usize::try_from(sockets / addresses)?;
    let flood = Flood::new(world.addr()?, addresses, each, sends);
    until("as many connections were made", || async {
        let made = u32::try_from(flood.made())?;
        anyhow::ensure!(made >= sockets, "{made} of {sockets}");
        Ok(())
    })
    .await?;
    let longest = world.relink(links).await?;
    let peak = world.peak_mib()?;
    let made = flood.made();
    drop(flood);
    world.stop().await?;
    let what = if sends == Sends::Nothing { "silent" } else { "1 byte/s" };
    Ok(Row {
        case: format!("{sockets} {what} of {addresses} addresses"),
        transport: "wss",
        asked: ASKED,
        measured: format!(
            "{:.2} s at most of {links}, {peak} MiB, {made} connections",
            longest.as_secs_f64()
        ),
        ok: longest.as_secs_f64() < 2.0 && peak < 100,
    })
}
