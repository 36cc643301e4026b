//! What each node is told of Kubernetes' objects, and RuntimeClasses that decide how a volume is
//! handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use drivers::testdriver::{Fault, Times};
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{capability, controller, created};
use harness::wait::until;
use harness::world::{DRIVER, NODE, hello};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use prost::Message as _;
use proto::control::hello::{Hello, Message};
use proto::control::metadata::{Key, Kind, Object, Part, Position};
use proto::csi;
use proto::csi::volume_capability::AccessType;
use proto::link::{Event, Link};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{Site, node};

const SETTINGS: &str = "grace_s = 1\nmetadata = true";
const SCOPE: &str = "scope = \"node\"";
const KEY: &str = "edge-csi.io/direct";

/// An edge that takes metadata, as far as the test goes.
#[derive(Default)]
struct Edge {
    position: Position,
    objects: BTreeMap<Key, Object>,
    takes_node: bool,
    /// How many transfers replaced everything.
    anew: usize,
}

impl Edge {
    /// Links, and states its position.
    async fn link(&self, site: &Site) -> anyhow::Result<Link> {
        let mut link = site.world.dial().await?;
        let hello =
            Hello { metadata: Some(self.position), takes_node: self.takes_node, ..hello(NODE)? };
        link.send(&Message::Hello(hello)).await?;
        match link.next().await {
            Event::Message(Message::Welcome(welcome)) => assert!(welcome.metadata),
            _ => bail!("not welcome"),
        }
        Ok(link)
    }

    /// Takes transfers until this holds.
    async fn until(
        &mut self,
        link: &mut Link,
        holds: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let taking = async {
            while !holds(self) {
                match link.next().await {
                    Event::Message(Message::Metadata(part)) => {
                        self.take(part);
                        link.send(&Message::MetadataTaken(self.position)).await?;
                    }
                    Event::Closed(error) => bail!("the link ended: {error}"),
                    _ => {}
                }
            }
            Ok(())
        };
        let taken = timeout(Duration::from_secs(20), taking).await;
        let has: Vec<_> = self.objects.keys().collect();
        taken.with_context(|| format!("it has {has:?}"))?
    }

    /// Takes a transfer, which fits into one part.
    fn take(&mut self, part: Part) {
        assert!(part.last && part.number == 0, "it fits into one part");
        if part.from.is_none() {
            self.objects.clear();
            self.anew += 1;
        }
        part.gone.iter().for_each(|key| drop(self.objects.remove(key)));
        self.objects.extend(part.objects.into_iter().map(|object| (object.key(), object)));
        self.position = part.to;
    }

    /// A label of the Node.
    fn label(&self, key: &str) -> Option<&str> {
        match self.objects.get(&Key::of_cluster(Kind::Node, NODE))? {
            Object::Node(node) => node.labels.get(key).map(|value| &**value),
            _ => None,
        }
    }

    fn has(&self, kind: Kind, name: &str) -> bool {
        self.objects.keys().any(|key| key.kind == kind && *key.name == *name)
    }
}

/// The objects of one namespace.
fn api<K>(site: &Site) -> Api<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(site.plane.admin.clone(), "default")
}

