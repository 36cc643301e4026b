//! What `csi-cloud explain` and Kubernetes say of a broken state.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use serde_json::{Value, json};

use super::catalogue::states;
use crate::e2e::scene::Scene;
use crate::stand::objects::{list, within};

/// How long a state may take to be seen.
const SOON: Duration = Duration::from_secs(120);

/// Waits until a state is told as the catalogue has it. `csi-cloud explain` names its cause and
/// this node, and the object of the same name has its Event.
pub(in crate::e2e) async fn shows(
    scene: &Scene<'_>,
    state: &str,
    subject: &[&str],
    node: Option<&str>,
) -> anyhow::Result<()> {
    let name = subject.last().and_then(|subject| subject.rsplit('/').next()).unwrap_or_default();
    shows_on(scene, state, subject, node, name).await
}

/// The same of a state whose Event is on an object with another name.
pub(in crate::e2e) async fn shows_on(
    scene: &Scene<'_>,
    state: &str,
    subject: &[&str],
    node: Option<&str>,
    on: &str,
) -> anyhow::Result<()> {
    let state = states().find(|known| known.name == state);
    let state = state.context("the catalogue has no such state")?;
    explains(scene, subject, state.cause, node).await.with_context(|| state.name)?;
    told(scene, state.on, on, state.event).await.with_context(|| state.name)
}

/// Waits until an object, of the row's namespace or of none, has an Event for this reason.
pub(in crate::e2e) async fn told(
    scene: &Scene<'_>,
    kind: &str,
    name: &str,
    reason: &str,
) -> anyhow::Result<()> {
    let events = Api::<Event>::all(scene.cluster.client.clone());
    within(&format!("Event {reason} of {kind} {name}"), SOON, || async {
        let about = |event: &Event| {
            let of = &event.involved_object;
            let namespace = of.namespace.as_deref();
            of.kind.as_deref() == Some(kind)
                && of.name.as_deref() == Some(name)
                && namespace.is_none_or(|namespace| namespace == scene.namespace())
        };
        let events = list(&events).await?.into_iter().filter(about);
        let reasons: Vec<_> = events.filter_map(|event| event.reason).collect();
        ensure!(reasons.iter().any(|told| told == reason), "it has Events {reasons:?}");
        Ok(())
    })
    .await
}

/// Waits until `csi-cloud explain` names this cause and this node, in its last line.
pub(in crate::e2e) async fn explains(
    scene: &Scene<'_>,
    subject: &[&str],
    cause: &str,
    node: Option<&str>,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    within(&format!("{subject:?}: {cause}"), SOON, || async {
        let asked = [&["explain"], subject].concat();
        let as_json = [&asked[..], &["-o", "json"]].concat();
        let said = cluster.cloud.says(&cluster.ground, &as_json).await?;
        let said: Value = serde_json::from_str(&said)?;
        let verdict = &said["verdict"];
        ensure!(verdict["cause"] == cause && verdict["node"] == json!(node), "{said}");
        let table = cluster.cloud.says(&cluster.ground, &asked).await?;
        let last = table.lines().last().context("it says nothing")?;
        let text = verdict["text"].as_str().context("no text")?;
        ensure!(last.starts_with(text), "{table}");
        ensure!(node.is_none_or(|node| last.contains(&format!("node {node}"))), "{table}");
        Ok(())
    })
    .await
}
