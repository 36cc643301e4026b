//! Calls pass byte for byte in both directions, over both transports.

use bytes::Bytes;
use drivers::testdriver::{FUTURE_PATH, Fault, METHODS, Times};
use harness::requests::{controller, snapshot_requests};
use harness::world::{TRANSPORTS, World};
use http::HeaderMap;
use proptest::collection::vec;
use proptest::prelude::*;
use tonic::Code;

/// Field 5000, a text: a field that no message of CSI has.
const UNKNOWN: &[u8] = b"\xc2\xb8\x02\x07unknown";
const MIB: usize = 1024 * 1024;

/// The RPCs that the cloud answers itself, and those that it does not take.
fn is_the_clouds_own(service: &str, method: &str) -> bool {
    service == "Identity" || service == "Node" || method.ends_with("GetCapabilities")
}

#[tokio::test]
async fn every_rpc_passes_whole_in_both_directions() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::shared(transport).await?;
        let cloud = world.front().await?;
        let node = world.node_front().await?;
        for (service, method) in METHODS {
            let path = format!("/csi.v1.{service}/{method}");
            let fronts = [(&node, true), (&cloud, !is_the_clouds_own(service, method))];
            for (front, _) in fronts.into_iter().filter(|(_, passes)| *passes) {
                let mut headers = HeaderMap::new();
                let mut trailers = HeaderMap::new();
                headers.insert("x-from-driver", "a header".parse()?);
                trailers.insert("x-cost-bin", "AAEC".parse()?);
                let answer = Fault::Raw { message: UNKNOWN.into(), headers, trailers };
                world.driver.inject(method, answer, Times::Next(1));
                world.driver.forget_calls();
                let meta = [("traceparent", "00-aa-bb-01"), ("x-two", "1"), ("x-two", "2")];
                let answered = front.send(&path, proto::csi::frame::frame(UNKNOWN), &meta).await?;

                assert_eq!(answered.code(), Code::Ok, "{path}: {}", answered.status());
                assert_eq!(answered.message().as_deref(), Some(UNKNOWN), "{path}");
                assert_eq!(answered.headers["x-from-driver"], "a header", "{path}");
                assert_eq!(answered.trailers["x-cost-bin"], "AAEC", "{path}");
                let mut received = world.driver.calls();
                // An answer to NodeGetInfo that is new has csi-edge ask for it itself.
                received.retain(|call| call.headers.contains_key("traceparent"));
                assert_eq!(received.len(), 1, "{path}: one call is one call");
                assert_eq!(
                    (received[0].path.as_str(), &received[0].message[..]),
                    (path.as_str(), UNKNOWN)
                );
                assert_eq!(received[0].headers["traceparent"], "00-aa-bb-01");
                assert_eq!(received[0].headers.get_all("x-two").iter().count(), 2);
            }
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn both_streams_come_whole() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::shared(transport).await?;
        let cloud = world.front().await?;
        let direct = world.direct().await?;
        for method in ["GetMetadataAllocated", "GetMetadataDelta"] {
            let path = format!("/csi.v1.SnapshotMetadata/{method}");
            let requests = snapshot_requests(&direct).await?;
            let request = &requests[usize::from(method == "GetMetadataDelta")];
            let through = cloud.call(&path, request).await?;
            let alone = direct.call(&path, request).await?;
            assert_eq!(alone.code(), Code::Ok, "{}", alone.status());
            assert!(
                proto::csi::frame::message(&alone.body).is_err(),
                "{method}: not a stream of several messages"
            );
            assert_eq!(through.body, alone.body, "{method}");
            assert_eq!(through.code(), Code::Ok);
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_code_and_message_is_the_drivers() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::shared(transport).await?;
        let fronts = [world.front().await?, world.node_front().await?];
        for code in (1..=16).map(Code::from_i32) {
            for (front, method) in
                fronts.iter().flat_map(|f| [(f, "CreateVolume"), (f, "ListVolumes")])
            {
                let text = format!("{code:?}: 100 % von „Größe“\nzweite Zeile");
                world.driver.inject(method, Fault::error(code, &text), Times::Next(1));
                let status = front.call(&controller(method), &[]).await?.status();
                assert_eq!((status.code(), status.message()), (code, text.as_str()), "{method}");
            }
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_message_of_4_mib_passes_each_way() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::shared(transport).await?;
        let cloud = world.front().await?;
        // An unknown field of this many bytes, with its tag and length.
        let padded =
            |size: usize| [b"\xc2\xb8\x02", varint(size).as_slice(), &vec![b'x'; size]].concat();
        for size in [64 * 1024, 39 * MIB / 10, 4 * MIB - 16] {
            let message = Bytes::from(padded(size));
            for method in ["ListVolumes", "CreateVolume", "GetCapacity"] {
                world.driver.inject(method, Fault::raw(message.clone()), Times::Next(1));
                let answer = cloud.call(&controller(method), &message).await?;
                assert_eq!(answer.code(), Code::Ok, "{method} {size}: {}", answer.status());
                assert!(
                    answer.message() == Some(message.clone()),
                    "{method}: an answer of {size} bytes changed"
                );
                let received = world.driver.calls_of(method);
                assert!(
                    received.last().is_some_and(|call| call.message == message),
                    "{method}: {size} bytes"
                );
                world.driver.forget_calls();
            }
        }
        world.stop().await?;
    }
    Ok(())
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[tokio::test]
async fn a_method_of_the_future_is_the_drivers_at_the_node_and_unknown_in_the_cloud()
-> anyhow::Result<()> {
    let world = World::shared(TRANSPORTS[0]).await?;
    let cloud = world.front().await?;
    let node = world.node_front().await?;
    let answer = node.call(FUTURE_PATH, UNKNOWN).await?;
    assert_eq!((answer.code(), answer.message().as_deref()), (Code::Ok, Some(UNKNOWN)));
    world.driver.forget_calls();
    for path in [
        FUTURE_PATH,
        "/grpc.health.v1.Health/Check",
        "/csi.v0.Identity/Probe",
        "/",
        "/csi.v1.Controller",
    ] {
        let status = cloud.call(path, &[]).await?.status();
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status}");
    }
    for path in ["/grpc.health.v1.Health/Check", "/csi.v0.Identity/Probe", "/"] {
        let status = node.call(path, &[]).await?.status();
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status}");
    }
    assert!(world.driver.calls().is_empty());
    world.stop().await
}

