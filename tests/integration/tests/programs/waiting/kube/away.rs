//! Claims are told of calls that wait: for a node that is away, or for a driver that hangs.

use drivers::testdriver::{Fault, Times};
use harness::raw::RawClient;
use harness::requests::{capability, delete};
use k8s_openapi::api::core::v1::Pod;

use super::explain::{attachment, pod};
use super::*;

/// Makes a claim that is bound, and the volume for it.
async fn volume_of(site: &Site, front: &RawClient, name: &str) -> anyhow::Result<String> {
    let mut data = claim(name);
    data["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    let data = site.in_default::<PersistentVolumeClaim>(data).await?;
    let create = create_for(&data.uid().context("no uid")?);
    let mut create = csi::CreateVolumeRequest::decode(&*create)?;
    create.parameters.insert("csi.storage.k8s.io/pvc/name".into(), name.into());
    create.parameters.insert("csi.storage.k8s.io/pv/name".into(), format!("pv-{name}"));
    let made = front.call(&controller("CreateVolume"), &create.encode_to_vec()).await?;
    Ok(created(&made)?.volume_id)
}

fn publish(volume: &str) -> Vec<u8> {
    let publish = csi::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: NODE.into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    publish.encode_to_vec()
}

fn snapshot(volume: &str) -> Vec<u8> {
    let snapshot = csi::CreateSnapshotRequest {
        name: "snapshot-u-1".into(),
        source_volume_id: volume.into(),
        ..Default::default()
    };
    snapshot.encode_to_vec()
}

fn expand(volume: &str) -> Vec<u8> {
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: volume.into(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    expand.encode_to_vec()
}

/// Fails if another object has an Event: sidecars and kubelets tell the others that wait.
async fn only_claims_and_volumes_are_told(site: &Site) -> anyhow::Result<()> {
    for event in site.plane.all::<Event>().list(&ListParams::default()).await?.items {
        let kind = event.regarding.and_then(|about| about.kind).unwrap_or_default();
        ensure!(["PersistentVolumeClaim", "PersistentVolume"].contains(&&*kind), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_is_told_of_calls_that_wait_for_its_node() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let front = site.world.front().await?;
    let [attached, taken, grows] = ["attached", "taken", "grows"];
    let attached_id = volume_of(&site, &front, attached).await?;
    let taken_id = volume_of(&site, &front, taken).await?;
    let grows_id = volume_of(&site, &front, grows).await?;
    attachment(&site, &attached_id).await?;
    site.in_default::<Pod>(pod("waits", attached, Some(NODE))).await?;
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    site.explains(&["node", NODE], ("node-away", Some(NODE))).await?;
    for (claim, rpc, request, does) in [
        (attached, "ControllerPublishVolume", publish(&attached_id), "the volume is attached"),
        (taken, "CreateSnapshot", snapshot(&taken_id), "the snapshot is taken"),
        (grows, "ControllerExpandVolume", expand(&grows_id), "the volume grows"),
    ] {
        let refused = front.call(&controller(rpc), &request).await?;
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        let event = site.plane.event("EdgeAway", claim).await?;
        let note = event.note.unwrap_or_default();
        assert!(note.starts_with("node n1 has had no link") && note.contains(does), "{note}");
        let about = event.regarding.context("about nothing")?;
        assert_eq!(about.kind.as_deref(), Some("PersistentVolumeClaim"));
        assert!(about.uid.is_some_and(|uid| !uid.is_empty()));
    }
    only_claims_and_volumes_are_told(&site).await?;
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}

#[tokio::test]
async fn a_volume_that_its_driver_has_lost_is_absent() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let front = site.world.front().await?;
    let data = site.in_default::<PersistentVolumeClaim>(claim("data")).await?;
    let create = create_for(&data.uid().context("no uid")?);
    let made = created(&front.call(&controller("CreateVolume"), &create).await?)?;
    // Whoever cleans up at the node does not ask csi-cloud.
    let direct = RawClient::connect(&site.world.stand.at("driver.sock")).await?;
    direct.call(&controller("DeleteVolume"), &delete(&made.volume_id)).await?;
    let state = async || {
        let shown: Value = serde_json::from_str(&site.say(&["volumes", "-o", "json"]).await?)?;
        anyhow::Ok(shown[0]["state"].clone())
    };
    assert_eq!(state().await?, "ok");
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: made.volume_id.clone(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    let refused =
        front.call(&controller("ControllerExpandVolume"), &expand.encode_to_vec()).await?;
    assert_eq!(refused.code(), tonic::Code::NotFound);
    until("the volume is absent", || async {
        let state = state().await?;
        ensure!(state == "absent", "{state}");
        Ok(())
    })
    .await?;
    site.plane.event("VolumeAbsent", "data").await?;
    let subject = ["volume", DRIVER, made.volume_id.as_str()];
    site.explains(&subject, ("volume-absent", Some(NODE))).await?;
    site.stop().await
}

#[tokio::test]
async fn an_attach_and_a_snapshot_that_hang_are_told_to_their_claims() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let front = site.world.front().await?;
    let attached = volume_of(&site, &front, "attached").await?;
    let taken = volume_of(&site, &front, "taken").await?;
    attachment(&site, &attached).await?;
    site.in_default::<Pod>(pod("waits", "attached", Some(NODE))).await?;
    let driver = &site.world.driver;
    let [publishes, takes] = ["ControllerPublishVolume", "CreateSnapshot"];
    for rpc in [publishes, takes] {
        driver.inject(rpc, Fault::Hang, Times::All);
    }
    let requests = [publish(&attached), snapshot(&taken)];
    let paths = [controller(publishes), controller(takes)];
    let publishing = front.call(&paths[0], &requests[0]);
    let taking = front.call(&paths[1], &requests[1]);
    let telling = async {
        until("the calls take long", || async {
            let calls: Value = serde_json::from_str(&site.say(&["calls", "-o", "json"]).await?)?;
            let is_long = |at: usize| calls[at]["age_ms"].as_u64().is_some_and(|ms| ms >= 20_000);
            ensure!(is_long(0) && is_long(1), "{calls}");
            Ok(())
        })
        .await?;
        for (claim, rpc) in [("attached", publishes), ("taken", takes)] {
            let event = site.plane.event("CallHangs", claim).await?;
            let note = event.note.unwrap_or_default();
            assert!(note.starts_with("node n1: driver") && note.contains(rpc), "{note}");
            let kind = event.regarding.and_then(|about| about.kind);
            assert_eq!(kind.as_deref(), Some("PersistentVolumeClaim"));
        }
        only_claims_and_volumes_are_told(&site).await?;
        driver.release();
        anyhow::Ok(())
    };
    tokio::try_join!(publishing, taking, telling)?;
    site.stop().await
}
