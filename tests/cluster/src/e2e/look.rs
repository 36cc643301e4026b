//! Objects of any kind, as values whose fields are waited for: most kinds of storage have no type
//! in a client library.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::scene::Scene;
use crate::stand::objects;
use crate::stand::objects::within;

/// How long a condition may take.
pub(super) const SOON: Duration = Duration::from_secs(90);

/// An object: its apiVersion, kind and name.
#[derive(Clone, Copy)]
pub(super) struct Thing<'a>(pub(super) &'a str, pub(super) &'a str, pub(super) &'a str);

/// A claim.
pub(super) fn claim(name: &str) -> Thing<'_> {
    Thing("v1", "PersistentVolumeClaim", name)
}

/// A persistent volume.
pub(super) fn volume(name: &str) -> Thing<'_> {
    Thing("v1", "PersistentVolume", name)
}

/// Waits until a field of an object has a value, and returns the object.
///
/// # Errors
/// It is not in time; the error holds the field.
pub(super) async fn until(
    scene: &Scene<'_>,
    thing: Thing<'_>,
    field: &str,
    good: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let Thing(version, kind, name) = thing;
    let object = json!({"apiVersion": version, "kind": kind});
    let api = objects::api(&scene.cluster.client, &object, scene.namespace()).await?;
    let asked = || async {
        let found = serde_json::to_value(api.get(name).await?)?;
        let value = found.pointer(field).unwrap_or(&Value::Null);
        ensure!(good(value), "{field} is {value}");
        Ok(found)
    };
    within(&format!("{kind} {name}"), SOON, asked).await
}

/// Waits until a text in an object is this one.
///
/// # Errors
/// It is not in time; the error holds what it is.
pub(super) async fn reads(
    scene: &Scene<'_>,
    thing: Thing<'_>,
    field: &str,
    wanted: &str,
) -> anyhow::Result<Value> {
    until(scene, thing, field, |value| value == wanted).await
}

/// A text in an object.
///
/// # Errors
/// It is not there.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    object.pointer(field).and_then(Value::as_str).with_context(|| format!("no {field} in {object}"))
}

/// Waits until a pod's containers run, whether they are ready or not, and returns the node.
///
/// # Errors
/// They do not in time.
pub(super) async fn running(scene: &Scene<'_>, pod: &str) -> anyhow::Result<String> {
    let found = reads(scene, Thing("v1", "Pod", pod), "/status/phase", "Running").await?;
    Ok(text(&found, "/spec/nodeName")?.to_owned())
}

/// Waits until the scheduler finds no node for a pod, for a reason with this text.
///
/// # Errors
/// It does not in time, or the pod was scheduled.
pub(super) async fn without_node(scene: &Scene<'_>, pod: &str, why: &str) -> anyhow::Result<()> {
    let said = || async {
        let found = scene.api::<Pod>().get(pod).await?;
        let node = found.spec.and_then(|spec| spec.node_name);
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        let said = conditions.into_iter().find(|one| one.type_ == "PodScheduled");
        let said = said.and_then(|one| one.message).unwrap_or_default();
        ensure!(node.is_none(), "it is at {node:?}");
        ensure!(said.contains(why), "the scheduler says: {said}");
        Ok(())
    };
    within(&format!("pod {pod} without a node"), SOON, said).await
}
