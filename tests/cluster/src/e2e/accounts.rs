//! Tokens of ServiceAccounts: projected into pods by the kubelet, as the DaemonSet of csi-edge has
//! them, and others that csi-cloud must refuse.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use super::pods::STAY;
use super::scene::pod_with;
use super::texts::{at, with};
use crate::stand::Cluster;
use crate::stand::cloud::NAMESPACE;
use crate::stand::node::Node;
use crate::stand::objects::{apply, within};

/// The audience of tokens that let nodes join.
pub(super) const AUDIENCE: &str = "edge-csi";
/// How long Kubernetes may take to start or to end a pod.
const SOON: Duration = Duration::from_secs(60);

/// A pod with the ServiceAccount of csi-edge, and a projected token like the component `join`.
pub(super) struct Carrier {
    name: String,
    /// The token as the node sees it.
    file: PathBuf,
    /// The same file for this process.
    seen: PathBuf,
}

impl Carrier {
    /// Starts it at a node, and waits for the token.
    ///
    /// # Errors
    /// The pod is refused, or the kubelet gets no token for it.
    pub(super) async fn start(cluster: &Cluster, node: &Node) -> anyhow::Result<Self> {
        let name = format!("csi-edge-{}", node.name);
        let source = format!("{{path: token, audience: {AUDIENCE}, expirationSeconds: 600}}");
        let volumes = format!(
            "[{{name: join-token, projected: {{sources: [{{serviceAccountToken: {source}}}]}}}}]"
        );
        let mount = "volumeMounts: [{name: join-token, mountPath: /token, readOnly: true}]";
        let text = pod_with(&name, mount, &volumes, STAY, "true");
        let text = at(&with(&text, &["serviceAccountName: csi-edge"]), node.name);
        apply(&cluster.client, NAMESPACE, &text).await?;
        let pod = pods(cluster).get(&name).await?;
        let uid = pod.metadata.uid.context("a pod without a uid")?;
        let volume = format!("kubelet/pods/{uid}/volumes/kubernetes.io~projected/join-token/token");
        let file = cluster.ground.dir().join(node.name).join(volume);
        let seen = node.worker.sees(file.to_str().context("the stand's path is no text")?);
        let there = || async {
            ensure!(tokio::fs::try_exists(&seen).await?, "{} is not there", seen.display());
            Ok(())
        };
        within(&format!("the token of {name}"), SOON, there).await?;
        Ok(Self { name, file, seen })
    }

    /// The token's file, as the node sees it.
    pub(super) fn file(&self) -> &PathBuf {
        &self.file
    }

    /// The token.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn token(&self) -> anyhow::Result<String> {
        let cannot = || format!("cannot read {}", self.seen.display());
        std::fs::read_to_string(&self.seen).with_context(cannot)
    }

    /// Deletes the pod, and waits for that.
    ///
    /// # Errors
    /// It does not go.
    pub(super) async fn end(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let pods = pods(cluster);
        pods.delete(&self.name, &DeleteParams::default()).await?;
        within(&format!("end of {}", self.name), SOON, || async {
            ensure!(pods.get_opt(&self.name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

/// A token of a ServiceAccount that is bound to no pod.
///
/// # Errors
/// The API server issues none.
pub(super) async fn unbound(
    cluster: &Cluster,
    account: &str,
    audience: &str,
) -> anyhow::Result<String> {
    let audiences = Some(vec![audience.to_owned()]);
    let spec = TokenRequestSpec { audiences, ..Default::default() };
    let request = TokenRequest { spec: Some(spec), ..Default::default() };
    let accounts = Api::<ServiceAccount>::namespaced(cluster.client.clone(), NAMESPACE);
    let issued = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    issued.status.and_then(|status| status.token).context("a token request without an answer")
}
