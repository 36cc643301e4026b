//! The facts of single objects that say why a pod does not start. Pure.

use k8s_openapi::api::core::v1::{
    ContainerStatus, Event, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::host::plain;

use crate::kubernetes::claims::{PROVISIONERS, SELECTED};

/// The API group of the external snapshotter.
pub(super) const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimFacts {
    /// Its uid, of which its volume's name is made.
    pub uid: String,
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// The name of its StorageClass.
    pub class: Option<String>,
    /// The driver that Kubernetes asks for the volume.
    pub provisioner: Option<String>,
    /// The node that the scheduler selected.
    pub selected_node: Option<String>,
    /// The name of its PersistentVolume.
    pub volume: Option<String>,
    /// The kind and name of what fills it, if neither a claim nor a snapshot does.
    pub populator: Option<String>,
    /// Its finalizers, if it is being deleted.
    pub ending: Option<Vec<String>>,
}

/// A CSIDriver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriverFacts {
    /// False if volumes are mounted without being attached.
    pub attach_required: bool,
    /// True if the scheduler considers capacity.
    pub storage_capacity: bool,
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassFacts {
    /// Its driver.
    pub provisioner: String,
    /// True if a volume is made only when a pod needs it.
    pub waits_for_pod: bool,
    /// True if its volumes may grow.
    pub expands: bool,
    /// True if creates of it carry secrets.
    pub has_secrets: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentVolumeFacts {
    /// `Available`, `Bound`, `Released` or `Failed`.
    pub phase: String,
    /// The driver and the volume's id; none if it is no CSI volume.
    pub volume: Option<(String, String)>,
    /// The namespace and name of its claim.
    pub claim: Option<(String, String)>,
    /// Its finalizers, if it is being deleted.
    pub ending: Option<Vec<String>>,
}

/// A Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// True if all its containers are ready.
    pub is_ready: bool,
    /// The node at which it runs or shall run.
    pub node: Option<String>,
    /// The scheduler's message while it finds no node.
    pub unschedulable: Option<String>,
    /// When the scheduler found a node, in ms since 1970.
    pub scheduled_at: Option<u64>,
    /// Whether its kubelet has seen it and has begun none of its containers.
    pub is_creating: bool,
    /// The names of its claims.
    pub claims: Vec<String>,
    /// True if it is being deleted.
    pub is_ending: bool,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentFacts {
    /// True if the volume is attached.
    pub is_attached: bool,
    /// The last error of attaching or detaching.
    pub error: Option<String>,
    /// Its finalizers, if it is being deleted: the volume is being detached.
    pub ending: Option<Vec<String>>,
}

/// The finalizers of an object that is being deleted.
pub(super) fn ending(metadata: &ObjectMeta) -> Option<Vec<String>> {
    metadata.deletion_timestamp.as_ref()?;
    let finalizers = metadata.finalizers.iter().flatten();
    Some(finalizers.map(|finalizer| plain(finalizer)).collect())
}

impl ClaimFacts {
    /// Reads a claim.
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let metadata = &claim.metadata;
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
        let spec = claim.spec.as_ref();
        let not_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            phase: claim.status.as_ref().and_then(|of| of.phase.clone()).unwrap_or_default(),
            class: spec.and_then(|spec| spec.storage_class_name.clone()).and_then(not_empty),
            provisioner: PROVISIONERS.into_iter().find_map(annotation),
            selected_node: annotation(SELECTED),
            volume: spec.and_then(|spec| spec.volume_name.clone()).and_then(not_empty),
            populator: spec.and_then(populator),
            ending: ending(metadata),
        }
    }
}

/// What fills a claim, unless its provisioner does.
fn populator(spec: &PersistentVolumeClaimSpec) -> Option<String> {
    let source = spec.data_source_ref.as_ref()?;
    let is_provisioners = match source.api_group.as_deref() {
        None | Some("") => source.kind == "PersistentVolumeClaim",
        Some(group) => group == SNAPSHOTS && source.kind == "VolumeSnapshot",
    };
    (!is_provisioners).then(|| plain(&format!("{} {}", source.kind, source.name)))
}

impl CsiDriverFacts {
    /// Reads a CSIDriver. Absent fields have the API's defaults.
    pub fn of(driver: &CSIDriver) -> Self {
        Self {
            attach_required: driver.spec.attach_required != Some(false),
            storage_capacity: driver.spec.storage_capacity == Some(true),
        }
    }
}

