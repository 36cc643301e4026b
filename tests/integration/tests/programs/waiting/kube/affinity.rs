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
