//! A label of a node in Kubernetes decides whether the node may have the driver.

use super::*;

const LABEL: &str = "node-restriction.kubernetes.io/storage";

impl Site {
    async fn label(&self, name: &str, value: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: value}}}));
        self.plane.all::<Node>().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a node is set apart for this reason, or for none.
    async fn apart(&self, name: &str, why: Option<&str>) -> anyhow::Result<()> {
        until(&format!("{name} is set apart: {why:?}"), || async {
            let nodes: Value = serde_json::from_str(&self.say(&["nodes", "-o", "json"]).await?)?;
            let nodes = nodes.as_array().context("no list")?;
            let node = nodes.iter().find(|node| node["name"] == name);
            let reasons = node.and_then(|node| node["set_apart"].as_array());
            let found = reasons.and_then(|reasons| reasons.first()?["why"].as_str());
            let is_right = match why {
                Some(why) => found.is_some_and(|found| found.contains(why)),
                None => node.is_some() && found.is_none(),
            };
            ensure!(is_right, "{nodes:?}");
            Ok(())
        })
        .await
    }

    async fn nodes_of_the_driver(&self, number: usize) -> anyhow::Result<()> {
        until("the driver has its nodes", || async {
            let drivers: Value =
                serde_json::from_str(&self.say(&["drivers", "-o", "json"]).await?)?;
            ensure!(drivers[0]["nodes"] == number, "{drivers}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn labels_decide_which_nodes_may_have_a_driver() -> anyhow::Result<()> {
    let nodes = [node(NODE, json!({LABEL: "yes"})), node("n2", json!({"storage": "yes"}))];
    let section = format!("nodes = [\"{LABEL}=yes\"]\n");
    // The edge may link before csi-cloud has read the nodes; its driver is learned all the same.
    let Some(mut site) = Site::with(&nodes, &section).await? else { return Ok(()) };
    let driver = site.world.driver.beside("n2");
    let socket = site.world.stand.at("n2.sock");
    let _serving = driver.serve(Path::new(&socket))?;
    let url = site.world.url().to_owned();
    let edge = site.world.stand.edge("n2", &url, &[(DRIVER, &socket)]).await?;
    site.apart("n2", Some("it is not among the driver's `nodes`")).await?;
    site.nodes_of_the_driver(1).await?;

    // Its link stays, and what its edge said counts from now on.
    site.label("n2", json!("yes")).await?;
    site.nodes_of_the_driver(2).await?;
    site.apart("n2", None).await?;

    site.label(NODE, Value::Null).await?;
    site.apart(NODE, Some("it is not among the driver's `nodes`")).await?;
    site.world.driver.forget_calls();
    let front = site.world.front().await?;
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        created(&front.call(&controller("CreateVolume"), &create(name)).await?)?;
    }
    assert_eq!(driver.volumes().len(), 3, "a node without the label got a volume");
    edge.stop(START).await?;
    site.stop().await
}