impl ClassFacts {
    /// Reads a class.
    pub fn of(class: &StorageClass) -> Self {
        let mode = class.volume_binding_mode.as_deref();
        Self {
            provisioner: class.provisioner.clone(),
            waits_for_pod: mode == Some("WaitForFirstConsumer"),
            expands: class.allow_volume_expansion == Some(true),
            has_secrets: class.parameters.iter().flatten().any(|(key, _)| names_secret(key)),
        }
    }
}

/// True if a key of a class' parameters names the Secret of its creates. The second one is the
/// older name, which external-provisioner still reads.
fn names_secret(key: &str) -> bool {
    matches!(key, "csi.storage.k8s.io/provisioner-secret-name" | "csiProvisionerSecretName")
}

impl PersistentVolumeFacts {
    /// Reads a PersistentVolume.
    pub fn of(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let csi = spec.and_then(|spec| spec.csi.as_ref());
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        let named = claim.and_then(|claim| Some((claim.namespace.clone()?, claim.name.clone()?)));
        Self {
            phase: volume.status.as_ref().and_then(|of| of.phase.clone()).unwrap_or_default(),
            volume: csi.map(|csi| (csi.driver.clone(), csi.volume_handle.clone())),
            claim: named,
            ending: ending(&volume.metadata),
        }
    }
}

impl PodFacts {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let condition = |kind: &str| conditions.into_iter().flatten().find(|of| of.type_ == kind);
        let spec = pod.spec.as_ref();
        let is_true = |of: &PodCondition| of.status == "True";
        let scheduled = condition("PodScheduled");
        let unscheduled = scheduled.filter(|of| !is_true(of));
        let scheduled_at = scheduled.filter(|of| is_true(of)).and_then(since);
        // It has a sandbox then, which the kubelet makes after it has mounted all volumes.
        let is_mounted = condition("PodReadyToStartContainers").is_some_and(is_true);
        Self {
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
            is_ready: condition("Ready").is_some_and(is_true),
            node: spec.and_then(|spec| spec.node_name.clone()),
            unschedulable: unscheduled.map(|of| plain(of.message.as_deref().unwrap_or_default())),
            scheduled_at,
            is_creating: !is_mounted && status.is_some_and(is_creating),
            claims: spec.map(|spec| claims(pod, spec)).unwrap_or_default(),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// When a condition became what it is, in ms since 1970.
fn since(condition: &PodCondition) -> Option<u64> {
    let at = condition.last_transition_time.as_ref()?;
    u64::try_from(at.0.as_millisecond()).ok()
}

/// Whether all containers wait for what the kubelet makes before the first one.
fn is_creating(status: &PodStatus) -> bool {
    let reason =
        |container: &ContainerStatus| container.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let init = status.init_container_statuses.iter().flatten();
    let mut containers = init.chain(status.container_statuses.iter().flatten()).peekable();
    let waits = |container| {
        let reason = reason(container);
        matches!(reason.as_deref(), Some("ContainerCreating" | "PodInitializing"))
    };
    containers.peek().is_some() && containers.all(waits)
}

/// The claims of a pod. One of a generic ephemeral volume is named after pod and volume.
fn claims(pod: &Pod, spec: &PodSpec) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let names = volumes.filter_map(|volume| {
        let named = volume.persistent_volume_claim.as_ref().map(|of| of.claim_name.clone());
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name)))
    });
    names.collect()
}

impl AttachmentFacts {
    /// Reads an attachment.
    pub fn of(attachment: &VolumeAttachment) -> Self {
        let status = attachment.status.as_ref();
        let errors = status.map(|of| (of.attach_error.as_ref(), of.detach_error.as_ref()));
        let error = errors.and_then(|(attach, detach)| detach.or(attach)?.message.as_deref());
        Self {
            is_attached: status.is_some_and(|status| status.attached),
            error: error.map(plain),
            ending: ending(&attachment.metadata),
        }
    }
}

