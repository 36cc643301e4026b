//! The codes for callers and the calls for the driver when something breaks. There is no final code
//! while the outcome is unknown. No call is dispatched twice or ended half way.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use drivers::testdriver::{Fault, Gate, Optional, Outcome, Times};
use harness::raw::{RawClient, connection_broke};
use harness::requests::{controller, create, created, delete, snapshot_requests};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, QUIET, TRANSPORTS, World, ready};
use tokio::time::Instant;
use tonic::Code;

fn framed(message: &[u8]) -> Bytes {
    proto::csi::frame::frame(message)
}

#[tokio::test]
async fn an_upstream_that_breaks_is_unavailable_also_in_the_middle_of_a_body() -> anyhow::Result<()>
{
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        for front in [world.front().await?, world.node_front().await?] {
            for fault in
                [Fault::Die, Fault::DieAfterWork, Fault::DieInBody, Fault::NotGrpc, Fault::NoStatus]
            {
                breaks(&world, &front, &fault, "CreateVolume").await?;
                breaks(&world, &front, &fault, "ListVolumes").await?;
            }
        }
        world.stop().await?;
    }
    Ok(())
}

async fn breaks(
    world: &World,
    front: &RawClient,
    fault: &Fault,
    method: &str,
) -> anyhow::Result<()> {
    // The connection to the driver may just be coming back from the fault before.
    until("the driver is back", || async {
        let answer = front.call(&controller("GetCapacity"), &[]).await?;
        anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(())
    })
    .await?;
    world.driver.inject(method, fault.clone(), Times::Next(1));
    let status = front.call(&controller(method), &create("v")).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{fault:?} {method}: {status}");
    assert!(status.message().contains(DRIVER), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_stream_that_breaks_keeps_what_came_and_ends_unavailable() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let path = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";
        world.driver.inject("GetMetadataAllocated", Fault::DieInBody, Times::Next(1));
        let [request, _] = snapshot_requests(&world.direct().await?).await?;
        let answer = world.front().await?.call(path, &request).await?;
        assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
        assert!(!answer.body.is_empty(), "what had come is lost: {answer:?}");
        assert!(
            answer.trailers.contains_key("grpc-status"),
            "the end of a body is in its trailers"
        );
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_runs_to_its_end_though_its_deadline_has_passed() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        for (name, front) in [("a", world.front().await?), ("b", world.node_front().await?)] {
            let gate = Gate::new();
            world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
            let timeout = [("grpc-timeout", "300m")];
            let answer =
                front.send(&controller("CreateVolume"), framed(&create(name)), &timeout).await?;
            assert_eq!(answer.code(), Code::DeadlineExceeded, "{}", answer.status());
            let received = world.driver.wait_for("CreateVolume", 1).await?;
            assert!(
                !received[0].headers.contains_key("grpc-timeout"),
                "a driver could give up by it"
            );
            tokio::time::sleep(QUIET).await;
            assert_eq!(
                world.driver.calls_of("CreateVolume")[0].outcome,
                Outcome::Running,
                "it was cancelled"
            );
            gate.open();
            world.driver.wait_for_outcome("CreateVolume", Outcome::Finished, 1).await?;
            // Sent again it finds the volume that was made.
            let volume = created(&front.call(&controller("CreateVolume"), &create(name)).await?)?;
            assert_eq!(
                world.driver.volumes().iter().filter(|v| v.volume_id == volume.volume_id).count(),
                1
            );
            world.driver.forget_calls();
        }
        assert_eq!(world.driver.volumes().len(), 2);
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_runs_to_its_end_though_its_caller_hung_up() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let gate = Gate::new();
    world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    let front = world.front().await?;
    let request = create("v");
    let path = controller("CreateVolume");
    let call = front.call(&path, &request);
    let hung_up = tokio::time::timeout(QUIET, call).await.is_err();
    assert!(hung_up);
    drop(front);
    gate.open();
    world.driver.wait_for_outcome("CreateVolume", Outcome::Finished, 1).await?;
    assert_eq!(world.driver.volumes().len(), 1);
    world.stop().await
}

#[tokio::test]
async fn a_call_runs_to_its_end_though_the_link_is_gone_and_its_caller_is_told_at_once()
-> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { stand, cloud, edge, driver, serving } = World::new(transport).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        let gate = Gate::new();
        driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
        let path = controller("CreateVolume");
        let request = create("v");
        let call = front.call(&path, &request);
        let kill = async {
            gate.wait_for(1).await?;
            // The edge lives on; its link does not.
            cloud.process.kill().await
        };
        let (answer, killed) = tokio::join!(call, kill);
        killed?;
        // csi-cloud is gone and cannot answer, so the connection must break.
        let error = answer.err().context("a csi-cloud that was killed answered")?;
        assert!(connection_broke(&error), "{error:#}");
        tokio::time::sleep(QUIET).await;
        assert_eq!(driver.calls_of("CreateVolume")[0].outcome, Outcome::Running);
        gate.open();
        driver.wait_for_outcome("CreateVolume", Outcome::Finished, 1).await?;
        edge.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}

