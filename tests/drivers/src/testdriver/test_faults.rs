//! Every fault as a gRPC client sees it.

use std::sync::Arc;
use std::time::Duration;

use crate::grpc::controller_client::ControllerClient;
use crate::grpc::identity_client::IdentityClient;
use crate::grpc::node_client::NodeClient;
use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderValue};
use proto::csi::{
    ControllerGetVolumeRequest, ListVolumesRequest, ListVolumesResponse, NodePublishVolumeRequest,
    ProbeRequest,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::test_support::{Bench, connect, create, publish};
use super::{FUTURE_PATH, Fault, Gate, Outcome, Times};

/// A codec of bare bytes, to see and send what the generated code would not.
#[derive(Clone, Copy, Default)]
struct Bare;

impl Codec for Bare {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        *self
    }
    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Bare {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Bare {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

async fn bare(
    channel: Channel,
    path: &'static str,
    message: Bytes,
) -> Result<tonic::Response<Bytes>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(tonic::Request::new(message), path, Bare).await
}

async fn probe(bench: &Bench) -> Result<(), Status> {
    let mut client = IdentityClient::new(bench.channel().await);
    client.probe(ProbeRequest {}).await.map(drop)
}

fn publishing(channel: Channel, id: &str) -> JoinHandle<Result<(), Status>> {
    let request: NodePublishVolumeRequest = publish(id);
    tokio::runtime::Handle::current()
        .spawn(async move { NodeClient::new(channel).node_publish_volume(request).await.map(drop) })
}

async fn fault_seen(fault: Fault) -> (Bench, Status) {
    let bench = Bench::new();
    bench.driver.inject("Probe", fault, Times::Next(1));
    let status = timeout(Duration::from_secs(5), probe(&bench)).await.unwrap().unwrap_err();
    // The next call is as usual: the fault was for one.
    probe(&bench).await.unwrap();
    (bench, status)
}

#[tokio::test]
async fn every_code_can_be_answered() {
    let bench = Bench::new();
    for n in 1..=16 {
        let code = Code::from_i32(n);
        bench.driver.inject("*", Fault::error(code, format!("fault {n} ü")), Times::Next(1));
        let status = probe(&bench).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, format!("fault {n} ü").as_str()));
    }
    probe(&bench).await.unwrap();
}

#[tokio::test]
async fn a_status_keeps_its_details() {
    let status = Status::with_details(Code::Internal, "m", Bytes::from_static(b"details"));
    let (_bench, seen) = fault_seen(Fault::Status(status)).await;
    assert_eq!((seen.code(), seen.details()), (Code::Internal, &b"details"[..]));
}

#[tokio::test]
async fn a_delay_delays() {
    let bench = Bench::new();
    bench.driver.inject("Probe", Fault::Delay(Duration::from_millis(80)), Times::All);
    let start = Instant::now();
    probe(&bench).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(80));
    bench.driver.clear_faults();
    assert!(bench.driver.core.script.take("Probe").is_none());
}

#[tokio::test]
async fn a_hanging_call_waits_for_release() {
    let bench = Bench::new();
    bench.driver.inject("*", Fault::Hang, Times::All);
    let call = publishing(bench.channel().await, "vol-1");
    let came = bench.driver.wait_for("NodePublishVolume", 1).await.unwrap();
    assert_eq!(came[0].outcome, Outcome::Running);
    assert!(bench.driver.published().is_empty() && !call.is_finished());
    bench.driver.release();
    call.await.unwrap().unwrap();
    probe(&bench).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_call_is_seen_as_dropped() {
    let bench = Bench::new();
    bench.driver.inject("NodePublishVolume", Fault::Hang, Times::All);
    let channel = bench.channel().await;
    let call = publishing(channel.clone(), "vol-1");
    bench.driver.wait_for("NodePublishVolume", 1).await.unwrap();
    call.abort();
    bench.driver.wait_for_outcome("*", Outcome::Dropped, 1).await.unwrap();
    bench.driver.clear_faults();
    // The cancelled call no longer holds the volume.
    publishing(channel, "vol-1").await.unwrap().unwrap();
    assert!(bench.driver.overlaps().is_empty());
}

#[tokio::test]
async fn a_gate_holds_calls_until_it_opens() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.driver.inject("NodePublishVolume", Fault::Gate(gate.clone()), Times::All);
    let channel = bench.channel().await;
    let calls = [publishing(channel.clone(), "vol-1"), publishing(channel, "vol-2")];
    gate.wait_for(2).await.unwrap();
    assert!(bench.driver.published().is_empty());
    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(bench.driver.published().len(), 2);
}

