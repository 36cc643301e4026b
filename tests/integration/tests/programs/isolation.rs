//! A slow call slows no other call, and a full front refuses at once.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{bail, ensure};
use bytes::Bytes;
use drivers::testdriver::{Fault, Times};
use futures_util::future::join_all;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created, snapshot_requests};
use harness::wait::until;
use harness::world::{DRIVER, TRANSPORTS, World};
use http::Request;
use proto::csi;
use proto::csi::frame::frame;
use proto::http2::forward;
use proto::http2::limits::MAX_PASSING;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::Code;

/// The longest time for small calls on a machine that does much else. What hangs takes longer.
const SOON: Duration = Duration::from_secs(2);

async fn call(front: &RawClient, method: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
    front.send(&controller(method), frame(request), &[("grpc-timeout", "20S")]).await
}

async fn small_calls(front: &RawClient, name: &str) -> anyhow::Result<()> {
    for n in 0..10 {
        created(&call(front, "CreateVolume", &create(&format!("{name}-{n}"))).await?)?;
    }
    Ok(())
}

/// Repeats work until it takes less than `most`, at most for [`harness::wait::START`].
///
/// Streams take CPU until their windows are full, so the first rounds may be slow on a busy
/// machine.
///
/// # Errors
/// The work's first error, or that no round was quick.
async fn becomes_quick<F: Future<Output = anyhow::Result<()>>>(
    what: &str,
    most: Duration,
    mut work: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let rounds = until(what, || {
        let begun = Instant::now();
        let round = work();
        async move {
            match round.await {
                Ok(()) if begun.elapsed() >= most => bail!("it took {:?}", begun.elapsed()),
                done => Ok(done),
            }
        }
    });
    rounds.await?
}

#[tokio::test]
async fn hung_calls_leave_others_alone() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let front = world.front().await?;
        world.driver.inject("CreateVolume", Fault::Hang, Times::Next(40));
        let requests: Vec<_> = (0..40).map(|n| create(&format!("hung-{n}"))).collect();
        let hung =
            join_all(requests.iter().map(|request| {
                let body: Bytes = frame(request);
                let front = front.clone();
                async move {
                    front.send(&controller("CreateVolume"), body, &[("grpc-timeout", "5S")]).await
                }
            }));
        let others = async {
            world.driver.wait_for("CreateVolume", 40).await?;
            let begun = Instant::now();
            small_calls(&front, "v").await?;
            assert!(begun.elapsed() < SOON, "ten small calls took {:?}", begun.elapsed());
            anyhow::Ok(())
        };
        let (hung, others) = tokio::join!(hung, others);
        others?;
        for answer in hung {
            assert_eq!(answer?.code(), Code::DeadlineExceeded);
        }
        world.driver.release();
        world.stop().await?;
    }
    Ok(())
}

/// Streams with readers that stand still fill their own windows only.
#[tokio::test]
async fn readers_who_stand_still_leave_others_alone() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let front = world.front().await?;
        let [request, _] = snapshot_requests(&world.direct().await?).await?;
        let large = Bytes::from(vec![0; 3_900_000]);
        world.driver.inject("GetMetadataAllocated", Fault::raw(large), Times::All);
        let (still, connection) =
            forward::connect(UnixStream::connect(world.stand.cloud_front(DRIVER)).await?).await?;
        let tasks = proto::host::tasks::Tasks::default();
        tasks.spawn_until_stop("reader", async move { drop(connection.await) });
        let path = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";
        let mut unread = Vec::new();
        for _ in 0..MAX_PASSING {
            let mut stream = Request::post(format!("http://localhost{path}")).body(())?;
            stream
                .headers_mut()
                .insert("content-type", http::HeaderValue::from_static("application/grpc"));
            unread.push(still.send(stream, frame(&request)).await?);
        }
        let rounds = Cell::new(0);
        let small = || {
            let name = format!("v-{}", rounds.replace(rounds.get() + 1));
            let front = &front;
            async move { small_calls(front, &name).await }
        };
        becomes_quick("ten small calls", SOON, small).await?;
        world.driver.fill(40, 100_000);
        let large = || async {
            let listed = call(&front, "ListVolumes", &[]).await?;
            let whole = listed.code() == Code::Ok && listed.body.len() > 3_900_000;
            ensure!(whole, "{}", listed.status());
            Ok(())
        };
        becomes_quick("a list of 4 MB", 3 * SOON, large).await?;
        // The streams stand still to the end: they have all the places of the link.
        let more = front.call(path, &request).await?.status();
        assert_eq!(more.code(), Code::Unavailable, "{more}");
        assert!(more.message().contains("which is the limit"), "{more}");
        drop(unread);
        tasks.stop();
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_full_front_says_so_at_once() -> anyhow::Result<()> {
    const LIMIT: usize = 1024;
    let world = World::new(TRANSPORTS[0]).await?;
    let front = world.front().await?;
    world.driver.inject("CreateVolume", Fault::Hang, Times::All);
    let requests: Vec<_> = (0..LIMIT).map(|n| create(&format!("hung-{n}"))).collect();
    let hung = join_all(requests.iter().map(|request| call(&front, "CreateVolume", request)));
    let others = async {
        world.driver.wait_for("CreateVolume", LIMIT).await?;
        let begun = Instant::now();
        let status = call(&front, "CreateVolume", &create("one more")).await?.status();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("1024 calls are in flight"), "{status}");
        assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());
        // The front's own answers need no place.
        let answer = front.call("/csi.v1.Controller/ControllerGetCapabilities", &[]).await?;
        assert_eq!(answer.code(), Code::Ok);
        world.driver.release();
        anyhow::Ok(())
    };
    let (hung, others) = tokio::join!(hung, others);
    others?;
    let volumes: Result<Vec<csi::Volume>, _> =
        hung.into_iter().map(|answer| created(&answer?)).collect();
    assert_eq!(volumes?.len(), LIMIT);
    world.stop().await
}