/// The cloud goes on answering from its store, at once.
async fn answers_from_its_store(front: &RawClient) -> anyhow::Result<()> {
    for method in [
        "Controller/ControllerGetCapabilities",
        "Identity/GetPluginCapabilities",
        "Identity/GetPluginInfo",
    ] {
        let mut quickest = Duration::MAX;
        // Whatever else the machine does, one of five is not held up by it.
        for _ in 0..5 {
            let begun = Instant::now();
            let answer = front.call(&format!("/csi.v1.{method}"), &[]).await?;
            quickest = quickest.min(begun.elapsed());
            assert_eq!(answer.code(), Code::Ok, "{method}");
            assert!(!answer.message().unwrap_or_default().is_empty(), "{method} is empty");
        }
        assert!(quickest < Duration::from_millis(50), "{method} took {quickest:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_that_dies_is_unavailable_at_once_naming_it() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { stand, cloud, edge, driver, serving } = World::new(transport).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        driver.inject("CreateVolume", Fault::Hang, Times::Next(1));
        let path = controller("CreateVolume");
        let request = create("v");
        let timeout = Duration::from_secs(8);
        let begun = Instant::now();
        let given = format!("{}m", timeout.as_millis());
        let given = [("grpc-timeout", given.as_str())];
        let call = front.send(&path, framed(&request), &given);
        let stop = async {
            driver.wait_for("CreateVolume", 1).await?;
            edge.signal(rustix::process::Signal::TERM)?;
            edge.logged("stopping").await?;
            // The second time it goes, with the call still running.
            edge.stop(START).await
        };
        let (answer, stopped) = tokio::join!(call, stop);
        stopped?;
        let status = answer?.status();
        // The outcome is unknown. The caller is held until its deadline in case the node comes
        // back, and gets no final code.
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable), "{status}");
        assert!(begun.elapsed() < timeout + Duration::from_secs(1), "after {:?}", begun.elapsed());

        until("the cloud sees that the link is gone", || async {
            let begun = Instant::now();
            let status = front.call(&path, &request).await?.status();
            let took = begun.elapsed();
            anyhow::ensure!(status.message().contains("has no link to the cloud"), "{status}");
            assert_eq!(status.code(), Code::Unavailable);
            assert!(
                status.message().contains(NODE) && status.message().contains(DRIVER),
                "{status}"
            );
            assert!(took < Duration::from_millis(50), "not at once, after {took:?}");
            Ok(())
        })
        .await?;
        answers_from_its_store(&front).await?;
        ready(&front).await?;
        driver.release();
        serving.stop().await;
        cloud.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_whose_deadline_has_passed_is_not_dispatched() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    for front in [world.front().await?, world.node_front().await?] {
        let timeout = [("grpc-timeout", "0n")];
        let answer =
            front.send(&controller("CreateVolume"), framed(&create("v")), &timeout).await?;
        assert_eq!(answer.code(), Code::DeadlineExceeded, "{}", answer.status());
        // The next call takes the same path, so the driver would have seen the late one before it.
        created(&front.call(&controller("CreateVolume"), &create("next")).await?)?;
        let received = world.driver.calls();
        assert_eq!(received.len(), 1, "the late call was dispatched");
        assert_eq!(received[0].message, create("next"));
        world.driver.forget_calls();
    }
    world.stop().await
}

#[tokio::test]
async fn a_driver_that_restarts_is_found_again_and_one_that_is_another_is_not_taken()
-> anyhow::Result<()> {
    let mut world = World::new(TRANSPORTS[0]).await?;
    let cloud = world.front().await?;
    let socket = world.stand.at("driver.sock");
    world.serving.stop().await;
    let status = cloud.call(&controller("CreateVolume"), &create("v")).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("driver.sock") && status.message().contains(DRIVER),
        "{status}"
    );

    world.serving = world.driver.serve(std::path::Path::new(&socket))?;
    let answer = cloud.call(&controller("CreateVolume"), &create("v")).await?;
    assert_eq!(answer.code(), Code::Ok, "a call finds a driver that is back: {}", answer.status());

    world.serving.stop().await;
    world.driver.set_name("another.example");
    world.driver.forget_calls();
    world.serving = world.driver.serve(std::path::Path::new(&socket))?;
    world.driver.wait_for("GetPluginInfo", 1).await?;
    let status = cloud.call(&controller("DeleteVolume"), &delete("vol-1")).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("another.example"), "{status}");
    assert!(world.driver.calls_of("DeleteVolume").is_empty(), "a call reached another's storage");
    world.stop().await
}