/// Makes a pod that uses a claim; returns its uid.
async fn pod(
    site: &Site,
    name: &str,
    node: Option<&str>,
    claim: &str,
    class: Option<&str>,
) -> anyhow::Result<String> {
    let mut spec = json!({
        "containers": [{"name": "c", "image": "x"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
    });
    spec["nodeName"] = json!(node);
    spec["runtimeClassName"] = json!(class);
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    let made = api::<Pod>(site).create(&PostParams::default(), &pod).await?;
    made.uid().context("no uid")
}

async fn delete_pod(site: &Site, name: &str) -> anyhow::Result<()> {
    api::<Pod>(site).delete(name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

/// Makes a claim for which the scheduler has selected a node, or not; returns its uid.
async fn claim(site: &Site, name: &str, selected: bool) -> anyhow::Result<String> {
    let mut claim = super::claim(name);
    if !selected {
        claim["metadata"]["annotations"] = json!({});
    }
    let claim = serde_json::from_value(claim)?;
    let made: PersistentVolumeClaim = api(site).create(&PostParams::default(), &claim).await?;
    made.uid().context("no uid")
}

/// Binds a volume of this id to a claim.
async fn bind(site: &Site, name: &str, claim: &str, handle: &str) -> anyhow::Result<()> {
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "x",
            "claimRef": {"namespace": "default", "name": claim},
            "csi": {"driver": DRIVER, "volumeHandle": handle,
                "volumeAttributes": {"token": "hidden"}},
        },
    });
    site.plane.make::<PersistentVolume>(volume, "x").await?;
    let named = Patch::Merge(json!({"spec": {"volumeName": name}}));
    api::<PersistentVolumeClaim>(site).patch(claim, &PatchParams::default(), &named).await?;
    Ok(())
}

async fn class(site: &Site, name: &str, handler: &str) -> anyhow::Result<()> {
    let class = json!({"metadata": {"name": name}, "handler": handler});
    site.plane.make::<RuntimeClass>(class, "x").await.map(drop)
}

#[tokio::test]
async fn a_node_is_told_of_its_own_pods_soon_and_goes_on_after_a_cut() -> anyhow::Result<()> {
    let nodes = [node(NODE, json!({})), node("n2", json!({}))];
    let Some(site) = Site::configured(&nodes, SETTINGS, SCOPE).await? else { return Ok(()) };
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    class(&site, "kata", "kata-qemu").await?;
    for (name, at, of) in [("here", NODE, "own"), ("there", "n2", "others")] {
        claim(&site, of, true).await?;
        bind(&site, &format!("pv-{of}"), of, &format!("vol-{of}")).await?;
        pod(&site, name, Some(at), of, Some("kata")).await?;
    }
    let mut edge = Edge::default();
    let mut link = edge.link(&site).await?;
    edge.until(&mut link, |edge| edge.has(Kind::Pod, "here") && edge.has(Kind::Volume, "pv-own"))
        .await?;
    edge.until(&mut link, |edge| edge.has(Kind::Driver, DRIVER)).await?;
    let names: BTreeSet<_> = edge.objects.keys().map(|key| key.name.to_string()).collect();
    let own = [DRIVER, "here", "kata", "own", "pv-own"].map(str::to_owned);
    assert_eq!(names, own.into(), "exactly what concerns its volumes");
    let text = format!("{:?}", edge.objects);
    assert!(!text.contains("hidden") && text.contains("vol-own"), "{text}");

    // Soon: of a few tries the best counts, since other tests run beside this one.
    let mut best = Duration::MAX;
    for i in 0..5 {
        let name = format!("soon-{i}");
        pod(&site, &name, Some(NODE), "own", None).await?;
        let begun = Instant::now();
        edge.until(&mut link, |edge| edge.has(Kind::Pod, &name)).await?;
        best = best.min(begun.elapsed());
    }
    assert!(best <= Duration::from_millis(200), "the best of five took {best:?}");
    assert_eq!(edge.anew, 1, "changes came as such");

    // Cut off, it has what it had, and then exactly what has changed.
    drop(link);
    delete_pod(&site, "soon-0").await?;
    pod(&site, "meanwhile", Some(NODE), "own", None).await?;
    assert!(edge.has(Kind::Pod, "soon-0"));
    let mut link = edge.link(&site).await?;
    edge.until(&mut link, |edge| {
        edge.has(Kind::Pod, "meanwhile") && !edge.has(Kind::Pod, "soon-0")
    })
    .await?;
    assert_eq!(edge.anew, 1, "it went on from its position");

    // A csi-cloud that never knew the position sends everything, so deletions are real.
    drop(link);
    edge.position.epoch += 1;
    delete_pod(&site, "meanwhile").await?;
    assert!(!edge.has(Kind::Node, NODE), "an edge of 0.2 gets no Node");
    edge.takes_node = true;
    let mut link = edge.link(&site).await?;
    edge.until(&mut link, |edge| !edge.has(Kind::Pod, "meanwhile")).await?;
    assert_eq!(edge.anew, 2);
    assert!(edge.has(Kind::Node, NODE) && !edge.has(Kind::Node, "n2"));
    let label = Patch::Merge(json!({"metadata": {"labels": {"site": "north"}}}));
    let nodes = site.plane.all::<Node>();
    nodes.patch(NODE, &PatchParams::default(), &label).await?;
    edge.until(&mut link, |edge| edge.label("site") == Some("north")).await?;
    assert_eq!(edge.anew, 2, "the Node changed alone");

    // An answer to nothing is against the rules.
    link.send(&Message::MetadataTaken(edge.position)).await?;
    while !matches!(link.next().await, Event::Closed(_)) {}
    site.plane.stop().await?;
    site.world.cloud.process.stop(harness::wait::START).await
}

/// A CreateVolume for a claim, of a class that leaves it to the pods.
fn create(claim: &str, uid: &str) -> Vec<u8> {
    let access = ("edge-csi.io/direct-access".to_owned(), "ReadWriteOnce".to_owned());
    let mut parameters = std::collections::HashMap::from([(KEY.into(), "auto".into()), access]);
    for (key, value) in [("pvc/name", claim), ("pvc/namespace", "default"), ("pv/name", "pv")] {
        parameters.insert(format!("csi.storage.k8s.io/{key}"), value.into());
    }
    csi::CreateVolumeRequest {
        name: format!("pvc-{uid}"),
        volume_capabilities: vec![capability()],
        parameters,
        ..Default::default()
    }
    .encode_to_vec()
}

async fn ask(front: &RawClient, request: &[u8]) -> anyhow::Result<RawAnswer> {
    front.call(&controller("CreateVolume"), request).await
}

/// Creates the volume of a claim; tries again while the API server's word is on its way.
async fn made(front: &RawClient, claim: &str, uid: &str) -> anyhow::Result<csi::Volume> {
    until("the volume is made", || async { created(&ask(front, &create(claim, uid)).await?) }).await
}

/// Publishes a volume to a pod at the node.
async fn publish(site: &Site, volume: &csi::Volume, pod: &str) -> anyhow::Result<RawAnswer> {
    let request = csi::NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: "/stage".into(),
        target_path: format!("/var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~csi/pv/mount"),
        volume_capability: Some(capability()),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    };
    let front = site.world.node_front().await?;
    front.call("/csi.v1.Node/NodePublishVolume", &request.encode_to_vec()).await
}

