//! Nodes whose kubelet publishes nothing, such as KubeEdge's: csi-cloud publishes them at once, and
//! their own front leaves topology out.

use harness::raw::RawClient;
use proto::csi::topology;

use super::*;

const ROLE: &str = "node-role.kubernetes.io/edge";

impl Site {
    /// With these lines in `[kubernetes]`, and more lines in the driver's section.
    pub(super) async fn configured(
        nodes: &[Value],
        settings: &str,
        section: &str,
    ) -> anyhow::Result<Option<Self>> {
        let Some(programs) = programs() else { return Ok(None) };
        let stand = Stand::new().await?;
        let plane = Plane::new(&stand, programs).await?;
        for node in nodes {
            plane.make::<Node>(node.clone(), "kubelet").await?;
        }
        let config = stand.at("cloud.toml");
        let text = format!(
            "[kubernetes]\n{settings}\n[driver.\"{DRIVER}\"]\nstorage_capacity = \
             true\nfailover_s = 1\n{section}"
        );
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let kubeconfig = stand.at("edge-csi.kubeconfig");
        let more = ["--config", &config, "--kubernetes", &kubeconfig, "--http", "127.0.0.1:0"];
        let world = World::on(stand, TRANSPORTS[0], &more).await?;
        Ok(Some(Self { world, plane }))
    }

    /// Waits until the node's front shows topology, or none at all.
    async fn front_shows_topology(&self, expected: bool) -> anyhow::Result<()> {
        until(&format!("the front shows topology: {expected}"), || async {
            let front = RawClient::connect(&self.world.stand.edge_front(NODE, DRIVER)).await?;
            let info = front.call("/csi.v1.Node/NodeGetInfo", &[]).await?;
            let info = info.message().context("no NodeGetInfo")?;
            let info = csi::NodeGetInfoResponse::decode(info)?;
            let said = front.call("/csi.v1.Identity/GetPluginCapabilities", &[]).await?;
            let said = said.message().context("no capabilities")?;
            let shown = (info.accessible_topology.is_some(), topology::constrained(&said));
            ensure!(shown == (expected, expected), "{shown:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn a_front_leaves_topology_out_while_csi_cloud_alone_publishes_it() -> anyhow::Result<()> {
    let edge = node(NODE, json!({ROLE: ""}));
    // Nothing is waited for at such a node.
    let Some(site) = Site::configured(&[edge], "grace_s = 3600", "").await? else {
        return Ok(());
    };
    site.published(NODE, true).await?;
    site.front_shows_topology(false).await?;
    // A kubelet begins to use the object, as each does before it registers a driver.
    let csinodes = site.plane.all::<CSINode>();
    let begun = json!({"metadata": {"annotations": {
        "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/x"}}});
    let kubelet = PatchParams { field_manager: Some("kubelet".into()), ..PatchParams::default() };
    csinodes.patch(NODE, &kubelet, &Patch::Merge(begun)).await?;
    site.front_shows_topology(true).await?;
    site.published(NODE, true).await?;
    // An administrator says that there is no such kubelet.
    csinodes.delete(NODE, &DeleteParams::default()).await?;
    site.published(NODE, true).await?;
    site.front_shows_topology(false).await?;
    site.stop().await
}

#[tokio::test]
async fn a_front_shows_topology_again_when_csi_cloud_publishes_nothing() -> anyhow::Result<()> {
    let Some(mut site) = Site::new(&[node(NODE, json!({ROLE: ""}))]).await? else {
        return Ok(());
    };
    site.front_shows_topology(false).await?;
    // The same csi-cloud without Kubernetes.
    let listen = site.world.url().to_owned();
    site.world.cloud.process.signal(rustix::process::Signal::KILL)?;
    let off = ["--kubernetes", "off"];
    let listen = [listen.as_str()];
    let started = || site.world.stand.cloud(&listen, &[DRIVER], &off);
    let cloud = until("csi-cloud serves again", started).await?;
    site.front_shows_topology(true).await?;
    site.world.cloud = cloud;
    site.stop().await
}
