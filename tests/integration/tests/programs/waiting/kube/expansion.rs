//! An expansion that takes a secret is refused where csi-edge does the node's half, because a
//! PersistentVolume says so.

use harness::wait::STOP;
use tonic::Code;

use super::*;

impl Site {
    /// A PersistentVolume of this volume, whose expansion on a node takes a secret or not.
    async fn persist(&self, volume_id: &str, secret: bool) -> anyhow::Result<()> {
        let mut source = json!({"driver": DRIVER, "volumeHandle": volume_id});
        if secret {
            source["nodeExpandSecretRef"] = json!({"name": "s", "namespace": "default"});
        }
        let volume = json!({
            "metadata": {"name": format!("pv-{}", if secret { "secret" } else { "plain" })},
            "spec": {
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": source,
            },
        });
        self.plane.make::<PersistentVolume>(volume, "provisioner").await.map(drop)
    }

    /// Starts csi-edge again, which then expands volumes itself.
    async fn expand_by_edge(&mut self) -> anyhow::Result<()> {
        let world = &mut self.world;
        world.edge.signal(rustix::process::Signal::KILL)?;
        world.edge.ended(STOP).await?;
        let config = world.stand.at("edge.toml");
        publish(config.as_ref(), b"node_expansion = \"edge\"\n", 0o600, Existing::Keep)?;
        let url = world.url().to_owned();
        let state = world.stand.at("edge-state");
        let socket = world.stand.at("driver.sock");
        let more = ["--cloud", &url, "--config", &config, "--state", &state];
        let mut edge = world.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        edge.line_starting("linked ", START).await?;
        world.edge = edge;
        Ok(())
    }

    async fn expand(&self, volume_id: &str) -> anyhow::Result<tonic::Status> {
        let range = csi::CapacityRange { required_bytes: 2 << 20, limit_bytes: 0 };
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: Some(range),
            ..Default::default()
        };
        let front = self.world.front().await?;
        let path = controller("ControllerExpandVolume");
        Ok(front.call(&path, &request.encode_to_vec()).await?.status())
    }
}

#[tokio::test]
async fn a_volume_whose_expansion_takes_a_secret_is_not_expanded_by_csi_edge() -> anyhow::Result<()>
{
    let Some(mut site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let front = site.world.front().await?;
    let mut ids = Vec::new();
    for name in ["secret", "plain", "unknown"] {
        let made = front.call(&controller("CreateVolume"), &create(name)).await?;
        ids.push(created(&made)?.volume_id);
    }
    site.persist(&ids[0], true).await?;
    ensure!(site.expand(&ids[0]).await?.code() == Code::Ok, "the kubelet has the secret");
    site.expand_by_edge().await?;
    site.world.driver.forget_calls();
    let refused = site.expand(&ids[0]).await?;
    ensure!(refused.code() == Code::InvalidArgument, "{refused}");
    ensure!(refused.message().contains("nodeExpandSecretRef"), "{refused}");
    ensure!(site.world.driver.calls_of("ControllerExpandVolume").is_empty(), "it was sent");
    site.persist(&ids[1], false).await?;
    for id in &ids[1..] {
        let status = site.expand(id).await?;
        ensure!(status.code() == Code::Ok, "{status}");
    }
    // A volume that is new since Kubernetes was last asked may have a secret.
    site.plane.kill_apiserver().await?;
    until("Kubernetes is asked again", || async {
        let unknown = site.expand(&ids[2]).await?;
        ensure!(unknown.code() == Code::Unavailable, "{unknown}");
        Ok(())
    })
    .await?;
    site.stop().await
}