/// Waits until such a publication is refused with these words.
async fn refused(site: &Site, volume: &csi::Volume, pod: &str, words: &str) -> anyhow::Result<()> {
    until(words, || async {
        let answer = publish(site, volume, pod).await?;
        let said = answer.status().to_string();
        ensure!(said.contains(words), "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_runtime_class_decides_once_and_pods_of_the_other_kind_are_refused() -> anyhow::Result<()>
{
    let Some(site) = Site::configured(&[node(NODE, json!({}))], SETTINGS, SCOPE).await? else {
        return Ok(());
    };
    class(&site, "kata", "kata-qemu").await?;
    class(&site, "other", "runsc").await?;
    let front = site.world.front().await?;

    // Nobody uses it, and nobody will before it is bound.
    let uid = claim(&site, "immediate", false).await?;
    until("a final refusal", || async {
        let said = ask(&front, &create("immediate", &uid)).await?.status().to_string();
        ensure!(said.contains("WaitForFirstConsumer"), "{said}");
        Ok(())
    })
    .await?;
    assert!(site.world.driver.calls_of("CreateVolume").is_empty(), "nothing was sent");

    let mixed_uid = claim(&site, "mixed", true).await?;
    pod(&site, "mixed-vm", None, "mixed", Some("kata")).await?;
    pod(&site, "mixed-runc", None, "mixed", None).await?;
    let direct_uid = claim(&site, "direct", true).await?;
    // Before the scheduler binds it, the pod has no node.
    pod(&site, "vm", None, "direct", Some("kata")).await?;
    let direct = made(&front, "direct", &direct_uid).await?;
    // csi-cloud heard of the pods in their order, so it knows the earlier ones too.
    until("both kinds are known", || async {
        let said = ask(&front, &create("mixed", &mixed_uid)).await?.status().to_string();
        ensure!(said.contains("pods of both kinds") && said.contains("mixed-runc"), "{said}");
        Ok(())
    })
    .await?;
    assert_eq!(site.world.driver.calls_of("CreateVolume").len(), 1, "the mixed one was not sent");
    let wants = |key: &str| direct.volume_context.get(key).map(String::as_str);
    assert_eq!((wants(KEY), wants("edge-csi.io/direct-by")), (Some("kata"), Some("runtime-class")));
    let sent: csi::CreateVolumeRequest = site.world.driver.calls_of("CreateVolume")[0].decode()?;
    let is_block = |capability: &csi::VolumeCapability| {
        matches!(capability.access_type, Some(AccessType::Block(_)))
    };
    assert!(sent.volume_capabilities.iter().all(is_block), "a direct volume is a block volume");
    let keys: Vec<_> = sent.parameters.keys().filter(|key| key.starts_with("edge-csi")).collect();
    assert!(keys.is_empty(), "{keys:?}");

    let uid = claim(&site, "ordinary", true).await?;
    let runsc = pod(&site, "sandboxed", Some(NODE), "ordinary", Some("other")).await?;
    let ordinary = made(&front, "ordinary", &uid).await?;
    assert_eq!(ordinary.volume_context.get(KEY).map(String::as_str), Some("none"));

    // The decision stays, whatever pods come later.
    delete_pod(&site, "vm").await?;
    let late = pod(&site, "late", Some(NODE), "direct", None).await?;
    let again = made(&front, "direct", &direct_uid).await?;
    assert_eq!(again.volume_context, direct.volume_context);
    refused(&site, &direct, &late, "pod default/late has no RuntimeClass").await?;
    let vm = pod(&site, "vm-later", Some(NODE), "ordinary", Some("kata")).await?;
    refused(&site, &ordinary, &vm, "pod default/vm-later has RuntimeClass kata").await?;
    assert!(site.world.driver.calls_of("NodePublishVolume").is_empty(), "the driver was not asked");
    // The pod that it was made for gets it, and the driver sees none of our keys.
    let answer = publish(&site, &ordinary, &runsc).await?;
    assert!(answer.message().is_some(), "{}", answer.status());
    let published: csi::NodePublishVolumeRequest =
        site.world.driver.calls_of("NodePublishVolume")[0].decode()?;
    let ours = published.volume_context.keys().any(|key| key.starts_with("edge-csi.io/"));
    assert!(!ours, "{:?}", published.volume_context);
    offline(site, ordinary, (&runsc, &vm)).await
}

#[tokio::test]
async fn an_attempt_that_may_have_arrived_has_decided_for_all_later_ones() -> anyhow::Result<()> {
    let Some(site) = Site::configured(&[node(NODE, json!({}))], SETTINGS, SCOPE).await? else {
        return Ok(());
    };
    class(&site, "kata", "kata-qemu").await?;
    let front = site.world.front().await?;
    let driver = &site.world.driver;
    driver.inject("CreateVolume", Fault::DieAfterWork, Times::All);
    let uid = claim(&site, "direct", true).await?;
    pod(&site, "vm", None, "direct", Some("kata")).await?;
    until("an attempt at the driver", || async {
        let said = ask(&front, &create("direct", &uid)).await?.status().to_string();
        ensure!(!driver.calls_of("CreateVolume").is_empty(), "{said}");
        Ok(())
    })
    .await?;
    delete_pod(&site, "vm").await?;
    pod(&site, "host", None, "direct", None).await?;
    let late_uid = claim(&site, "late", true).await?;
    pod(&site, "late-host", None, "late", None).await?;
    driver.clear_faults();
    // csi-cloud hears of pods in their order, so it knows that the one in a guest has gone.
    let late = made(&front, "late", &late_uid).await?;
    assert_eq!(late.volume_context.get(KEY).map(String::as_str), Some("none"));
    let volume = made(&front, "direct", &uid).await?;
    assert_eq!(volume.volume_context.get(KEY).map(String::as_str), Some("kata"));
    site.stop().await
}

/// Without the cloud, what was known decides, and nothing else is guessed.
async fn offline(site: Site, volume: csi::Volume, pods: (&str, &str)) -> anyhow::Result<()> {
    site.world.cloud.process.signal(rustix::process::Signal::KILL)?;
    let answer = publish(&site, &volume, pods.0).await?;
    assert!(answer.message().is_some(), "{}", answer.status());
    refused(&site, &volume, pods.1, "has RuntimeClass kata").await?;
    refused(&site, &volume, "unknown", "the RuntimeClass of pod unknown").await?;
    site.plane.stop().await?;
    site.world.edge.stop(harness::wait::STOP).await
}

#[tokio::test]
async fn without_metadata_auto_is_refused_and_not_guessed() -> anyhow::Result<()> {
    let Some(site) = Site::configured(&[node(NODE, json!({}))], "grace_s = 1", SCOPE).await? else {
        return Ok(());
    };
    let uid = claim(&site, "direct", true).await?;
    let front = site.world.front().await?;
    let said = ask(&front, &create("direct", &uid)).await?.status().to_string();
    assert!(said.contains("metadata = true"), "{said}");
    assert!(site.world.driver.calls_of("CreateVolume").is_empty());
    site.stop().await
}
