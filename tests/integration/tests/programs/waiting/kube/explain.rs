//! `csi-cloud explain` on a real API server: each state is made, and its cause is named with its
//! node.

use std::collections::BTreeMap;

use harness::raw::RawClient;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};

use super::*;

/// A cause, as the command names it, and the node that its last sentence names.
type Expected<'a> = (&'a str, Option<&'a str>);

impl Site {
    /// What `csi-cloud explain` says.
    pub(super) async fn explained(&self, subject: &[&str]) -> anyhow::Result<Value> {
        let said = self.say(&[&["explain"], subject, &["-o", "json"]].concat()).await?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Waits until the verdict is this one. Its sentence is the last line of the table.
    pub(super) async fn explains(
        &self,
        subject: &[&str],
        expected: Expected<'_>,
    ) -> anyhow::Result<()> {
        let (cause, node) = expected;
        until(&format!("{subject:?}: {cause}"), || async {
            let said = self.explained(subject).await?;
            let verdict = &said["verdict"];
            ensure!(verdict["cause"] == cause && verdict["node"] == json!(node), "{said}");
            let table = self.say(&[&["explain"], subject].concat()).await?;
            let text = verdict["text"].as_str().context("no text")?;
            let last = table.lines().last().context("no line")?;
            ensure!(last.starts_with(text), "{table}");
            ensure!(node.is_none_or(|node| last.contains(node)), "{table}");
            Ok(())
        })
        .await
    }

    /// Makes an object in the namespace `default`.
    pub(super) async fn in_default<K>(&self, object: Value) -> anyhow::Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        let api = Api::<K>::namespaced(self.plane.admin.clone(), "default");
        Ok(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    async fn class(&self, name: &str, driver: &str, mode: &str) -> anyhow::Result<()> {
        let class = json!({
            "metadata": {"name": name}, "provisioner": driver, "volumeBindingMode": mode,
        });
        self.plane.make::<StorageClass>(class, "admin").await.map(drop)
    }

    /// A warning about an object, as a sidecar or a kubelet writes it.
    async fn warning(
        &self,
        kind: &str,
        name: &str,
        reason: &str,
        message: &str,
    ) -> anyhow::Result<()> {
        let event = json!({
            "metadata": {"generateName": name, "namespace": "default"},
            "involvedObject": {"kind": kind, "name": name, "namespace": "default"},
            "type": "Warning", "reason": reason, "message": message,
            "lastTimestamp": "2026-01-01T00:00:00Z",
        });
        self.in_default::<Event>(event).await.map(drop)
    }

    /// A volume with its PersistentVolume and its claim, which is bound to it.
    pub(super) async fn bound(&self, claim: &str, handle: &str) -> anyhow::Result<()> {
        let volume = json!({
            "metadata": {"name": format!("pv-{claim}")},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": DRIVER, "volumeHandle": handle}},
        });
        self.plane.make::<PersistentVolume>(volume, "admin").await?;
        let mut object = self::claim(claim);
        object["spec"]["volumeName"] = json!(format!("pv-{claim}"));
        self.in_default::<PersistentVolumeClaim>(object).await.map(drop)
    }
}

/// A claim of a class, with annotations.
pub(super) fn of_class(name: &str, class: Option<&str>, annotations: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    json!({
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Mi"}}},
    })
}

pub(super) fn pod(name: &str, claim: &str, node: Option<&str>) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
    })
}

