//! A row's namespace: what is applied in it, and the states to wait for.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::DeleteParams;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::stand::objects;
use crate::stand::objects::within;

/// How long Kubernetes may take to make a pod ready or to delete an object.
const SOON: Duration = Duration::from_secs(90);

/// The namespace of a row.
pub struct Scene<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    namespace: String,
}

impl<'a> Scene<'a> {
    /// Makes the namespace.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn begin(cluster: &'a Cluster, name: &str) -> anyhow::Result<Self> {
        let scene = Self { cluster, namespace: name.to_owned() };
        scene
            .apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"))
            .await?;
        Ok(scene)
    }

    /// Deletes the namespace and waits for its deletion.
    ///
    /// # Errors
    /// It does not go.
    pub async fn end(&self) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.cluster.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        let gone = || async {
            let found = namespaces.get_opt(&self.namespace).await?;
            let why = found.and_then(|found| found.status).and_then(|status| status.conditions);
            ensure!(why.is_none(), "{why:?}");
            ensure!(namespaces.get_opt(&self.namespace).await?.is_none(), "it is there");
            Ok(())
        };
        within(&format!("end of the namespace {}", self.namespace), SOON, gone).await
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Objects of a type in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// Applies a YAML text.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub async fn apply(&self, text: &str) -> anyhow::Result<()> {
        objects::apply(&self.cluster.client, &self.namespace, text).await
    }

    /// Waits until pods are ready and returns their nodes.
    ///
    /// # Errors
    /// One is not in time; the error holds its status.
    pub async fn ready(&self, pods: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut nodes = Vec::new();
        for name in pods {
            nodes.push(within(&format!("pod {name}"), SOON, || self.is_ready(name)).await?);
        }
        Ok(nodes)
    }

    async fn is_ready(&self, name: &str) -> anyhow::Result<String> {
        let pod = self.api::<Pod>().get(name).await?;
        let status = pod.status.unwrap_or_default();
        let conditions = status.conditions.iter().flatten();
        let is_ready = conditions.clone().any(|one| one.type_ == "Ready" && one.status == "True");
        let phase = status.phase.as_deref().unwrap_or_default();
        ensure!(is_ready, "{phase} {:?}", status.container_statuses);
        pod.spec.and_then(|spec| spec.node_name).context("a ready pod without a node")
    }

    /// How often a pod's containers were started again.
    ///
    /// # Errors
    /// The pod is not there.
    pub async fn restarts(&self, name: &str) -> anyhow::Result<i32> {
        let status = self.api::<Pod>().get(name).await?.status.unwrap_or_default();
        Ok(status.container_statuses.iter().flatten().map(|one| one.restart_count).sum())
    }

    /// Waits until a claim is bound and returns its persistent volume's name.
    ///
    /// # Errors
    /// It is not in time; the error holds its phase.
    pub async fn bound(&self, claim: &str) -> anyhow::Result<String> {
        let bound = || async {
            let found = self.api::<PersistentVolumeClaim>().get(claim).await?;
            let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Bound", "it is {phase}");
            found.spec.and_then(|spec| spec.volume_name).context("a bound claim without a volume")
        };
        within(&format!("claim {claim}"), SOON, bound).await
    }

    /// Makes claims of class `now`, waits until they are bound, and deletes them.
    ///
    /// # Errors
    /// One is not bound or does not go in time.
    pub async fn claim_and_delete(&self, names: &[String]) -> anyhow::Result<()> {
        let texts: String = names.iter().map(|name| claim(name, "now")).collect();
        self.apply(&texts).await?;
        for name in names {
            self.bound(name).await?;
        }
        for name in names {
            self.delete::<PersistentVolumeClaim>(name).await?;
        }
        Ok(())
    }

    /// Waits until a part of an object, by its JSON pointer, is this.
    ///
    /// # Errors
    /// It is not in time; the error holds what it is.
    pub async fn becomes(
        &self,
        version: &str,
        kind: &str,
        name: &str,
        at: &str,
        value: &Value,
    ) -> anyhow::Result<()> {
        let object = json!({"apiVersion": version, "kind": kind});
        let api = objects::api(&self.cluster.client, &object, &self.namespace).await?;
        let becomes = || async {
            let found = serde_json::to_value(api.get(name).await?)?;
            let is = found.pointer(at);
            ensure!(is == Some(value), "it is {is:?}; the status is {:?}", found.get("status"));
            Ok(())
        };
        within(&format!("{kind} {name}: {value} at {at}"), SOON, becomes).await
    }

    /// Deletes an object and waits for its deletion.
    ///
    /// # Errors
    /// It does not go in time.
    pub async fn delete<K>(&self, name: &str) -> anyhow::Result<()>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await?;
        self.gone::<K>(name).await
    }

    /// Waits for an object's deletion.
    ///
    /// # Errors
    /// It does not go in time.
    pub async fn gone<K>(&self, name: &str) -> anyhow::Result<()>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let gone = || async {
            let found = self.api::<K>().get_opt(name).await?;
            let kept = found.as_ref().and_then(|found| found.meta().finalizers.clone());
            ensure!(found.is_none(), "it is there, with finalizers {kept:?}");
            Ok(())
        };
        within(&format!("end of {name}"), SOON, gone).await
    }

    /// The events in the namespace, a line each.
    ///
    /// # Errors
    /// The API server does not say.
    pub async fn told(&self) -> anyhow::Result<String> {
        let line = |event: Event| {
            let about = event.involved_object;
            let reason = event.reason.unwrap_or_default();
            let kind = about.kind.unwrap_or_default();
            let name = about.name.unwrap_or_default();
            format!("  {kind} {name}: {reason}: {}", event.message.unwrap_or_default())
        };
        let events = objects::list(&self.api::<Event>()).await?;
        Ok(events.into_iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// A claim as a user writes it.
pub fn claim(name: &str, class: &str) -> String {
    claim_of(name, class, "16Mi", "")
}

/// A claim of a size, with further lines of its spec.
pub fn claim_of(name: &str, class: &str, size: &str, more: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: {class}
  resources:
    requests:
      storage: {size}
{more}
"
    )
}

/// A pod with a claim's volume at `/data`, which runs a script and is ready as long as a command
/// succeeds.
pub fn pod(name: &str, claim: &str, script: &str, ready: &str) -> String {
    pod_with(
        name,
        "volumeMounts: [{name: data, mountPath: /data}]",
        &format!("[{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]"),
        script,
        ready,
    )
}

/// A pod whose container has a line about its volumes, with these volumes.
pub fn pod_with(name: &str, container: &str, volumes: &str, script: &str, ready: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n{}",
        pod_spec("  ", container, volumes, script, ready)
    )
}

/// The spec of such a pod, indented.
pub fn pod_spec(indent: &str, container: &str, volumes: &str, script: &str, ready: &str) -> String {
    let text = format!(
        "hostNetwork: true
enableServiceLinks: false
terminationGracePeriodSeconds: 1
containers:
  - name: box
    image: {image}
    imagePullPolicy: Never
    command: [sh, -c, '{script}']
    readinessProbe:
      exec:
        command: [sh, -c, '{ready}']
      periodSeconds: 1
    {container}
volumes: {volumes}
",
        image = crate::stand::image::IMAGE
    );
    text.lines().map(|line| format!("{indent}{line}\n")).collect()
}
