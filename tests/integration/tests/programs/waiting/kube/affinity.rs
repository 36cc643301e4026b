//! The node affinity of a PersistentVolume says whose a volume without a home is.

use harness::raw::RawClient;
use harness::requests::delete;
use tonic::Code;

use super::*;

impl Site {
    /// A PersistentVolume of this volume, which may be used at this node only.
    async fn bind(&self, volume_id: &str, node: &str) -> anyhow::Result<()> {
        let only = json!({"key": TOPOLOGY_KEY, "operator": "In", "values": [node]});
        let terms = json!([{"matchExpressions": [only]}]);
        let volume = json!({
            "metadata": {"name": format!("of-{node}")},
            "spec": {
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": DRIVER, "volumeHandle": volume_id},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        });
        self.plane.make::<PersistentVolume>(volume, "provisioner").await.map(drop)
    }

    /// Its claim is deleted.
    async fn release(&self, node: &str) -> anyhow::Result<()> {
        let released = Patch::Merge(json!({"status": {"phase": "Released"}}));
        let volumes = self.plane.all::<PersistentVolume>();
        volumes.patch_status(&format!("of-{node}"), &PatchParams::default(), &released).await?;
        Ok(())
    }
}

#[tokio::test]
async fn the_node_affinity_of_a_volume_decides_whose_it_is() -> anyhow::Result<()> {
    // n2 may have the driver and never linked, so what n1 says is not enough.
    let section = format!("nodes = [\"{NODE}\", \"n2\"]\n");
    let Some(site) = Site::with(&[node(NODE, json!({}))], &section).await? else { return Ok(()) };
    let direct = RawClient::connect(&site.world.stand.at("driver.sock")).await?;
    let mut ids = Vec::new();
    for name in ["here", "elsewhere", "unknown"] {
        let made = direct.call(&controller("CreateVolume"), &create(name)).await?;
        ids.push(created(&made)?.volume_id);
    }
    site.bind(&ids[0], NODE).await?;
    site.bind(&ids[1], "n2").await?;
    site.release(NODE).await?;
    site.release("n2").await?;
    site.world.driver.forget_calls();
    let front = site.world.front().await?;
    for (id, code) in ids.iter().zip([Code::Ok, Code::Unavailable, Code::Unavailable]) {
        let get = csi::ControllerGetVolumeRequest { volume_id: id.clone() }.encode_to_vec();
        let answer = front.call(&controller("ControllerGetVolume"), &get).await?;
        assert_eq!(answer.code(), code, "{}", answer.status());
        let status = answer.status();
        let names_n2 = status.message().contains("n2");
        assert!(code == Code::Ok || names_n2, "{status}");
        let answer = front.call(&controller("DeleteVolume"), &delete(id)).await?;
        assert_eq!(answer.code(), code, "{}", answer.status());
    }
    assert_eq!(site.world.driver.volumes().len(), 2, "only the one that is here is deleted");
    site.stop().await
}

/// Two PersistentVolumes that users wrote have one id, each for its own node's volume.
#[tokio::test]
async fn of_two_volumes_with_one_id_the_used_one_is_not_deleted() -> anyhow::Result<()> {
    let nodes = [NODE, "n2"].map(|name| node(name, json!({})));
    let Some(mut site) = Site::new(&nodes).await? else { return Ok(()) };
    // It counts as the first node's does.
    let other = TestDriver::new(DRIVER, "n2");
    let (edge, serving) = site.add("n2", &other).await?;
    let mut ids = Vec::new();
    for socket in ["driver.sock", "n2.sock"] {
        let direct = RawClient::connect(&site.world.stand.at(socket)).await?;
        let made = direct.call(&controller("CreateVolume"), &create("static")).await?;
        ids.push(created(&made)?.volume_id);
    }
    let [id, same] = &ids[..] else { anyhow::bail!("two volumes: {ids:?}") };
    assert_eq!(id, same);
    site.bind(id, NODE).await?;
    site.release(NODE).await?;
    let front = site.world.front().await?;
    // csi-cloud reads Kubernetes now, and does not go by it later.
    let get = csi::ControllerGetVolumeRequest { volume_id: id.clone() }.encode_to_vec();
    front.call(&controller("ControllerGetVolume"), &get).await?;
    site.bind(id, "n2").await?;
    let status = front.call(&controller("DeleteVolume"), &delete(id)).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for told in ["of-n2", "volume adopt"] {
        assert!(status.message().contains(told), "{status}");
    }
    let volumes = site.plane.all::<PersistentVolume>();
    // The user gives the second one up, which Kubernetes protects for a while.
    volumes.delete("of-n2", &DeleteParams::default()).await?;
    let status = front.call(&controller("DeleteVolume"), &delete(id)).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "both have ended: {status}");
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch("of-n2", &PatchParams::default(), &unprotected).await?;
    until("the second one is gone", || async {
        ensure!(volumes.get_opt("of-n2").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    let deleted = front.call(&controller("DeleteVolume"), &delete(id)).await?;
    assert_eq!(deleted.code(), Code::Ok, "{}", deleted.status());
    assert!(site.world.driver.volumes().is_empty(), "the first node's is deleted");
    assert_eq!(other.volumes().len(), 1, "the second node's stays");
    edge.stop(START).await?;
    serving.stop().await;
    site.stop().await
}
