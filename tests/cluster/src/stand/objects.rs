//! Objects as a user writes them, in YAML, applied to the API server; and states of objects to wait
//! for.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

/// The name of the field manager for server-side apply.
const MANAGER: &str = "stand";

/// A client for whom a kubeconfig is.
///
/// # Errors
/// The kubeconfig cannot be read.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read the kubeconfig {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// The objects of a YAML text with one or more documents.
///
/// # Errors
/// It is no YAML.
pub fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("that is no YAML")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The objects of a YAML text that are wanted by their kind and name, as such a text.
///
/// # Errors
/// It is no YAML, an object has no name, or none is wanted.
pub fn only(text: &str, is_wanted: impl Fn(&str, &str) -> bool) -> anyhow::Result<String> {
    let mut wanted = Vec::new();
    for object in parse(text)? {
        if is_wanted(object["kind"].as_str().unwrap_or_default(), name(&object)?) {
            wanted.push(object.to_string());
        }
    }
    ensure!(!wanted.is_empty(), "none of the objects is wanted");
    Ok(wanted.join("\n---\n"))
}

/// Where objects of an object's kind are found, in its namespace.
///
/// # Errors
/// The API server does not know the kind.
pub async fn api(
    client: &Client,
    object: &Value,
    namespace: &str,
) -> anyhow::Result<Api<DynamicObject>> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (group, version) =
        text("apiVersion").split_once('/').unwrap_or_else(|| ("", text("apiVersion")));
    let kind = GroupVersionKind::gvk(group, version, text("kind"));
    let (resource, capabilities) = pinned_kind(client, &kind)
        .await
        .with_context(|| format!("the API server has no {kind:?}"))?;
    let own = object.pointer("/metadata/namespace").and_then(Value::as_str);
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), own.unwrap_or(namespace), &resource)
        }
    })
}

/// The name that an object has.
///
/// # Errors
/// It has none.
pub fn name(object: &Value) -> anyhow::Result<&str> {
    object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .context("an object has no metadata.name")
}

/// Applies all objects of a YAML text, those without a namespace in this one.
///
/// # Errors
/// The API server refuses one.
pub async fn apply(client: &Client, namespace: &str, text: &str) -> anyhow::Result<()> {
    for object in parse(text)? {
        let name = name(&object)?;
        let api = api(client, &object, namespace).await?;
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(name, &params, &Patch::Apply(&object)).await;
        applied.with_context(|| format!("cannot apply {} {name}", object["kind"]))?;
    }
    Ok(())
}

/// Deletes the objects of a YAML text; one that is not there is deleted.
///
/// # Errors
/// The API server refuses it.
pub async fn delete(client: &Client, namespace: &str, text: &str) -> anyhow::Result<()> {
    for object in parse(text)? {
        let name = name(&object)?;
        let api = api(client, &object, namespace).await?;
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("cannot delete {name}")),
        }
    }
    Ok(())
}

/// All objects of a type, as it is.
///
/// # Errors
/// The API server does not say.
pub async fn list<K>(api: &Api<K>) -> anyhow::Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + for<'de> Deserialize<'de>,
{
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Repeats a request until it succeeds.
///
/// # Errors
/// The last answer, if none was good in time.
pub async fn within<T, F>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() >= deadline => {
                bail!("{what}: not within {limit:?}: {error:#}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_apart_and_empty_ones_left_out() {
        let objects =
            parse("---\n# nothing\n---\nmetadata: {name: a}\n---\nmetadata: {name: b}\n").unwrap();
        let names: Vec<_> = objects.iter().map(|object| name(object).unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(name(&serde_json::json!({"metadata": {}})).is_err());
    }
}
