//! Watches the objects that concern nodes' volumes, and passes on what of them matters.
//!
//! Objects are stripped as they come. Secrets are not read, and what is passed on names none.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::Api;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Event};
use proto::control::metadata as sent;
use proto::control::metadata::{Key, Kind, Object, PodVolume};
use proto::host::tasks::{TaskKind, Tasks};

use crate::kubernetes::api::Server;
use crate::kubernetes::node_metadata;
use crate::kubernetes::watch::follow;
use crate::metadata::handlers::Handlers;
use crate::metadata::index::Change;
use crate::metadata::inventory::Observed;
use crate::metadata::shared::Metadata;

/// Objects that a list asks for at a time. Pods are large before they are stripped.
const PAGE: u32 = 250;
/// The scheduler's choice for a claim.
const SELECTED: &str = "volume.kubernetes.io/selected-node";

type Boxed = Option<Box<str>>;

/// Starts the watch of each kind.
pub(super) fn watch_all(
    server: &Arc<Server>,
    metadata: &Arc<Metadata>,
    handlers: Handlers,
    tasks: &Tasks,
) {
    let watches = Watches { server, metadata, tasks };
    watches.begin("Pod metadata watch", Kind::Pod, pod);
    watches.begin("PersistentVolumeClaim metadata watch", Kind::Claim, claim);
    watches.begin("PersistentVolume metadata watch", Kind::Volume, volume);
    watches.begin("VolumeAttachment metadata watch", Kind::Attachment, attachment);
    watches.begin("CSIDriver metadata watch", Kind::Driver, driver);
    let class = move |class: &RuntimeClass| runtime_class(class, &handlers);
    watches.begin("RuntimeClass metadata watch", Kind::RuntimeClass, class);
    watches.begin("Node metadata watch", Kind::Node, node_metadata::node);
}

struct Watches<'a> {
    server: &'a Arc<Server>,
    metadata: &'a Arc<Metadata>,
    tasks: &'a Tasks,
}

impl Watches<'_> {
    fn begin<K>(
        &self,
        what: &'static str,
        kind: Kind,
        read: impl Fn(&K) -> Option<Observed> + Send + Sync + 'static,
    ) where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
        K: serde::de::DeserializeOwned,
    {
        let metadata = self.metadata.clone();
        let config = Config::default().page_size(PAGE);
        let events = watcher(Api::<K>::all(self.server.client.clone()), config);
        let take = move |event| metadata.take(kind, change(kind, event, &read));
        let following = follow(what, self.server.clone(), events, take);
        self.tasks.spawn_until_stop(TaskKind::All("metadata watch"), following);
    }
}

/// The change in an event.
fn change<K: kube::Resource>(
    kind: Kind,
    event: Event<K>,
    read: impl Fn(&K) -> Option<Observed>,
) -> Change {
    let key = |object: &K| {
        let metadata = object.meta();
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        Key::within(kind, namespace, metadata.name.as_deref().unwrap_or_default())
    };
    match event {
        Event::Init => Change::Begin,
        Event::InitApply(object) => Change::Listed(key(&object), read(&object)),
        Event::InitDone => Change::Whole,
        Event::Apply(object) => Change::Set(key(&object), read(&object)),
        Event::Delete(object) => Change::Set(key(&object), None),
    }
}

fn boxed(text: Option<&String>) -> Boxed {
    text.map(|text| text.as_str().into())
}

fn text(text: Option<&String>) -> Box<str> {
    boxed(text).unwrap_or_default()
}

/// A Pod with volumes of claims or of inline drivers; none without.
fn pod(pod: &v1::Pod) -> Option<Observed> {
    let spec = pod.spec.as_ref()?;
    let name = text(pod.metadata.name.as_ref());
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| pod_volume(&name, volume));
    let volumes: Box<[PodVolume]> = volumes.collect();
    if volumes.is_empty() {
        return None;
    }
    let security = spec.security_context.as_ref();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let object = Object::Pod(sent::Pod {
        namespace: text(pod.metadata.namespace.as_ref()),
        name,
        uid: text(pod.metadata.uid.as_ref()),
        volumes,
        runtime_class: boxed(spec.runtime_class_name.as_ref()),
        fs_group: security.and_then(|security| security.fs_group),
        fs_group_policy: boxed(security.and_then(|of| of.fs_group_change_policy.as_ref())),
        requires_plugin: pod.metadata.annotations.as_ref().is_some_and(requires_plugin),
        deleting: pod.metadata.deletion_timestamp.is_some(),
    });
    Some(Observed {
        node: boxed(spec.node_name.as_ref()).filter(|node| !node.is_empty()),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        ..Observed::new(object)
    })
}

