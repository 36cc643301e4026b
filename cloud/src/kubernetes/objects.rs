//! Single objects of Kubernetes, each read when it is asked for. `csi-cloud explain` follows them.
//!
//! What our role does not let us read is said, and does not end the search.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Resource, ResourceExt};
use proto::host::{chain, plain};
use proto::names::{DriverName, NodeName};
use ring::digest::{Context, SHA256};
use serde::de::DeserializeOwned;

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::object_facts::{
    AttachmentFacts, ClaimFacts, ClassFacts, CsiDriverFacts, PersistentVolumeFacts, PodFacts,
    newest_warning,
};
use crate::kubernetes::settings::Kubernetes;
use crate::kubernetes::snapshot_facts::{
    ContentFacts, SnapshotFacts, SnapshotKind, driver_of_class,
};
use crate::nodes::links::AskOfClaim;
use crate::telemetry::calls::Calls;

/// Events of one object that are looked at.
const EVENTS: u32 = 100;
/// StorageClasses of all drivers that are looked at.
const CLASSES: u32 = 1000;

/// The result of reading an object: none if there is none, or the reason why it cannot be read.
pub type Seen<T> = Result<Option<T>, String>;

/// Reads objects.
pub struct Objects {
    pub(in crate::kubernetes) server: Arc<Server>,
}

/// A function that reads whether the scheduler selected a node for a claim.
///
/// # Errors
/// The kubeconfig or the pod's environment cannot be read or used.
pub async fn claim_reader(settings: &Kubernetes, calls: Arc<Calls>) -> anyhow::Result<AskOfClaim> {
    let server = Arc::new(Server::new(&settings.api, calls).await?);
    let objects = Arc::new(Objects { server });
    Ok(Arc::new(move |namespace, name| {
        let objects = objects.clone();
        Box::pin(async move {
            let claim = objects.claim(&namespace, &name).await;
            claim.ok().flatten().map(|claim| claim.selected_node.is_some())
        })
    }))
}

impl Objects {
    /// A PersistentVolumeClaim.
    pub async fn claim(&self, namespace: &str, name: &str) -> Seen<ClaimFacts> {
        let claim =
            self.namespaced::<PersistentVolumeClaim>("PersistentVolumeClaim get", namespace);
        claim.read(name, |claim| ClaimFacts::of(&claim)).await
    }

    /// A Pod.
    pub async fn pod(&self, namespace: &str, name: &str) -> Seen<PodFacts> {
        let pods = self.namespaced::<Pod>("Pod get", namespace);
        pods.read(name, |pod| PodFacts::of(&pod)).await
    }

    /// The CSIDriver of a driver.
    pub async fn csidriver(&self, driver: &DriverName) -> Seen<CsiDriverFacts> {
        let drivers = self.cluster::<CSIDriver>("CSIDriver get");
        drivers.read(driver.as_str(), |driver| CsiDriverFacts::of(&driver)).await
    }

    /// A StorageClass.
    pub async fn class(&self, name: &str) -> Seen<ClassFacts> {
        let classes = self.cluster::<StorageClass>("StorageClass get");
        classes.read(name, |class| ClassFacts::of(&class)).await
    }

    /// The StorageClasses of a driver with their names, among the first thousand classes.
    ///
    /// # Errors
    /// Why they cannot be seen.
    pub async fn classes_of(
        &self,
        driver: &DriverName,
    ) -> Result<Vec<(String, ClassFacts)>, String> {
        let classes = self.cluster::<StorageClass>("StorageClass list");
        let wanted = ListParams::default().limit(CLASSES);
        let listed = self.server.ask("StorageClass list", classes.api.list(&wanted)).await;
        let listed = listed.map_err(|error| chain(&error))?.items.into_iter();
        let facts = listed.map(|class| (class.name_any(), ClassFacts::of(&class)));
        Ok(facts.filter(|(_, facts)| facts.provisioner == driver.as_str()).collect())
    }

    /// A PersistentVolume.
    pub async fn persistent_volume(&self, name: &str) -> Seen<PersistentVolumeFacts> {
        let volumes = self.cluster::<PersistentVolume>("PersistentVolume get");
        volumes.read(name, |volume| PersistentVolumeFacts::of(&volume)).await
    }

    /// The VolumeAttachment of a volume at a node.
    pub async fn attachment(
        &self,
        driver: &DriverName,
        id: &str,
        node: &str,
    ) -> Seen<AttachmentFacts> {
        let attachments = self.cluster::<VolumeAttachment>("VolumeAttachment get");
        let name = attachment_name(driver.as_str(), id, node);
        attachments.read(&name, |attachment| AttachmentFacts::of(&attachment)).await
    }

