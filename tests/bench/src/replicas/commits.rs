//! Durable creates: with a file and with etcd, in turns in one run on one disk.

use std::path::Path;
use std::time::Duration;

use harness::etcd_server::EtcdServer;

use super::world::MEMBERS;
use crate::durable::{CALLERS, NODE, Way};
use crate::figures::Figure;
use crate::load;
use crate::load::Life;
use crate::report::median;

/// The required share of the calls/s with a file that etcd must reach.
const LEAST: f64 = 0.25;

pub(super) async fn measure(
    rounds: usize,
    time: Duration,
    dir: &Path,
) -> anyhow::Result<Vec<Figure>> {
    let data = tempfile::tempdir_in(dir)?;
    let data = std::path::absolute(data.path())?;
    let mut etcd = EtcdServer::start(&data, MEMBERS).await?;
    let file = format!("file:{}", data.join("durable.redb").display());
    let ways = [Way::new(&file).await?, Way::new(&etcd.url("durable")).await?];
    let mut rates = [Vec::new(), Vec::new()];
    let mut latencies = [Vec::new(), Vec::new()];
    let mut errors = 0;
    for _ in 0..rounds {
        for ((way, rates), latencies) in ways.iter().zip(&mut rates).zip(&mut latencies) {
            let seen = load::run(&way.channel, NODE, CALLERS, time, Life::Made).await?;
            rates.push(seen.calls_per_s());
            latencies.push(seen.percentile(0.5) / 1000.0);
            errors += seen.errors;
        }
    }
    for way in ways {
        way.stop().await?;
    }
    for place in 0..etcd.members() {
        etcd.kill(place).await?;
    }
    let [file, etcd] = &rates;
    let ratio = median(file.iter().zip(etcd).map(|(file, etcd)| etcd / file).collect());
    let [[file, etcd], [file_ms, etcd_ms]] = [rates, latencies].map(|both| both.map(median));
    Ok(vec![
        Figure::new("256 callers, store in a file", file, "calls/s"),
        Figure::new("256 callers, store in a file, p50", file_ms, "ms"),
        Figure::new("256 callers, store in etcd", etcd, "calls/s"),
        Figure::new("256 callers, store in etcd, p50", etcd_ms, "ms"),
        Figure::new("256 callers, in etcd to in a file", ratio, "×").at_least(LEAST),
        Figure::new("failed calls", errors as f64, "").at_most(0.0),
    ])
}