#[tokio::test]
async fn a_claim_without_a_volume_says_what_it_waits_for() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.class("later", DRIVER, "WaitForFirstConsumer").await?;
    site.class("now", DRIVER, "Immediate").await?;
    site.class("others", "other.example", "Immediate").await?;
    let by = ("volume.kubernetes.io/storage-provisioner", DRIVER);
    let at = |node| ("volume.kubernetes.io/selected-node", node);
    for object in [
        of_class("no-class", None, &[]),
        of_class("class-gone", Some("gone"), &[]),
        of_class("others", Some("others"), &[]),
        of_class("later", Some("later"), &[]),
        of_class("now", Some("now"), &[by]),
        of_class("failed", Some("now"), &[by]),
        of_class("nowhere", Some("later"), &[by, at("n9")]),
        of_class("chosen", Some("later"), &[by, at(NODE)]),
    ] {
        site.in_default::<PersistentVolumeClaim>(object).await?;
    }
    // The driver refuses its create, which lacks capabilities.
    let refused = of_class("refused", Some("now"), &[by]);
    let refused = site.in_default::<PersistentVolumeClaim>(refused).await?;
    let name = format!("pvc-{}", refused.uid().context("no uid")?);
    let request = csi::CreateVolumeRequest { name, ..Default::default() }.encode_to_vec();
    site.world.front().await?.call(&controller("CreateVolume"), &request).await?;
    let message = "rpc error: code = ResourceExhausted desc = node n1: the disk is full";
    site.warning("PersistentVolumeClaim", "failed", "ProvisioningFailed", message).await?;
    for (name, expected) in [
        ("missing", ("not-found", None)),
        ("no-class", ("no-class", None)),
        ("class-gone", ("no-class", None)),
        ("others", ("no-front", None)),
        ("later", ("no-pod", None)),
        ("now", ("no-call", None)),
        ("failed", ("call-failed", None)),
        ("nowhere", ("node-unknown", Some("n9"))),
        ("chosen", ("no-call", None)),
        ("refused", ("call-failed", Some(NODE))),
    ] {
        let name = format!("default/{name}");
        site.explains(&["pvc", &name], expected).await?;
    }
    let text = site.explained(&["pvc", "default/failed"]).await?["verdict"].to_string();
    assert!(text.contains("node n1: the disk is full"), "{text}");
    let wrong = site.say(&["explain", "pvc", "data"]).await.err().context("it took a bad name")?;
    assert!(format!("{wrong:#}").contains("NAMESPACE/NAME"), "{wrong:#}");
    // The edge goes, and later for good.
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    site.explains(&["pvc", "default/chosen"], ("node-away", Some(NODE))).await?;
    site.explains(&["driver", DRIVER], ("node-away", Some(NODE))).await?;
    site.say(&["node", "remove", NODE, "--yes"]).await?;
    site.explains(&["pvc", "default/chosen"], ("node-removed", Some(NODE))).await?;
    site.explains(&["node", NODE], ("node-removed", Some(NODE))).await?;
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}

/// The status of a pod whose kubelet has begun no container, and says nothing.
fn creating() -> Value {
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    json!({"status": {
        "conditions": [{"type": "PodScheduled", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{"name": "c", "image": "x", "imageID": "", "ready": false,
            "restartCount": 0, "state": waiting}],
    }})
}

#[tokio::test]
async fn a_pod_says_which_of_its_volumes_is_the_matter() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.published(NODE, true).await?;
    let front = site.world.front().await?;
    let made = created(&front.call(&controller("CreateVolume"), &create_for("u-1")).await?)?;
    site.bound("good", &made.volume_id).await?;
    site.bound("strange", "never-made").await?;
    for object in [
        pod("good", "good", Some(NODE)),
        pod("strange", "strange", Some(NODE)),
        pod("elsewhere", "good", Some("n2")),
        pod("mounts", "good", Some(NODE)),
        pod("begins", "good", Some(NODE)),
        pod("unscheduled", "good", None),
    ] {
        site.in_default::<Pod>(object).await?;
    }
    site.warning("Pod", "mounts", "FailedMount", "node n1: wrong fs type").await?;
    let status = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/1 nodes are available"}]}});
    let pods: Api<Pod> = Api::namespaced(site.plane.admin.clone(), "default");
    pods.patch_status("unscheduled", &PatchParams::default(), &Patch::Merge(status)).await?;
    pods.patch_status("begins", &PatchParams::default(), &Patch::Merge(creating())).await?;
    for (subject, expected) in [
        (["pod", "default/good"], ("fine", None)),
        (["pod", "default/strange"], ("volume-unknown", None)),
        (["pod", "default/elsewhere"], ("node-unknown", Some("n2"))),
        (["pod", "default/mounts"], ("not-mounted", Some(NODE))),
        (["pod", "default/begins"], ("not-mounted", Some(NODE))),
        (["pod", "default/unscheduled"], ("unschedulable", None)),
        (["pod", "default/none"], ("not-found", None)),
        (["pvc", "default/good"], ("fine", None)),
        (["pv", "pv-good"], ("fine", None)),
        (["node", NODE], ("fine", None)),
        (["driver", DRIVER], ("fine", None)),
    ] {
        site.explains(&subject, expected).await?;
    }
    last_calls(&site, &front, &made.volume_id).await?;
    // The attachment is refused.
    let name = attachment(&site, &made.volume_id).await?;
    let attachments = site.plane.all::<VolumeAttachment>();
    let status =
        json!({"status": {"attached": false, "attachError": {"message": "node n1: busy"}}});
    attachments.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    site.explains(&["pod", "default/good"], ("not-attached", Some(NODE))).await?;
    not_unstaged(&site, &attachments, &name).await?;
    attachments.delete(&name, &DeleteParams::default()).await?;
    terminating(&site).await?;
    // The node's kubelet loses the driver, then the node its link, and then it is gone for good.
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    for subject in [["pod", "default/good"], ["pv", "pv-good"], ["pvc", "default/good"]] {
        site.explains(&subject, ("node-away", Some(NODE))).await?;
    }
    site.explains(&["volume", DRIVER, &made.volume_id], ("node-away", Some(NODE))).await?;
    site.say(&["node", "remove", NODE, "--yes"]).await?;
    site.explains(&["pod", "default/good"], ("volume-lost", Some(NODE))).await?;
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}