    /// A VolumeSnapshot.
    pub async fn snapshot(&self, namespace: &str, name: &str) -> Seen<SnapshotFacts> {
        let resource = SnapshotKind::Snapshot.resource();
        let api = Api::namespaced_with(self.server.client.clone(), namespace, &resource);
        let snapshots = Kind { server: &self.server, what: "VolumeSnapshot get", api };
        snapshots.read(name, |object| SnapshotFacts::of(&object)).await
    }

    /// The driver of a VolumeSnapshotClass.
    pub async fn snapshot_class(&self, name: &str) -> Seen<String> {
        let classes = self.custom("VolumeSnapshotClass get", SnapshotKind::Class);
        classes.read(name, |object| driver_of_class(&object)).await
    }

    /// A VolumeSnapshotContent.
    pub async fn snapshot_content(&self, name: &str) -> Seen<ContentFacts> {
        let contents = self.custom("VolumeSnapshotContent get", SnapshotKind::Content);
        contents.read(name, |object| ContentFacts::of(&object)).await
    }

    /// Whether a node's CSINode has a driver. `None` if the node has no CSINode.
    pub async fn registered(&self, node: &NodeName, driver: &DriverName) -> Seen<bool> {
        let drivers = self.registered_drivers(node).await?;
        Ok(drivers.map(|drivers| drivers.contains(driver.as_str())))
    }

    /// The drivers of a node's CSINode. `None` if the node has no CSINode.
    pub async fn registered_drivers(&self, node: &NodeName) -> Seen<BTreeSet<String>> {
        let nodes = self.cluster::<CSINode>("CSINode get");
        let drivers = |csinode: CSINode| {
            csinode.spec.drivers.into_iter().map(|entry| entry.name).collect::<BTreeSet<_>>()
        };
        nodes.read(node.as_str(), drivers).await
    }

    /// The newest warning among the Events of an object in a namespace: its reason and message.
    pub async fn warning(&self, kind: &str, namespace: &str, name: &str) -> Seen<String> {
        let api: Api<Event> = Api::namespaced(self.server.client.clone(), namespace);
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name},type=Warning");
        let wanted = ListParams::default().fields(&fields).limit(EVENTS);
        match self.server.ask("Event list", api.list(&wanted)).await {
            Ok(events) => Ok(newest_warning(events.items).map(|text| plain(&text))),
            Err(error) => Err(chain(&error)),
        }
    }

    fn namespaced<K>(&self, what: &'static str, namespace: &str) -> Kind<'_, K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = Api::namespaced(self.server.client.clone(), namespace);
        Kind { server: &self.server, what, api }
    }

    /// Custom resources that are in no namespace.
    fn custom(&self, what: &'static str, kind: SnapshotKind) -> Kind<'_, DynamicObject> {
        let api = Api::all_with(self.server.client.clone(), &kind.resource());
        Kind { server: &self.server, what, api }
    }

    fn cluster<K: Resource<DynamicType = ()>>(&self, what: &'static str) -> Kind<'_, K> {
        Kind { server: &self.server, what, api: Api::all(self.server.client.clone()) }
    }
}

/// The objects of one kind.
struct Kind<'a, K> {
    server: &'a Server,
    /// The name of the request in the metrics.
    what: &'static str,
    api: Api<K>,
}

impl<K: Clone + DeserializeOwned + Debug> Kind<'_, K> {
    async fn read<T>(&self, name: &str, facts: impl FnOnce(K) -> T) -> Seen<T> {
        match self.server.ask(self.what, self.api.get(name)).await {
            Ok(object) => Ok(Some(facts(object))),
            Err(ApiError::Missing) => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }
}

/// The name that Kubernetes gives the attachment of a volume (`getAttachmentName` of its CSI
/// plugin).
fn attachment_name(driver: &str, id: &str, node: &str) -> String {
    let mut hash = Context::new(&SHA256);
    for part in [id, driver, node] {
        hash.update(part.as_bytes());
    }
    let mut name = "csi-".to_owned();
    for byte in hash.finish().as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
impl Objects {
    /// The objects that this client reads.
    pub fn of(client: kube::Client) -> Self {
        Self { server: Arc::new(Server::with(client, Arc::default())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_named_as_by_kubernetes() {
        // printf v1d.examplen1 | sha256sum
        let name = attachment_name("d.example", "v1", "n1");
        assert_eq!(name, "csi-e98b043887a605463d13ce6cd41ebad6172c192e4f1bde2e928f43926e4c9d8e");
    }
}