/// True if NRI's default validator refuses each container of a Pod without csi-edge's plugin. An
/// annotation for one container outweighs that of the Pod, so all of them must name the plugin.
fn requires_plugin(annotations: &BTreeMap<String, String>) -> bool {
    let mut whole_pod = false;
    for (key, value) in annotations {
        let Some(scope) = key.strip_prefix(sent::REQUIRED_PLUGINS) else { continue };
        match scope {
            "" | "/pod" => whole_pod = true,
            _ if scope.starts_with("/container.") => {}
            _ => continue,
        }
        if !names_plugin(value) {
            return false;
        }
    }
    whole_pod
}

/// True if a list in YAML, as NRI reads it, has csi-edge's plugin, with its index or without. A
/// value with a comment does not count.
fn names_plugin(list: &str) -> bool {
    let mut words = list.split(|c: char| c.is_whitespace() || "[],\"'".contains(c));
    !list.contains('#') && words.any(is_plugin)
}

/// True for the plugin's name, and for that after its index and `-`.
fn is_plugin(word: &str) -> bool {
    match word.strip_suffix(sent::NRI_PLUGIN) {
        None => false,
        Some("") => true,
        Some(index) => index.strip_suffix('-').is_some_and(|digits| {
            digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit())
        }),
    }
}

fn pod_volume(pod: &str, volume: &v1::Volume) -> Option<PodVolume> {
    let named = volume.persistent_volume_claim.as_ref().map(|of| of.claim_name.as_str().into());
    // Kubernetes names the claim of an ephemeral volume so.
    let own = || volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name).into());
    let claim: Boxed = named.or_else(own);
    let driver: Boxed = volume.csi.as_ref().map(|inline| inline.driver.as_str().into());
    if claim.is_none() && driver.is_none() {
        return None;
    }
    Some(PodVolume { name: volume.name.as_str().into(), claim, driver })
}

fn claim(claim: &v1::PersistentVolumeClaim) -> Option<Observed> {
    let metadata = &claim.metadata;
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    let annotations = metadata.annotations.as_ref();
    let object = Object::Claim(sent::Claim {
        namespace: text(metadata.namespace.as_ref()),
        name: text(metadata.name.as_ref()),
        uid: text(metadata.uid.as_ref()),
        volume: boxed(volume).filter(|name| !name.is_empty()),
        deleting: metadata.deletion_timestamp.is_some(),
    });
    let selected = annotations.is_some_and(|annotations| annotations.contains_key(SELECTED));
    Some(Observed { selected, ..Observed::new(object) })
}

/// A volume of a CSI driver. Its attributes and its references to secrets stay here.
fn volume(volume: &v1::PersistentVolume) -> Option<Observed> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref()?;
    let claim = spec.claim_ref.as_ref().and_then(|claim| {
        let namespace = boxed(claim.namespace.as_ref())?;
        Some((namespace, boxed(claim.name.as_ref())?))
    });
    Some(Observed::new(Object::Volume(sent::Volume {
        name: text(volume.metadata.name.as_ref()),
        driver: csi.driver.as_str().into(),
        handle: csi.volume_handle.as_str().into(),
        claim,
        deleting: volume.metadata.deletion_timestamp.is_some(),
    })))
}

fn attachment(attachment: &VolumeAttachment) -> Option<Observed> {
    let spec = &attachment.spec;
    Some(Observed::new(Object::Attachment(sent::Attachment {
        name: text(attachment.metadata.name.as_ref()),
        volume: boxed(spec.source.persistent_volume_name.as_ref())?,
        node: spec.node_name.as_str().into(),
        attached: attachment.status.as_ref().is_some_and(|status| status.attached),
        deleting: attachment.metadata.deletion_timestamp.is_some(),
    })))
}

fn driver(driver: &CSIDriver) -> Option<Observed> {
    let spec = &driver.spec;
    Some(Observed::new(Object::Driver(sent::Driver {
        name: text(driver.metadata.name.as_ref()),
        // The API's defaults.
        attach_required: spec.attach_required.unwrap_or(true),
        pod_info_on_mount: spec.pod_info_on_mount.unwrap_or(false),
        fs_group_policy: boxed(spec.fs_group_policy.as_ref()),
    })))
}

