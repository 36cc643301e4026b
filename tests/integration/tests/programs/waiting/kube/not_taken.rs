//! Pods whose direct volumes no runtime took are told, by the word of their own node alone.

use anyhow::{Context, bail};
use harness::wait::until;
use harness::world::{DRIVER, NODE, hello};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use proto::control::hello::Message;
use proto::control::not_taken::{NotTaken, NotTakenVolume, Pod as Named};
use proto::link::{Event as LinkEvent, Link, LinkError};
use serde_json::{Value, json};

use super::{Site, node};

/// Keeps the link going while something is waited for.
async fn during<T>(
    link: &mut Link,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        why = ended(link) => bail!("the link ended: {why}"),
    }
}

async fn ended(link: &mut Link) -> LinkError {
    loop {
        if let LinkEvent::Closed(error) = link.next().await {
            return error;
        }
    }
}

/// A link of an edge that reports these volumes.
async fn reported(site: &Site, volumes: &[NotTakenVolume]) -> anyhow::Result<Link> {
    let mut link = site.world.dial().await?;
    link.send(&Message::Hello(hello(NODE)?)).await?;
    match link.next().await {
        LinkEvent::Message(Message::Welcome(_)) => {}
        _ => bail!("not welcome"),
    }
    link.send(&Message::NotTaken(NotTaken::of(volumes.to_vec()))).await?;
    Ok(link)
}

fn volume(id: &str, pod: &str, uid: &str) -> anyhow::Result<NotTakenVolume> {
    let pod = Named { namespace: "default".into(), name: pod.into(), uid: uid.into() };
    Ok(NotTakenVolume {
        driver: DRIVER.parse()?,
        volume: id.into(),
        pod: Some(pod),
        withheld: None,
    })
}

/// The pods that were told, each as often as it was.
async fn told(site: &Site) -> anyhow::Result<Vec<(String, i32)>> {
    let events = site.plane.all::<Event>().list(&ListParams::default()).await?.items;
    let ours = events.into_iter().filter(|it| it.reason.as_deref() == Some("DirectVolumeNotTaken"));
    let mut told: Vec<_> = ours
        .map(|event| {
            let name = event.regarding.and_then(|about| about.name).unwrap_or_default();
            (name, event.series.map_or(1, |series| series.count))
        })
        .collect();
    told.sort();
    Ok(told)
}

/// How many such volumes csi-cloud shows at the node.
async fn shown(site: &Site, expected: u64) -> anyhow::Result<()> {
    until("the nodes' volumes that were not taken", || async {
        let nodes: Value = serde_json::from_str(&site.say(&["nodes", "-o", "json"]).await?)?;
        anyhow::ensure!(nodes[0]["not_taken"] == json!(expected), "{nodes}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_is_told_by_its_own_node_alone_and_once() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    let pods: Api<Pod> = Api::namespaced(site.plane.admin.clone(), "default");
    let mut volumes = vec![volume("v-missing", "missing", "u-1")?];
    for (name, at) in [("other", NODE), ("there", "n2"), ("here", NODE)] {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": at, "containers": [{"name": "c", "image": "x"}]},
        });
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let uid = pod.uid().context("no uid")?;
        let uid = if name == "other" { "u-2" } else { uid.as_str() };
        volumes.push(volume(&format!("v-{name}"), name, uid)?);
    }
    let mut link = reported(&site, &volumes).await?;
    let told_of = site.plane.event("DirectVolumeNotTaken", "here");
    let event = during(&mut link, told_of).await?;
    let note = event.note.unwrap_or_default();
    assert!(note.contains("v-here") && note.contains("direct check"), "{note}");
    let about = event.regarding.context("about nothing")?;
    assert_eq!((about.kind.as_deref(), about.uid), (Some("Pod"), pods.get("here").await?.uid()));
    during(&mut link, shown(&site, 4)).await?;
    // The same on a new link, and one more pod, which is told after the others were looked at.
    drop(link);
    let pod = json!({
        "metadata": {"name": "zz"},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "x"}]},
    });
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    volumes.push(volume("v-zz", "zz", &pod.uid().context("no uid")?)?);
    let mut link = reported(&site, &volumes).await?;
    during(&mut link, site.plane.event("DirectVolumeNotTaken", "zz")).await?;
    assert_eq!(told(&site).await?, [("here".to_owned(), 1), ("zz".to_owned(), 1)]);
    drop(link);
    site.plane.stop().await?;
    site.world.cloud.process.stop(harness::wait::START).await
}
