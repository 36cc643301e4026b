//! Asks the API server and csi-cloud itself, and has the facts judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Resource, ResourceExt};
use proto::admin::doctor::Finding;
use proto::csi::{Capabilities, Local};
use proto::names::{DriverName, NodeName};
use serde::de::DeserializeOwned;

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::doctor::expansion::Waiting;
use crate::kubernetes::doctor::lookup::{Lookup, hidden};
use crate::kubernetes::doctor::nodes::EdgeNode;
use crate::kubernetes::doctor::{attachments, cluster, daemon_set, expansion, nodes};
use crate::kubernetes::front_topology;
use crate::kubernetes::mirror::{KnownCsiNode, KnownNode, Mirror};
use crate::kubernetes::objects::Objects;
use crate::kubernetes::settings::Publish;
use crate::nodes::links::Links;
use crate::state::capabilities::capability_names;
use crate::state::store::writer::Store;

/// Looks at an installation.
pub struct Doctor {
    pub(in crate::kubernetes) server: Arc<Server>,
    pub(in crate::kubernetes) mirror: Arc<Mirror>,
    pub(in crate::kubernetes) links: Arc<Links>,
    pub(in crate::kubernetes) store: Store,
    /// The drivers that have a front.
    pub(in crate::kubernetes) drivers: BTreeSet<DriverName>,
    pub(in crate::kubernetes) publish: Publish,
    /// Single objects.
    pub objects: Objects,
    /// True if nodes join by tokens of a ServiceAccount.
    pub(in crate::kubernetes) joins: bool,
    /// True if the metadata of pods is watched.
    pub(in crate::kubernetes) metadata: bool,
}

/// A node that KubeEdge labels, as the API server has it.
struct Edge {
    labels: BTreeMap<String, String>,
    csinode: Option<KnownCsiNode>,
}

type Edges = BTreeMap<String, Edge>;

impl Doctor {
    /// Everything that KubeEdge needs, and how it is.
    pub async fn kubeedge(&self) -> Vec<Finding> {
        let role = self.look_for("ClusterRole get", cluster::CLOUDCORE).await;
        let policy = self.look_for("ValidatingAdmissionPolicy get", cluster::POLICY).await;
        let binding = "ValidatingAdmissionPolicyBinding get";
        let binding = self.look_for(binding, cluster::POLICY).await;
        let mut findings = vec![
            cluster::rights(&role),
            cluster::policy(&policy, &binding),
            cluster::object_syncs(&self.object_syncs().await.into()),
        ];
        if !self.mirror.has_nodes() || !self.mirror.has_drivers() {
            let advice = "ask again in a few seconds; then look at the log of csi-cloud";
            let found = "csi-cloud has not read them yet";
            findings.push(Finding::unknown("nodes", "Nodes", found, advice));
            return findings;
        }
        findings.extend(self.attachments());
        let edges = self.edges();
        findings.extend(self.nodes(&edges));
        findings.extend(self.expansions(&edges));
        findings.extend(self.daemon_set(&edges).await);
        findings.extend(self.claims(&edges).await);
        findings
    }

    /// An object that is in no namespace.
    async fn look_for<K>(&self, what: &'static str, name: &str) -> Lookup<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = Api::all(self.server.client.clone());
        self.server.ask(what, api.get(name)).await.into()
    }

    /// The names of the ObjectSyncs that are about VolumeAttachments.
    async fn object_syncs(&self) -> Result<Vec<String>, ApiError> {
        let (group, plural) = cluster::OBJECT_SYNCS;
        let kind = GroupVersionKind::gvk(group, "v1alpha1", "ObjectSync");
        let kind = ApiResource::from_gvk_with_plural(&kind, plural);
        let api: Api<DynamicObject> = Api::all_with(self.server.client.clone(), &kind);
        let all = self.server.list("ObjectSync list", &api, |object| {
            let is_attachment = object.data["spec"]["objectKind"] == "VolumeAttachment";
            let name = object.name_any();
            is_attachment.then(|| format!("{}/{name}", object.namespace().unwrap_or_default()))
        });
        all.await
    }

    fn attachments(&self) -> Vec<Finding> {
        let objects = self.mirror.objects();
        let live = objects.drivers.items();
        let finding =
            |driver: &DriverName| attachments::required(driver, live.get(driver.as_str()));
        self.drivers.iter().map(finding).collect()
    }