fn runtime_class(class: &RuntimeClass, handlers: &Handlers) -> Option<Observed> {
    Some(Observed::new(Object::RuntimeClass(sent::RuntimeClass {
        name: text(class.metadata.name.as_ref()),
        handler: class.handler.as_str().into(),
        direct: handlers.takes_direct(&class.handler),
        added: handlers.is_added(&class.handler),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read<K: serde::de::DeserializeOwned>(
        read: impl Fn(&K) -> Option<Observed>,
        object: serde_json::Value,
    ) -> Option<Observed> {
        read(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_pod_is_stripped_to_what_its_volumes_need() {
        let volumes = json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "db"}},
            {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "in", "csi": {"driver": "d.example", "nodePublishSecretRef": {"name": "s"}}},
            {"name": "s", "secret": {"secretName": "hidden"}},
        ]);
        let observed = read(
            pod,
            json!({
                "metadata": {"namespace": "shop", "name": "db-0", "uid": "u"},
                "spec": {
                    "nodeName": "n1", "runtimeClassName": "kata", "volumes": volumes,
                    "containers": [{"name": "c", "env": [{"name": "PASSWORD", "value": "hidden"}]}],
                    "securityContext": {"fsGroup": 5, "fsGroupChangePolicy": "Always"},
                },
                "status": {"phase": "Running"},
            }),
        );
        let observed = observed.unwrap();
        assert_eq!((observed.node.as_deref(), observed.finished), (Some("n1"), false));
        let text = serde_json::to_string(observed.object.as_ref()).unwrap();
        let volumes = concat!(
            r#"[{"name":"data","claim":"db"},{"name":"tmp","claim":"db-0-tmp"},"#,
            r#"{"name":"in","driver":"d.example"}]"#
        );
        let pod_text = format!(
            r#"{{"pod":{{"namespace":"shop","name":"db-0","uid":"u","volumes":{volumes},{}}}}}"#,
            r#""runtime_class":"kata","fs_group":5,"fs_group_policy":"Always""#
        );
        assert_eq!(text, pod_text);
        let without = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
        assert_eq!(read(pod, without), None);
    }

    #[test]
    fn a_pod_requires_the_plugin_if_each_of_its_containers_does() {
        let required = |annotations: &[(&str, &str)]| {
            let own = |(key, value): &(&str, &str)| {
                (format!("{}{key}", sent::REQUIRED_PLUGINS), (*value).to_owned())
            };
            requires_plugin(&annotations.iter().map(own).collect())
        };
        for list in ["[\"edge-csi-direct\"]", "- other\n- '10-edge-csi-direct'\n"] {
            assert!(required(&[("", list)]) && required(&[("/pod", list)]), "{list}");
            assert!(!required(&[("/container.app", list)]), "the others do not");
            assert!(!required(&[("", list), ("/container.app", "[]")]));
            assert!(required(&[("", list), ("/container.app", list), ("/other", "[]")]));
            assert!(!required(&[("x", list)]));
        }
        for list in ["", "[]", "[edge-csi]", "[x-edge-csi-direct]", "[] # edge-csi-direct"] {
            assert!(!required(&[("", list)]), "{list}");
        }
        assert!(!required(&[]));
    }

    #[test]
    fn a_volume_is_sent_without_its_attributes_and_secrets() {
        let csi = json!({
            "driver": "d.example", "volumeHandle": "h", "volumeAttributes": {"token": "hidden"},
            "nodeStageSecretRef": {"name": "hidden", "namespace": "hidden"},
        });
        let spec = json!({"csi": csi, "claimRef": {"namespace": "shop", "name": "db"}});
        let observed = read(volume, json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        let text = serde_json::to_string(observed.object.as_ref()).unwrap();
        let volume_text = concat!(
            r#"{"volume":{"name":"pv","driver":"d.example","handle":"h","#,
            r#""claim":["shop","db"]}}"#
        );
        assert_eq!(text, volume_text);
        let other = json!({"metadata": {"name": "pv"}, "spec": {"hostPath": {"path": "/x"}}});
        assert_eq!(read(volume, other), None);
    }

    #[test]
    fn events_keep_an_objects_key_whatever_is_left_of_it() {
        let pod_of = |name: &str| -> v1::Pod {
            serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name}})).unwrap()
        };
        let key = Key::within(Kind::Pod, "n", "p");
        for event in [Event::Apply(pod_of("p")), Event::Delete(pod_of("p"))] {
            match change(Kind::Pod, event, pod) {
                Change::Set(at, None) => assert_eq!(at, key),
                _ => panic!("another change"),
            }
        }
    }
}