#[tokio::test]
async fn a_driver_that_learns_something_new_is_asked_again_when_it_restarts() -> anyhow::Result<()>
{
    for transport in TRANSPORTS {
        let mut world = World::new(transport).await?;
        let front = world.front().await?;
        let path = "/csi.v1.GroupController/GroupControllerGetCapabilities";
        assert_eq!(front.call(path, &[]).await?.code(), Code::Ok);
        // What it can less sets its node apart, and changes nothing that the front says.
        let names = std::cell::Cell::new(0);
        for (offers, code) in [(false, Code::Unavailable), (true, Code::Ok)] {
            world.serving.stop().await;
            world.driver.offer(Optional::GroupController, offers);
            let socket = world.stand.at("driver.sock");
            world.serving = world.driver.serve(std::path::Path::new(&socket))?;
            until("the cloud learns what the driver can", || async {
                // Each is new: a retry of one that was made is served.
                let name = format!("v-{}", names.replace(names.get() + 1));
                let answer = front.call(&controller("CreateVolume"), &create(&name)).await?;
                let status = answer.status();
                let is_apart = status.message().contains("is set apart");
                anyhow::ensure!(status.code() == code && is_apart != offers, "{status}");
                Ok(())
            })
            .await?;
            assert_eq!(front.call(path, &[]).await?.code(), Code::Ok);
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_is_not_known_yet_is_never_guessed() -> anyhow::Result<()> {
    let stand = harness::stand::Stand::new().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    let begun = Instant::now();
    let probe = front.call("/csi.v1.Identity/Probe", &[]).await?;
    assert_eq!(
        (probe.code(), probe.message().as_deref()),
        (Code::Ok, Some(&b"\x0a\0"[..])),
        "ready is there, false"
    );
    assert_eq!(front.call("/csi.v1.Identity/GetPluginInfo", &[]).await?.code(), Code::Ok);
    for (path, request) in [
        ("/csi.v1.Identity/GetPluginCapabilities", vec![]),
        ("/csi.v1.Controller/ControllerGetCapabilities", vec![]),
        ("/csi.v1.Controller/CreateVolume", create("a")),
        ("/csi.v1.Controller/DeleteVolume", delete("a")),
        ("/csi.v1.Controller/ListVolumes", vec![]),
    ] {
        let status = front.call(path, &request).await?.status();
        assert_eq!(status.code(), Code::Unavailable, "{path}: {status}");
        assert!(status.message().contains("ever linked"), "{status}");
    }
    // external-attacher allows two of them one second together.
    assert!(begun.elapsed() < Duration::from_secs(1), "seven answers took {:?}", begun.elapsed());
    let status = front.call("/csi.v1.Node/NodePublishVolume", &[]).await?.status();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    cloud.process.stop(START).await
}

/// The code for a driver's socket that is no socket.
#[tokio::test]
async fn a_socket_of_no_driver_is_named_with_what_it_is() -> anyhow::Result<()> {
    let mut stand = harness::stand::Stand::new().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let file = stand.at("file.sock");
    proto::host::publish::publish(
        file.as_ref(),
        b"no socket",
        0o600,
        proto::host::publish::Existing::Keep,
    )?;
    let web = stand.at("web.sock");
    let silent = stand.at("silent.sock");
    let web_server = tokio::net::UnixListener::bind(&web)?;
    let _silent_server = tokio::net::UnixListener::bind(&silent)?;
    let tasks = proto::host::tasks::Tasks::default();
    tasks.spawn_until_stop("web server", async move {
        while let Ok((mut stream, _)) = web_server.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(
                &mut stream,
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
            )
            .await;
        }
    });
    for (at, socket, expected) in [
        ("m", stand.at("missing.sock"), "nothing at its socket's path"),
        ("f", file, "is no socket"),
        ("w", web, "does not speak gRPC"),
        ("s", silent, "does not say within"),
    ] {
        let edge = stand.edge(at, &cloud.urls[0], &[(DRIVER, &socket)]).await?;
        let front = RawClient::connect(&stand.edge_front(at, DRIVER)).await?;
        until("the edge has tried", || async {
            let status = front.call(&controller("GetCapacity"), &[]).await?.status();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            anyhow::ensure!(status.message().contains(expected), "{status}");
            assert!(status.message().contains(&socket), "{status}");
            Ok(())
        })
        .await?;
        edge.logged("cannot use the driver").await?;
        edge.stop(START).await?;
    }
    tasks.stop();
    cloud.process.stop(START).await
}
