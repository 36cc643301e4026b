//! Whatever waits for a node that is away is told so, also by a csi-cloud that was away itself. So
//! is what waits for a call that hangs.

use drivers::testdriver::{Fault, Times};
use harness::raw::RawClient;
use harness::requests::{capability, delete};
use k8s_openapi::api::core::v1::Pod;

use super::explain::{attachment, pod};
use super::*;

/// A pod that runs, or that is at another node, is told nothing.
#[tokio::test]
async fn all_that_waits_for_a_node_is_told_so() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.add_snapshots().await?;
    let front = site.world.front().await?;
    let made = created(&front.call(&controller("CreateVolume"), &create_for("u-1")).await?)?;
    site.bound("good", &made.volume_id).await?;
    for name in ["starts", "ends", "runs"] {
        site.in_default::<Pod>(pod(name, "good", Some(NODE))).await?;
    }
    site.in_default::<Pod>(pod("elsewhere", "good", Some("n2"))).await?;
    let pods: Api<Pod> = Api::namespaced(site.plane.admin.clone(), "default");
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("runs", &PatchParams::default(), &running).await?;
    pods.delete("ends", &DeleteParams::default().grace_period(1)).await?;
    let attached = attachment(&site, &made.volume_id).await?;
    let uid = site.snapshot("today", "daily", Value::Null).await?;
    site.content(("today", &uid), &made.volume_id, Value::Null).await?;
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    for (name, kind, does) in [
        ("starts", "Pod", "are mounted"),
        ("ends", "Pod", "this pod ends"),
        (attached.as_str(), "VolumeAttachment", "is attached"),
        ("today", "VolumeSnapshot", "is taken"),
    ] {
        let event = site.plane.event("EdgeAway", name).await?;
        let note = event.note.unwrap_or_default();
        assert!(note.starts_with("node n1 has had no link") && note.contains(does), "{note}");
        let about = event.regarding.context("about nothing")?;
        assert_eq!(about.kind.as_deref(), Some(kind));
        assert!(about.uid.is_some_and(|uid| !uid.is_empty()));
    }
    // csi-cloud is away when another pod comes.
    let listen = site.world.url().to_owned();
    site.world.cloud.process.signal(rustix::process::Signal::KILL)?;
    site.in_default::<Pod>(pod("later", "good", Some(NODE))).await?;
    let config = site.world.stand.at("cloud.toml");
    let kubeconfig = site.world.stand.at("edge-csi.kubeconfig");
    let more = ["--config", config.as_str(), "--kubernetes", &kubeconfig];
    let listen = [listen.as_str()];
    let started = || site.world.stand.cloud(&listen, &[DRIVER], &more);
    let cloud = until("csi-cloud serves again", started).await?;
    site.plane.event("EdgeAway", "later").await?;
    let told = site.plane.all::<Event>().list(&ListParams::default()).await?.items;
    for name in ["runs", "elsewhere"] {
        let regards = |event: &&Event| {
            let about = event.regarding.as_ref().and_then(|about| about.name.as_deref());
            about == Some(name) && event.reason.as_deref() == Some("EdgeAway")
        };
        assert_eq!(told.iter().filter(regards).count(), 0, "{name}");
    }
    site.plane.stop().await?;
    cloud.process.stop(START).await
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
async fn a_claim_that_grows_at_a_node_that_is_away_is_told_so() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let mut data = claim("data");
    data["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    let data = site.in_default::<PersistentVolumeClaim>(data).await?;
    let front = site.world.front().await?;
    let create = create_for(&data.uid().context("no uid")?);
    let made = created(&front.call(&controller("CreateVolume"), &create).await?)?;
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    site.explains(&["node", NODE], ("node-away", Some(NODE))).await?;
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: made.volume_id,
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    let refused =
        front.call(&controller("ControllerExpandVolume"), &expand.encode_to_vec()).await?;
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let note = site.plane.event("EdgeAway", "data").await?.note.unwrap_or_default();
    assert!(note.starts_with("node n1 has had no link") && note.contains("grows"), "{note}");
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}

#[tokio::test]
async fn an_attach_that_hangs_is_told_to_its_attachment_and_to_the_pod() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let front = site.world.front().await?;
    let made = created(&front.call(&controller("CreateVolume"), &create_for("u-1")).await?)?;
    site.bound("good", &made.volume_id).await?;
    let bound = json!({"spec": {"claimRef": {"namespace": "default", "name": "good"}}});
    let volumes = site.plane.all::<PersistentVolume>();
    volumes.patch("pv-good", &PatchParams::default(), &Patch::Merge(bound)).await?;
    let attached = attachment(&site, &made.volume_id).await?;
    site.in_default::<Pod>(pod("starts", "good", Some(NODE))).await?;
    site.in_default::<Pod>(pod("other", "others", Some(NODE))).await?;
    let driver = &site.world.driver;
    driver.inject("ControllerPublishVolume", Fault::Hang, Times::All);
    let publish = csi::ControllerPublishVolumeRequest {
        volume_id: made.volume_id,
        node_id: NODE.into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let request = publish.encode_to_vec();
    let path = controller("ControllerPublishVolume");
    let publishing = front.call(&path, &request);
    let telling = async {
        until("the call takes long", || async {
            let calls: Value = serde_json::from_str(&site.say(&["calls", "-o", "json"]).await?)?;
            ensure!(calls[0]["age_ms"].as_u64().is_some_and(|age| age >= 20_000), "{calls}");
            Ok(())
        })
        .await?;
        for (name, kind) in [(attached.as_str(), "VolumeAttachment"), ("starts", "Pod")] {
            let event = site.plane.event("CallHangs", name).await?;
            let note = event.note.unwrap_or_default();
            assert!(note.starts_with("node n1: driver") && note.contains("answered"), "{note}");
            assert_eq!(event.regarding.and_then(|about| about.kind).as_deref(), Some(kind));
        }
        let told = site.plane.all::<Event>().list(&ListParams::default()).await?.items;
        let regards = |event: &&Event| {
            event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some("other")
        };
        assert_eq!(told.iter().filter(regards).count(), 0, "it uses another claim");
        driver.release();
        anyhow::Ok(())
    };
    tokio::try_join!(publishing, telling)?;
    site.stop().await
}
