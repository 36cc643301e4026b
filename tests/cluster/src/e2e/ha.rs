//! Three csi-clouds as pods, as `deploy/`'s component `ha` has them: a rolling update of them while
//! claims are made. The sidecars are in pods of their own, so they must notice nothing.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::replicas::{Untouched, bound, load, told};
use super::scene::Scene;
use super::truth;
use crate::stand::Cluster;
use crate::stand::cloud::NAMESPACE;

/// The StatefulSet of the csi-clouds.
const SET: &str = "csi-cloud";
/// How many claims are made at a time.
const CLAIMS: usize = 2;
/// How much time is between two times.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the update of three pods may take.
const ROLLED: Duration = Duration::from_secs(150);
/// The reason of external-provisioner's Event about a create that failed.
const FAILED: &str = ": ProvisioningFailed: ";

/// The csi-clouds are started again one after the other, as `kubectl rollout restart` has it. All
/// claims are bound, to one volume each. No sidecar ends or loses a call, and no claim is told of a
/// create that failed.
pub(super) async fn upgraded(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let names = cluster.cloud.several.names;
    let leader = cluster.leading(&names).await?;
    let before = Untouched::of(cluster).await?;
    let pods = uids(cluster).await?;
    let sets = Api::<StatefulSet>::namespaced(cluster.client.clone(), NAMESPACE);
    let generation = restarted(&sets).await?;
    let begun = Instant::now();
    let mut claims = Vec::new();
    let mut turn = 0;
    while let Some(why) = unfinished(&sets, generation, names.len()).await? {
        ensure!(begun.elapsed() < ROLLED, "after {ROLLED:?} the update is not over: {why}");
        claims.extend(load(scene, &format!("turn-{turn}"), CLAIMS).await?);
        turn += 1;
        sleep(PAUSE).await;
    }
    told(begun, "s from the order to restart three csi-clouds to its end");
    let next = cluster.leading(&names).await?;
    ensure!(next.epoch > leader.epoch, "the epoch is {} after {}", next.epoch, leader.epoch);
    bound(scene, &claims).await?;
    let now = uids(cluster).await?;
    for (name, uid) in &pods {
        ensure!(now.get(name) != Some(uid), "{name} is the same pod as before");
    }
    before.still(cluster).await?;
    let events = scene.told().await?;
    let failed = events.lines().find(|line| line.contains(FAILED));
    ensure!(failed.is_none(), "a claim was told of a failed call: {failed:?}");
    truth::agreed(cluster).await
}

/// The uids of the csi-clouds' pods.
async fn uids(cluster: &Cluster) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    let mut uids = BTreeMap::new();
    for name in cluster.cloud.several.names {
        let uid = pods.get(name).await?.uid();
        uids.insert(name, uid.with_context(|| format!("the pod {name} has no uid"))?);
    }
    Ok(uids)
}

/// Orders that all pods are started again. Returns the generation of the StatefulSet after that.
async fn restarted(sets: &Api<StatefulSet>) -> anyhow::Result<i64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs().to_string();
    let annotations = json!({"kubectl.kubernetes.io/restartedAt": now});
    let template = json!({"metadata": {"annotations": annotations}});
    let patch = Patch::Merge(json!({"spec": {"template": template}}));
    let patched = sets.patch(SET, &PatchParams::default(), &patch).await?;
    patched.metadata.generation.context("a StatefulSet without a generation")
}

/// Why the update to a generation is not over, if it is not.
async fn unfinished(
    sets: &Api<StatefulSet>,
    generation: i64,
    count: usize,
) -> anyhow::Result<Option<String>> {
    let status = sets.get(SET).await?.status.unwrap_or_default();
    let all = Some(i32::try_from(count)?);
    let is_over = status.observed_generation >= Some(generation)
        && status.updated_replicas == all
        && status.ready_replicas == all;
    Ok((!is_over).then(|| format!("{status:?}")))
}