#[tokio::test]
async fn what_is_no_grpc_message_is_refused_and_reaches_no_driver() -> anyhow::Result<()> {
    let world = World::shared(TRANSPORTS[0]).await?;
    for front in [world.front().await?, world.node_front().await?] {
        let cases: [(&[u8], Code); 5] = [
            (b"", Code::InvalidArgument),
            (b"\0\0\0\0\x05abc", Code::InvalidArgument),
            (b"\0\0\0\0\x01abc", Code::InvalidArgument),
            (b"\x01\0\0\0\x01a", Code::Unimplemented),
            (b"\0\xff\xff\xff\xff", Code::InvalidArgument),
        ];
        for (body, code) in cases {
            let status = front
                .send(&controller("CreateVolume"), Bytes::from_static(body), &[])
                .await?
                .status();
            assert_eq!(status.code(), code, "{body:?}: {status}");
            assert!(status.message().contains("CreateVolume"), "{status}");
        }
        let large = proto::csi::frame::frame(&vec![0; 4 * MIB + 1]);
        let status = front.send(&controller("CreateVolume"), large, &[]).await?.status();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let timeout = [("grpc-timeout", "soon")];
        let status = front
            .send(&controller("CreateVolume"), proto::csi::frame::frame(&[]), &timeout)
            .await?
            .status();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    // Only the cloud parses the message; the driver decides at the node.
    let status =
        world.front().await?.call(&controller("CreateVolume"), b"\x0a\xff").await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(world.driver.calls().is_empty(), "something reached the driver");
    world.stop().await
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any bytes at all as a body: an answer, and the programs live on.
    #[test]
    fn no_body_ends_a_program(bodies in vec(vec(any::<u8>(), 0..64), 200)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let outcome: anyhow::Result<()> = runtime.block_on(async {
            let world = World::shared(TRANSPORTS[0]).await?;
            let fronts = [world.front().await?, world.node_front().await?];
            for (body, (_, method)) in bodies.into_iter().zip(METHODS.iter().cycle()) {
                for front in &fronts {
                    front.send(&controller(method), body.clone().into(), &[]).await?;
                    front.call(&controller(method), &body).await?;
                }
            }
            world.stop().await
        });
        outcome.unwrap();
    }
}