#[tokio::test]
async fn dying_breaks_all_calls_of_the_connection() {
    let bench = Bench::new();
    bench.driver.inject("NodePublishVolume", Fault::Hang, Times::Next(1));
    bench.driver.inject("NodePublishVolume", Fault::Die, Times::Next(1));
    let channel = bench.channel().await;
    let other = publishing(channel.clone(), "vol-1");
    bench.driver.wait_for("NodePublishVolume", 1).await.unwrap();
    let status = publishing(channel.clone(), "vol-2").await.unwrap().unwrap_err();
    assert_ne!(status.code(), Code::Cancelled, "the stream was reset, not the connection broken");
    let broken = other.await.unwrap().unwrap_err();
    assert_eq!(broken.code(), Code::Unknown, "{broken}");
    bench.driver.wait_for_outcome("NodePublishVolume", Outcome::Dropped, 2).await.unwrap();
    assert!(bench.driver.published().is_empty());
    // The listener still stands.
    probe(&bench).await.unwrap();
}

#[tokio::test]
async fn dying_after_the_work_leaves_the_work_done() {
    let bench = Bench::new();
    bench.driver.inject("CreateVolume", Fault::DieAfterWork, Times::Next(1));
    let mut c = ControllerClient::new(bench.channel().await);
    let broken = c.create_volume(create("a")).await.map(drop).unwrap_err();
    assert_eq!(broken.code(), Code::Unknown, "{broken}");
    assert_eq!(bench.driver.volumes().len(), 1);
    c.create_volume(create("a")).await.map(drop).unwrap();
    assert_eq!(bench.driver.volumes().len(), 1);
}

#[tokio::test]
async fn dying_in_the_body_sends_headers_and_half() {
    let bench = Bench::new();
    bench.driver.fill(1, 1000);
    bench.driver.inject("ListVolumes", Fault::DieInBody, Times::Next(1));
    let stream = tokio::net::UnixStream::connect(&bench.path).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut send, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::runtime::Handle::current().spawn(connection);
    let body = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
    let request = http::Request::post("http://localhost/csi.v1.Controller/ListVolumes");
    let request = request.header("content-type", "application/grpc").body(body).unwrap();
    let response = send.send_request(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let mut body = response.into_body();
    let mut got = 0;
    loop {
        match http_body_util::BodyExt::frame(&mut body).await {
            Some(Ok(frame)) => got += frame.into_data().unwrap().len(),
            Some(Err(_)) => break,
            None => panic!("the body ended as if it were whole"),
        }
    }
    assert!((500..600).contains(&got), "{got}");
    let _ = timeout(Duration::from_secs(5), connection).await.unwrap();
}

#[tokio::test]
async fn raw_answers_come_byte_by_byte() {
    let bench = Bench::new();
    for size in [0, 1, 64 << 10, 3_900_000] {
        let message = Bytes::from(vec![7; size]);
        let headers =
            HeaderMap::from_iter([("x-head".parse().unwrap(), HeaderValue::from_static("h"))]);
        let trailers =
            HeaderMap::from_iter([("x-tail".parse().unwrap(), HeaderValue::from_static("t"))]);
        bench.driver.inject(
            "Probe",
            Fault::Raw { message: message.clone(), headers, trailers },
            Times::Next(1),
        );
        let channel = bench.channel().await;
        let answer = bare(channel, "/csi.v1.Identity/Probe", Bytes::new()).await.unwrap();
        let extra = |key| answer.metadata().get(key).unwrap().to_str().unwrap();
        assert_eq!((extra("x-head"), extra("x-tail")), ("h", "t"));
        assert!(*answer.get_ref() == message);
    }
}

#[tokio::test]
async fn the_rpc_of_the_future_echoes() {
    let bench = Bench::new();
    let message = Bytes::from_static(b"\x0a\x05vol-1\xf8\x3f\x01");
    for recording in [true, false] {
        bench.driver.record(recording);
        bench.driver.refuse_overlaps(recording);
        let answer = bare(bench.channel().await, FUTURE_PATH, message.clone()).await.unwrap();
        assert_eq!(*answer.get_ref(), message);
    }
    assert_eq!(bench.driver.calls_of("ControllerFutureThing")[0].message, message);
}

#[tokio::test]
async fn answers_that_are_not_grpc() {
    let (bench, status) = fault_seen(Fault::NotGrpc).await;
    assert!(status.message().contains("404"), "{status}");
    bench.driver.inject("Probe", Fault::NoStatus, Times::Next(1));
    let answer = bare(bench.channel().await, "/csi.v1.Identity/Probe", Bytes::new()).await;
    // gRPC: an answer must end with a status; without one its outcome is unknown.
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status}");
    assert!(status.message().contains("missing grpc-status"), "{status}");
}