    /// The nodes that KubeEdge labels.
    fn edges(&self) -> Edges {
        let objects = self.mirror.objects();
        let edges = objects.nodes.items().iter().filter(|(_, node)| front_topology::is_edge(node));
        let edge = |(name, node): (&String, &KnownNode)| {
            let csinode = objects.csinodes.items().get(name).cloned();
            (name.clone(), Edge { labels: node.labels.clone(), csinode })
        };
        edges.map(edge).collect()
    }

    fn nodes(&self, edges: &Edges) -> Vec<Finding> {
        let facts = edges.iter().map(|(name, edge)| {
            let node: Option<NodeName> = name.parse().ok();
            let node = node.as_ref();
            let left_out = node.and_then(|node| self.links.topology_published_at(node));
            EdgeNode {
                name,
                csinode: edge.csinode.as_ref(),
                drivers: node.map(|node| self.drivers_at(node)).unwrap_or_default(),
                is_linked: node.is_some_and(|node| self.links.now(node).is_some()),
                left_out: left_out.unwrap_or_default().into_keys().collect(),
            }
        });
        nodes::findings(&facts.collect::<Vec<_>>(), self.publish)
    }

    /// The drivers with a front that a node has.
    fn drivers_at(&self, node: &NodeName) -> Vec<DriverName> {
        self.store.read(|state| {
            let has = |driver: &&DriverName| {
                state.driver(driver).is_some_and(|of| of.nodes().contains_key(node))
            };
            self.drivers.iter().filter(has).cloned().collect()
        })
    }

    /// The findings about node expansion, for each driver that needs it.
    fn expansions(&self, edges: &Edges) -> Vec<Finding> {
        let linked = edges.keys().filter_map(|name| {
            let node: NodeName = name.parse().ok()?;
            let link = self.links.now(&node)?;
            Some((name.clone(), self.drivers_at(&node), link.peer.expands))
        });
        let linked: Vec<_> = linked.collect();
        let finding = |driver: &DriverName| {
            let having: Vec<_> =
                linked.iter().filter(|(_, drivers, _)| drivers.contains(driver)).collect();
            let without = having.iter().filter(|(.., expands)| !expands);
            let without: Vec<_> = without.map(|(name, ..)| name.clone()).collect();
            let is_asked = !having.is_empty() && self.expands_at_nodes(driver);
            is_asked.then(|| expansion::drivers_half(driver, &without))
        };
        self.drivers.iter().filter_map(finding).collect()
    }

    /// True if a driver has a node's half of expansion.
    fn expands_at_nodes(&self, driver: &DriverName) -> bool {
        let kind = Capabilities::Node;
        self.store.read(|state| {
            let info = state.driver(driver).map(|of| of.info());
            let answer =
                info.and_then(|info| info.answer(Local::Capabilities(kind), false).ok()?);
            let names = answer.map(|answer| capability_names(kind, &answer)).unwrap_or_default();
            names.iter().any(|can| can == "EXPAND_VOLUME")
        })
    }

    /// csi-edge's DaemonSet, in csi-cloud's own namespace.
    async fn daemon_set(&self, edges: &Edges) -> Vec<Finding> {
        let api: Api<DaemonSet> = Api::default_namespaced(self.server.client.clone());
        let looked = self.server.ask("DaemonSet get", api.get(daemon_set::NAME)).await.into();
        let labels = edges.iter().map(|(name, edge)| (name.as_str(), &edge.labels)).collect();
        daemon_set::findings(&looked, &labels)
    }

    async fn claims(&self, edges: &Edges) -> Vec<Finding> {
        let api: Api<PersistentVolumeClaim> = Api::all(self.server.client.clone());
        let read = |claim| expansion::waiting(&claim);
        match self.server.list("PersistentVolumeClaim list", &api, read).await.into() {
            Lookup::Found(waiting) => {
                let is_edge = |one: &Waiting| {
                    self.drivers.contains(one.driver()) && edges.contains_key(one.node().as_str())
                };
                expansion::claims(&waiting, is_edge)
            }
            Lookup::Missing => Vec::new(),
            Lookup::Hidden(why) => vec![hidden("claims", "claims", &why)],
        }
    }
}
