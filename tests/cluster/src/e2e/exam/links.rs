//! Links that are not made, or not for long. There is a proxy in the way, certificates are no good,
//! or csi-cloud began a moment ago.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use harness::proxy::{Proxy, Rule};
use proto::host::publish::{Existing, publish};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};

use super::check::{explains, shows, shows_on};
use crate::e2e::faults::at_node;
use crate::e2e::scene::Scene;
use crate::e2e::snapshots::snapshot;
use crate::stand::Cluster;
use crate::stand::node::Node;
use crate::stand::objects::within;
use crate::stand::program::{Launch, Program};

/// How long a link may take.
const SOON: Duration = Duration::from_secs(60);
/// How long a certificate lives on: csi-edge links with it, and does not start without it.
const LIFE: Duration = Duration::from_secs(20);
const DAY: Duration = Duration::from_secs(86_400);

/// All three nodes at once: one is behind a proxy that wants a password. The certificate of one
/// ends, and that of one is used by another csi-edge too. Then csi-cloud is restarted while a node
/// is cut off.
pub(in crate::e2e) async fn broken(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let proxied = cluster.node("n1")?;
    let ended = cluster.node("n2")?;
    let shared = cluster.node("n3")?;
    scene.apply(&at_node("data", proxied)).await?;
    scene.ready(&["data"]).await?;
    let before = [proxied.edge.args().await?, ended.edge.args().await?];
    let other = other_edge(cluster, shared).await?;
    let examined = links(scene, proxied, ended).await;
    // Later rows need them, whatever was found.
    other.ended().await?;
    for (node, args) in [proxied, ended].into_iter().zip(before) {
        restarted(node, |now| *now = args).await?;
    }
    examined?;
    linked(cluster).await?;
    scene.ready(&["proxied", "ended"]).await?;
    began(scene, proxied).await
}

async fn links(scene: &Scene<'_>, proxied: &Node, ended: &Node) -> anyhow::Result<()> {
    let proxy = Proxy::new(Rule::Credentials("user:password".into())).await?;
    restarted(proxied, |args| args.push(format!("--proxy={}", proxy.url("")))).await?;
    let dir = scene.cluster.ground.dir();
    let [certificate, key] = ["ended.crt", "ended.key"].map(|name| dir.join(ended.name).join(name));
    let pem = short(scene.cluster, ended.name)?;
    for (path, pem) in [&certificate, &key].into_iter().zip(pem) {
        publish(path, pem.as_bytes(), 0o600, Existing::Replace)?;
    }
    restarted(ended, |args| {
        args.retain(|arg| !arg.starts_with("--cert=") && !arg.starts_with("--key="));
        args.push(format!("--cert={}", certificate.display()));
        args.push(format!("--key={}", key.display()));
    })
    .await?;
    scene.apply(&(at_node("proxied", proxied) + "---\n" + &snapshot("today", "data"))).await?;
    explains(scene, &["node", ended.name], "certificate-ended", Some(ended.name)).await?;
    scene.apply(&at_node("ended", ended)).await?;
    for (state, kind, name, node) in
        [("proxy-refuses", "pod", "proxied", proxied), ("certificate-ended", "pod", "ended", ended)]
    {
        let subject = format!("{}/{name}", scene.namespace());
        shows(scene, state, &[kind, &subject], Some(node.name)).await?;
    }
    let subject = format!("{}/today", scene.namespace());
    let subject = ["snapshot", subject.as_str()];
    shows_on(scene, "snapshot-away", &subject, Some(proxied.name), "data").await?;
    // What csi-cloud cannot see, csi-edge says at the node.
    ensure!(proxied.edge.log().contains("answered 407"), "csi-edge does not name the proxy");
    shows(scene, "certificate-shared", &["node", "n3"], Some("n3")).await
}

/// A node is cut off when csi-cloud is restarted: at first that is no wonder.
async fn began(scene: &Scene<'_>, away: &Node) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    away.relay.cut();
    scene.apply(&at_node("began", away)).await?;
    let began = format!("{}/began", scene.namespace());
    let subject = ["pvc", began.as_str()];
    explains(scene, &subject, "node-away", Some(away.name)).await?;
    cluster.cloud.program.kill().await?;
    let asked = cluster.cloud.says(&cluster.ground, &["explain", subject[0], subject[1]]).await;
    let error = format!("{:#}", asked.err().context("csi-cloud answers though it is away")?);
    ensure!(error.contains("is `csi-cloud serve` running"), "{error}");
    cluster.cloud.program.run().await?;
    shows(scene, "cloud-restarted", &subject, Some(away.name)).await?;
    away.relay.mend();
    scene.ready(&["began"]).await.map(drop)
}

/// Stops csi-edge at a node, and starts it again with other arguments.
async fn restarted(node: &Node, change: impl FnOnce(&mut Vec<String>)) -> anyhow::Result<()> {
    node.edge.ended().await?;
    node.edge.reargue(change).await?;
    node.edge.run().await
}

/// One more csi-edge with the certificate of a node, as a copied disk has it.
async fn other_edge(cluster: &Cluster, node: &Node) -> anyhow::Result<Program> {
    let mut args = node.edge.args().await?;
    args.retain(|arg| !arg.starts_with("--fronts=") && !arg.starts_with("--state="));
    for name in ["fronts", "state"] {
        let dir = cluster.ground.dir().join(node.name).join(format!("other-{name}"));
        std::fs::create_dir_all(&dir)?;
        args.push(format!("--{name}={}", dir.display()));
    }
    let launch = Launch::new(cluster.ground.program("csi-edge"), args);
    let space = Arc::clone(&node.worker.space);
    Program::within(&space, "other-csi-edge", &cluster.ground.logs(), launch).await
}

/// A certificate of a node that ends soon, and its key.
fn short(cluster: &Cluster, node: &str) -> anyhow::Result<[String; 2]> {
    let pki = cluster.ground.dir().join("pki");
    let ca = std::fs::read_to_string(pki.join("ca.crt"))?;
    let ca_key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key"))?)?;
    let issuer = Issuer::from_ca_cert_pem(&ca, ca_key)?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(format!("edge-csi://node/{node}").try_into()?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + LIFE).into();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok([certificate.pem(), key.serialize_pem()])
}

/// Waits until all nodes have a link.
async fn linked(cluster: &Cluster) -> anyhow::Result<()> {
    within("all links", SOON, || async {
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let is_linked = |of: &Node| {
            nodes.iter().any(|node| node["name"] == of.name && node["state"] == "linked")
        };
        ensure!(!cluster.nodes.is_empty(), "the stand has no node");
        ensure!(cluster.nodes.iter().all(is_linked), "they are {nodes:?}");
        Ok(())
    })
    .await
}