#[tokio::test]
async fn overlapping_calls_are_refused_unless_switched_off() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.driver.inject("NodePublishVolume", Fault::Gate(gate.clone()), Times::All);
    let channel = bench.channel().await;
    let first = publishing(channel.clone(), "vol-1");
    gate.wait_for(1).await.unwrap();
    let refused = publishing(channel.clone(), "vol-1").await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    let mut c = ControllerClient::new(channel.clone());
    let other =
        c.controller_get_volume(ControllerGetVolumeRequest { volume_id: "vol-1".into() }).await;
    assert_eq!(other.map(drop).unwrap_err().code(), Code::NotFound, "it only reads");
    assert_eq!(bench.driver.overlaps().len(), 1, "{:?}", bench.driver.overlaps());
    bench.driver.refuse_overlaps(false);
    let second = publishing(channel, "vol-1");
    gate.wait_for(2).await.unwrap();
    gate.open();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(bench.driver.overlaps().len(), 1);
}

#[tokio::test]
async fn creations_overlap_by_name() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::All);
    let channel = bench.channel().await;
    let mut c = ControllerClient::new(channel.clone());
    let first = tokio::runtime::Handle::current().spawn(async move {
        ControllerClient::new(channel).create_volume(create("a")).await.map(drop)
    });
    gate.wait_for(1).await.unwrap();
    assert_eq!(c.create_volume(create("a")).await.map(drop).unwrap_err().code(), Code::Aborted);
    gate.open();
    first.await.unwrap().unwrap();
    c.create_volume(create("b")).await.map(drop).unwrap();
}

#[tokio::test]
async fn a_stopped_driver_is_gone_and_comes_back_with_its_memory() {
    let Bench { driver, running, path, dir } = Bench::new();
    driver.inject("NodePublishVolume", Fault::Hang, Times::Next(1));
    let channel = connect(path.clone()).await.unwrap();
    ControllerClient::new(channel.clone()).create_volume(create("a")).await.map(drop).unwrap();
    let hanging = publishing(channel, "vol-1");
    driver.wait_for("NodePublishVolume", 1).await.unwrap();
    timeout(Duration::from_secs(1), running.stop()).await.unwrap();
    let broken = hanging.await.unwrap().unwrap_err();
    assert_eq!(broken.code(), Code::Unknown, "{broken}");
    assert_eq!(driver.calls_of("NodePublishVolume")[0].outcome, Outcome::Dropped);
    assert!(path.exists());
    let refused = proto::host::chain(&connect(path.clone()).await.unwrap_err());
    assert!(refused.contains("Connection refused"), "{refused}");

    let _running = driver.serve(&path).unwrap();
    let mut c = ControllerClient::new(connect(path).await.unwrap());
    let list = c.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.entries.len(), 1);
    drop(dir);
}

#[tokio::test]
async fn each_page_is_the_one_of_its_token() {
    let bench = Bench::new();
    let page = |at: u64| {
        let next_token = (at + 1).to_string();
        prost::Message::encode_to_vec(&ListVolumesResponse { next_token, ..Default::default() })
    };
    let pages = Fault::Pages(Arc::new(move |at| page(at).into()));
    bench.driver.inject("ListVolumes", pages, Times::All);
    let mut c = ControllerClient::new(bench.channel().await);
    for (token, next) in [("", "1"), ("1", "2"), ("7", "8")] {
        let request = ListVolumesRequest { starting_token: token.into(), ..Default::default() };
        assert_eq!(c.list_volumes(request).await.unwrap().into_inner().next_token, next);
    }
}

#[tokio::test]
async fn the_error_of_a_wait_says_what_came() {
    let bench = Bench::new();
    assert_eq!(bench.driver.summary(), "nothing");
    probe(&bench).await.unwrap();
    probe(&bench).await.unwrap();
    assert_eq!(bench.driver.summary(), "2 x Probe Finished");
}
