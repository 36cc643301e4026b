//! VolumeSnapshots on a real API server, with the custom resources of the external snapshotter.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};

use super::*;

const GROUP: &str = "snapshot.storage.k8s.io";

/// A kind of the external snapshotter.
pub(super) fn kind(kind: &str) -> ApiResource {
    let plural = format!("{}s", kind.to_lowercase()).replace("classs", "classes");
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), &plural)
}

impl Site {
    /// Adds the kinds of the external snapshotter.
    pub(super) async fn add_snapshots(&self) -> anyhow::Result<()> {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for name in ["VolumeSnapshot", "VolumeSnapshotClass", "VolumeSnapshotContent"] {
            let kind = kind(name);
            let file = format!("../go/bin/crd/{GROUP}_{}.yaml", kind.plural);
            let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
            let request =
                http::Request::post(path).header("content-type", "application/yaml").body(text)?;
            self.plane.admin.request_text(request).await?;
            let all: Api<DynamicObject> = Api::all_with(self.plane.admin.clone(), &kind);
            until(name, || async { Ok(all.list(&ListParams::default()).await?) }).await?;
        }
        Ok(())
    }

    /// Makes an object of a kind of the external snapshotter, with a status.
    pub(super) async fn custom(
        &self,
        name: &str,
        object: Value,
        status: Value,
    ) -> anyhow::Result<DynamicObject> {
        let kind = kind(name);
        let client = self.plane.admin.clone();
        let api: Api<DynamicObject> = match name {
            "VolumeSnapshot" => Api::namespaced_with(client, "default", &kind),
            _ => Api::all_with(client, &kind),
        };
        let mut object: DynamicObject = serde_json::from_value(object)?;
        object.types = Some(kube::core::TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
        let made = api.create(&PostParams::default(), &object).await?;
        if !status.is_null() {
            let status = Patch::Merge(json!({"status": status}));
            api.patch_status(&made.name_any(), &PatchParams::default(), &status).await?;
        }
        Ok(made)
    }

    /// A snapshot of the claim `good`.
    pub(super) async fn snapshot(
        &self,
        name: &str,
        class: &str,
        status: Value,
    ) -> anyhow::Result<String> {
        let object = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeSnapshotClassName": class,
                "source": {"persistentVolumeClaimName": "good"}},
        });
        let made = self.custom("VolumeSnapshot", object, status).await?;
        made.uid().context("no uid")
    }

    /// The content of a snapshot of this name.
    pub(super) async fn content(
        &self,
        of: (&str, &str),
        volume: &str,
        status: Value,
    ) -> anyhow::Result<String> {
        let (name, uid) = of;
        let content = format!("content-{name}");
        let object = json!({
            "metadata": {"name": content},
            "spec": {"driver": DRIVER, "deletionPolicy": "Delete",
                "source": {"volumeHandle": volume},
                "volumeSnapshotRef": {"name": name, "namespace": "default", "uid": uid}},
        });
        self.custom("VolumeSnapshotContent", object, status).await?;
        Ok(content)
    }
}

#[tokio::test]
async fn a_snapshot_says_what_it_waits_for() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.add_snapshots().await?;
    let class =
        json!({"metadata": {"name": "daily"}, "driver": DRIVER, "deletionPolicy": "Delete"});
    site.custom("VolumeSnapshotClass", class, Value::Null).await?;
    let front = site.world.front().await?;
    let made = created(&front.call(&controller("CreateVolume"), &create_for("u-1")).await?)?;
    site.bound("good", &made.volume_id).await?;
    site.snapshot("class-gone", "gone", Value::Null).await?;
    site.snapshot("idle", "daily", Value::Null).await?;
    let error = json!({"readyToUse": false, "error": {"message": "no such volume"}});
    site.snapshot("failed", "daily", error).await?;
    // The driver at the node refuses one, and makes the other.
    let refused = site.snapshot("refused", "daily", Value::Null).await?;
    let request = csi::CreateSnapshotRequest {
        name: format!("snapshot-{refused}"),
        source_volume_id: made.volume_id.clone(),
        parameters: [("edge-csi.io/placment".to_owned(), "x".to_owned())].into(),
        ..Default::default()
    };
    front.call(&controller("CreateSnapshot"), &request.encode_to_vec()).await?;
    let uid = site.snapshot("taken", "daily", Value::Null).await?;
    let request = csi::CreateSnapshotRequest {
        name: format!("snapshot-{uid}"),
        source_volume_id: made.volume_id.clone(),
        ..Default::default()
    };
    let taken = front.call(&controller("CreateSnapshot"), &request.encode_to_vec()).await?;
    let taken = taken.message().with_context(|| taken.status().to_string())?;
    let taken = csi::CreateSnapshotResponse::decode(taken)?.snapshot.context("no snapshot")?;
    let status = json!({"snapshotHandle": taken.snapshot_id, "readyToUse": true});
    let content = site.content(("taken", &uid), &made.volume_id, status).await?;
    let status = json!({"readyToUse": true, "boundVolumeSnapshotContentName": content});
    let snapshots: Api<DynamicObject> =
        Api::namespaced_with(site.plane.admin.clone(), "default", &kind("VolumeSnapshot"));
    let status = Patch::Merge(json!({"status": status}));
    snapshots.patch_status("taken", &PatchParams::default(), &status).await?;
    for (name, expected) in [
        ("missing", ("not-found", None)),
        ("class-gone", ("no-class", None)),
        ("idle", ("no-call", None)),
        ("failed", ("call-failed", None)),
        ("refused", ("call-failed", None)),
        ("taken", ("fine", None)),
    ] {
        site.explains(&["snapshot", &format!("default/{name}")], expected).await?;
    }
    let refused = site.explained(&["snapshot", "default/refused"]).await?.to_string();
    assert!(refused.contains("INVALID_ARGUMENT"), "{refused}");
    let steps = site.explained(&["snapshot", "default/taken"]).await?["steps"].to_string();
    assert!(steps.contains("CreateSnapshot of snapshot-"), "{steps}");
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    for name in ["default/taken", "default/idle"] {
        site.explains(&["snapshot", name], ("node-away", Some(NODE))).await?;
    }
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}
