//! A direct volume is attached to one node at a time, whatever its driver allows.

use std::path::Path;

use anyhow::ensure;
use drivers::testdriver::TestDriver;
use guest::pair::CLASS;
use guest::scene::mount;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

/// An attacher of one volume.
struct Attacher {
    front: RawClient,
    volume_id: String,
}

impl Attacher {
    async fn attach(&self, node: &str, class: &[(&str, &str)]) -> anyhow::Result<RawAnswer> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            node_id: node.into(),
            volume_capability: Some(mount(Mode::SingleNodeMultiWriter, "", "")),
            volume_context: class
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
            ..Default::default()
        };
        self.front.call(&controller("ControllerPublishVolume"), &request.encode_to_vec()).await
    }

    async fn detach(&self, node: &str) -> anyhow::Result<RawAnswer> {
        let volume_id = self.volume_id.clone();
        let node_id = node.into();
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.front.call(&controller("ControllerUnpublishVolume"), &request.encode_to_vec()).await
    }
}

#[track_caller]
fn is(answer: &RawAnswer, code: Code) {
    assert_eq!(answer.code(), code, "{}", answer.status());
}

#[tokio::test]
async fn a_direct_volume_is_attached_to_one_node() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("policy.toml");
    let text = harness::world::section(DRIVER, "shared");
    proto::host::publish::publish(
        Path::new(&config),
        text.as_bytes(),
        0o600,
        proto::host::publish::Existing::Keep,
    )?;
    let cloud = stand.cloud(&TRANSPORTS[..1], &[DRIVER], &["--config", &config]).await?;
    let first = TestDriver::new(DRIVER, "id-1");
    let drivers = [first.clone(), first.beside("id-2")];
    let mut nodes = Vec::new();
    for (node, driver) in ["n1", "n2"].into_iter().zip(&drivers) {
        let socket = stand.at(&format!("{node}.sock"));
        let serving = driver.serve(Path::new(&socket))?;
        nodes.push((stand.edge(node, &cloud.urls[0], &[(DRIVER, &socket)]).await?, serving));
    }
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;
    let volume_id =
        created(&front.call(&controller("CreateVolume"), &create("v")).await?)?.volume_id;
    let attacher = Attacher { front, volume_id };
    until("the cloud knows both nodes", || async {
        for (node, code) in [("id-1", Code::Ok), ("id-2", Code::FailedPrecondition)] {
            let answer = attacher.attach(node, &CLASS).await?;
            ensure!(answer.code() == code, "{node}: {}", answer.status());
        }
        Ok(())
    })
    .await?;
    let calls = || {
        drivers.iter().map(|driver| driver.calls_of("ControllerPublishVolume").len()).sum::<usize>()
    };
    let before = calls();
    let answer = attacher.attach("id-2", &CLASS).await?;
    is(&answer, Code::FailedPrecondition);
    assert!(
        answer.status().message().contains("attached to node n1 since 20"),
        "{}",
        answer.status()
    );
    assert_eq!(calls(), before, "the driver was asked");
    is(&attacher.attach("id-1", &CLASS).await?, Code::Ok);
    is(&attacher.detach("id-2").await?, Code::Ok);
    is(&attacher.attach("id-2", &CLASS).await?, Code::FailedPrecondition);
    is(&attacher.detach("id-1").await?, Code::Ok);
    is(&attacher.attach("id-2", &CLASS).await?, Code::Ok);
    is(&attacher.detach("").await?, Code::Ok);
    is(&attacher.attach("id-1", &CLASS).await?, Code::Ok);
    is(&attacher.detach("id-1").await?, Code::Ok);
    // The driver itself refuses other volumes.
    let before = calls();
    attacher.attach("id-1", &[]).await?;
    attacher.attach("id-2", &[]).await?;
    assert_eq!(calls(), before + 2);
    drop(nodes);
    cloud.process.stop(START).await
}