/// The reason and message of the newest of some Events.
pub(super) fn newest_warning(events: Vec<Event>) -> Option<String> {
    let newest = events.into_iter().max_by_key(|event| {
        let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
        let at = [series, event.event_time.as_ref()].into_iter().flatten().map(|time| time.0).max();
        let seen = event.last_timestamp.as_ref().map(|time| time.0);
        let made = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
        at.max(seen).or(made)
    })?;
    let reason = newest.reason.unwrap_or_default();
    Some(format!("{reason}: {}", newest.message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_claim_says_how_far_it_is() {
        let claim = ClaimFacts::of(&object(json!({
            "metadata": { "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["kubernetes.io/pvc-protection"], "annotations": {
                "volume.kubernetes.io/storage-provisioner": "d.example",
                "volume.kubernetes.io/selected-node": "n1",
            } },
            "spec": { "storageClassName": "fast", "volumeName": "", "dataSourceRef": {
                "apiGroup": "disks.example", "kind": "VirtualDisk", "name": "web",
            } },
            "status": { "phase": "Pending" },
        })));
        let expected = ClaimFacts {
            uid: "u1".into(),
            phase: "Pending".into(),
            class: Some("fast".into()),
            provisioner: Some("d.example".into()),
            selected_node: Some("n1".into()),
            volume: None,
            populator: Some("VirtualDisk web".into()),
            ending: Some(vec!["kubernetes.io/pvc-protection".into()]),
        };
        assert_eq!(claim, expected);
    }

    #[test]
    fn a_pod_says_its_claims_and_why_it_has_no_node() {
        let pod = PodFacts::of(&object(json!({
            "metadata": { "name": "web" },
            "spec": { "containers": [], "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "b", "ephemeral": {} },
                { "name": "c", "emptyDir": {} },
            ] },
            "status": { "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "message": "0/3 nodes\u{1b}" },
            ] },
        })));
        assert_eq!(pod.claims, ["data", "web-b"]);
        assert_eq!(pod.unschedulable.as_deref(), Some("0/3 nodes\\u{1b}"));
        assert!(!pod.is_ready && pod.node.is_none());
    }

    #[test]
    fn a_pod_whose_containers_have_not_begun_says_so_until_its_volumes_are_mounted() {
        let waits = |reason| json!({ "name": "c", "state": { "waiting": { "reason": reason } } });
        let runs = json!({ "name": "c", "state": { "running": {} } });
        let facts = |init: Value, main: Value, sandbox: &str| {
            PodFacts::of(&object(json!({
                "metadata": {},
                "status": {
                    "conditions": [
                        { "type": "PodScheduled", "status": "True",
                            "lastTransitionTime": "1970-01-01T00:00:02Z" },
                        { "type": "PodReadyToStartContainers", "status": sandbox },
                    ],
                    "initContainerStatuses": init,
                    "containerStatuses": main,
                },
            })))
        };
        let creating = json!([waits("ContainerCreating")]);
        let initializing = json!([waits("PodInitializing")]);
        let pod = facts(json!([]), creating.clone(), "False");
        assert_eq!((pod.is_creating, pod.scheduled_at), (true, Some(2000)));
        assert!(facts(initializing.clone(), initializing.clone(), "False").is_creating);
        assert!(!facts(json!([runs]), initializing, "False").is_creating);
        assert!(!facts(json!([]), json!([waits("CrashLoopBackOff")]), "False").is_creating);
        assert!(!facts(json!([]), creating, "True").is_creating, "it pulls its image");
        assert!(!PodFacts::of(&Pod::default()).is_creating);
    }

    #[test]
    fn an_attachment_that_is_being_ended_says_why_it_is_not() {
        let facts = AttachmentFacts::of(&object(json!({
            "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "attacher": "d", "nodeName": "n", "source": {} },
            "status": { "attached": true, "attachError": { "message": "old" },
                "detachError": { "message": "node n1 has no link" } },
        })));
        let error = Some("node n1 has no link".to_owned());
        assert_eq!(facts, AttachmentFacts { is_attached: true, error, ending: Some(Vec::new()) });
    }

    #[test]
    fn the_newest_warning_counts_by_whichever_time_it_has() {
        let event = |message: &str, times: Value| -> Event {
            let mut event = json!({ "metadata": {}, "involvedObject": {}, "reason": "R" });
            event["message"] = message.into();
            for (key, value) in times.as_object().unwrap() {
                event[key] = value.clone();
            }
            object(event)
        };
        let events = vec![
            event("old", json!({ "lastTimestamp": "2026-01-01T00:00:00Z" })),
            event(
                "new",
                json!({ "eventTime": "2026-01-01T00:00:01.000000Z", "series":
                { "count": 2, "lastObservedTime": "2026-01-03T00:00:00.000000Z" } }),
            ),
            event("middle", json!({ "lastTimestamp": "2026-01-02T00:00:00Z" })),
        ];
        assert_eq!(newest_warning(events).as_deref(), Some("R: new"));
        assert_eq!(newest_warning(Vec::new()), None);
    }
}
