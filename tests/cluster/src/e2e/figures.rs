//! Figures: the time of 100 claims over three edges, and of 100 claims straight at one driver with
//! the same external-provisioner. Both take turns on one stand; then the resident memory of our
//! programs is measured.

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use tokio::time::Instant;

use super::scene::{Scene, claim};
use super::truth;
use crate::stand::objects;
use crate::stand::objects::{list, within};
use crate::stand::program::Program;
use crate::stand::{Cluster, DRIVER};

/// Claims of a turn.
const CLAIMS: usize = 100;
/// Turns of each; the median counts.
const TURNS: usize = 3;
/// How much longer ours may take.
const RATIO: f64 = 1.1;
/// The most resident memory of csi-cloud and of a csi-edge, in MiB.
const CLOUD: f64 = 40.0;
const EDGE: f64 = 20.0;
/// How long a turn may take.
const SOON: Duration = Duration::from_secs(180);
/// The driver whose provisioner calls it without us.
const STRAIGHT: &str = "straight.edge-csi.io";
const CLASS: &str = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: \
                     straight}, \
                     provisioner: straight.edge-csi.io, volumeBindingMode: Immediate}";

/// Measures the time of 100 claims with us and without us, and the memory of our programs.
pub(super) async fn measured(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node("n1")?;
    let driver = node.straight(&cluster.ground, None, STRAIGHT).await?;
    let launch = cluster.cloud.straight(&cluster.ground, &driver.socket()?);
    let provisioner =
        Program::start("csi-provisioner-straight", &cluster.ground.logs(), launch).await?;
    scene.apply(CLASS).await?;
    let timed = turns(scene).await;
    let cleared = cleared(scene).await;
    for program in [&provisioner, &driver.registrar, &driver.program] {
        program.stop().await?;
    }
    objects::delete(&cluster.client, "default", CLASS).await?;
    let (ours, straight) = timed?;
    cleared?;
    // The programs stand in the directory of this one, from the same build. Figures of a debug
    // build are shown, and not compared with the limits.
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let ours = median(ours);
    let straight = median(straight);
    let ratio = ours / straight;
    println!(
        "{CLAIMS} claims, median of {TURNS}: {ours:.2} s over three edges, {straight:.2} s \
         straight: × {ratio:.2}"
    );
    let resident = resident(cluster).await?;
    println!("resident ({build} build): {resident:?} MiB");
    if cfg!(debug_assertions) {
        println!("not judged: a debug build; `make e2e FIGURES=1` has a release build");
        return Ok(());
    }
    ensure!(ratio <= RATIO, "ours take {ratio:.2} times as long");
    for (name, mib) in resident {
        let most = if name.starts_with('n') { EDGE } else { CLOUD };
        ensure!(mib <= most, "{name} has {mib:.1} MiB, and may have {most}");
    }
    Ok(())
}

/// One after the other, so that both meet the same machine.
async fn turns(scene: &Scene<'_>) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    // Connections, caches and leases are there after this.
    for class in ["straight", "now"] {
        turn(scene, class, 5).await?;
    }
    let mut ours = Vec::new();
    let mut straight = Vec::new();
    for number in 0..TURNS {
        straight.push(turn(scene, "straight", CLAIMS).await?);
        ours.push(turn(scene, "now", CLAIMS).await?);
        println!(
            "turn {number}: {:.2} s over three edges, {:.2} s straight",
            ours[number], straight[number]
        );
    }
    Ok((ours, straight))
}

/// Makes claims of a class at once, and returns the seconds until all were bound. They are deleted.
async fn turn(scene: &Scene<'_>, class: &str, count: usize) -> anyhow::Result<f64> {
    let claims = scene.api::<PersistentVolumeClaim>();
    let mut wanted = Vec::new();
    for number in 0..count {
        let text = objects::parse(&claim(&format!("c{number}"), class))?;
        let one = text.into_iter().next().unwrap_or_default();
        wanted.push(serde_json::from_value::<PersistentVolumeClaim>(one)?);
    }
    let begun = Instant::now();
    let params = PostParams::default();
    let claims = &claims;
    let made = wanted.iter().map(|one| claims.create(&params, one));
    futures_util::future::try_join_all(made).await?;
    within("claims", SOON, || async {
        let phases =
            list(claims).await?.into_iter().map(|one| one.status.and_then(|status| status.phase));
        let bound = phases.filter(|phase| phase.as_deref() == Some("Bound")).count();
        ensure!(bound == count, "{bound} of {count} are bound");
        Ok(())
    })
    .await?;
    let took = begun.elapsed().as_secs_f64();
    for node in scene.cluster.nodes.iter().filter(|_| class == "now" && count == CLAIMS) {
        ensure!(
            !truth::held_at(node, DRIVER).await?.is_empty(),
            "{} has no volume of the hundred",
            node.name
        );
    }
    cleared(scene).await?;
    Ok(took)
}

/// Deletes all claims, and waits until their volumes are deleted.
async fn cleared(scene: &Scene<'_>) -> anyhow::Result<()> {
    let claims = scene.api::<PersistentVolumeClaim>();
    claims.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    within("end of the volumes", SOON, || async {
        let left = list(&Api::<PersistentVolume>::all(scene.cluster.client.clone())).await?.len();
        ensure!(left == 0, "there are {left}");
        Ok(())
    })
    .await
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The resident memory of our programs, in MiB.
async fn resident(cluster: &Cluster) -> anyhow::Result<Vec<(String, f64)>> {
    let mut all = Vec::new();
    let edges = cluster.nodes.iter().map(|node| &node.edge);
    for program in [&cluster.cloud.program, &cluster.cloud.front].into_iter().chain(edges) {
        let mib = program.resident().await? as f64 / 1_048_576.0;
        all.push((program.name().to_owned(), (mib * 10.0).round() / 10.0));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