/// A claim and its volume are deleted while Kubernetes protects them: nothing is wrong but that.
async fn terminating(site: &Site) -> anyhow::Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(site.plane.admin.clone(), "default");
    claims.delete("strange", &DeleteParams::default()).await?;
    site.plane.all::<PersistentVolume>().delete("pv-strange", &DeleteParams::default()).await?;
    site.in_default::<PersistentVolumeClaim>(of_class("unused", None, &[])).await?;
    claims.delete("unused", &DeleteParams::default()).await?;
    for (subject, kept_by) in [
        (["pvc", "default/unused"], "kubernetes.io/pvc-protection"),
        (["pv", "pv-strange"], "kubernetes.io/pv-protection"),
    ] {
        let said = site.explained(&subject).await?;
        let steps = said["steps"].to_string();
        ensure!(steps.contains(&format!("kept by {kept_by}")), "{said}");
    }
    Ok(())
}

/// The claim is gone, and its volume stays attached: the kubelet does not unstage it.
async fn not_unstaged(
    site: &Site,
    attachments: &Api<VolumeAttachment>,
    name: &str,
) -> anyhow::Result<()> {
    let status = json!({"status": {"attached": true, "attachError": null}});
    attachments.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    site.explains(&["pv", "pv-good"], ("fine", None)).await?;
    phase(site, "Released").await?;
    site.explains(&["pv", "pv-good"], ("not-unstaged", Some(NODE))).await?;
    phase(site, "Bound").await
}

/// The phase of the good claim's volume, as Kubernetes sets it.
async fn phase(site: &Site, phase: &str) -> anyhow::Result<()> {
    let volumes = site.plane.all::<PersistentVolume>();
    let status = Patch::Merge(json!({"status": {"phase": phase}}));
    volumes.patch_status("pv-good", &PatchParams::default(), &status).await?;
    Ok(())
}

/// The last call about the volume fails, and then one does not.
async fn last_calls(site: &Site, front: &RawClient, id: &str) -> anyhow::Result<()> {
    for (required_bytes, expected) in
        [(None, ("call-failed", Some(NODE))), (Some(1 << 20), ("fine", None))]
    {
        let capacity_range = required_bytes
            .map(|required_bytes| csi::CapacityRange { required_bytes, limit_bytes: 0 });
        let volume_id = id.to_owned();
        let request =
            csi::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
        front.call(&controller("ControllerExpandVolume"), &request.encode_to_vec()).await?;
        for subject in [["pod", "default/good"], ["pvc", "default/good"], ["node", NODE]] {
            site.explains(&subject, expected).await?;
        }
        let steps = site.explained(&["pv", "pv-good"]).await?["steps"].to_string();
        assert!(steps.contains("last ControllerExpandVolume of"), "{steps}");
    }
    Ok(())
}

/// Makes the attachment of a volume at the node, under the name that Kubernetes gives it.
pub(super) async fn attachment(site: &Site, id: &str) -> anyhow::Result<String> {
    let hash =
        ring::digest::digest(&ring::digest::SHA256, format!("{id}{DRIVER}{NODE}").as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("csi-{hex}");
    let object = json!({
        "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": NODE,
            "source": {"persistentVolumeName": "pv-good"}},
    });
    site.plane.make::<VolumeAttachment>(object, "admin").await?;
    Ok(name)
}
