//! The plugin against a runtime in memory that is newer, or broken.
//!
//! `tests/integration/tests/direct/nri.rs` has the test with NRI's own library.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tonic::Code;

use super::*;
use crate::device::host::Host;
use crate::nri::api::{CreateContainerRequest, PodSandbox};
use crate::nri::guard::Handlers;
use crate::nri::ttrpc::Status;
use crate::records::admitted;
use crate::records::published::Published;
use crate::records::published::tests::record;
use crate::runtimes::entry;
use crate::runtimes::mount_info::{DRIVER, VOLUME};
use crate::runtimes::{Roots, Runtimes};

fn plugin(state: PathBuf) -> Plugin {
    let runtimes =
        Runtimes::new(Roots { entries: state.join("entries"), ..Roots::default() }, Duration::ZERO);
    Plugin::new(state, "10".into(), Handlers::default(), Arc::new(runtimes))
}

/// A runtime that the plugin has registered with.
async fn registered() -> (tempfile::TempDir, DuplexStream, tokio::task::JoinHandle<Ended>) {
    let (mut ours, theirs) = tokio::io::duplex(64);
    let state = tempfile::tempdir().unwrap();
    let plugin = plugin(state.path().to_owned());
    let ending = async move { serve(theirs, &plugin).await.unwrap_err() };
    #[expect(clippy::disallowed_methods, reason = "the test awaits it")]
    let running = tokio::spawn(ending);
    let (connection, message) = next(&mut ours).await;
    let Message::Request(FIRST, register) = message else { panic!("{message:?}") };
    assert_eq!((connection, register.method.as_str()), (RUNTIME, "RegisterPlugin"));
    let who = api::RegisterPluginRequest::decode(register.payload).unwrap();
    assert_eq!((who.plugin_name.as_str(), who.plugin_idx.as_str()), (NAME, "10"));
    (state, ours, running)
}

async fn next(stream: &mut DuplexStream) -> (u32, Message) {
    let mut frames = Framed::new(stream, Mux);
    let mut bytes = BytesMut::new();
    loop {
        let frame = frames.next().await.unwrap().unwrap();
        bytes.extend_from_slice(&frame.payload);
        if let Some(message) = Message::take(&mut bytes).unwrap() {
            return (frame.connection, message);
        }
    }
}

/// Sends a message in frames of three bytes, as a mux may.
async fn send(stream: &mut DuplexStream, connection: u32, message: &Message) {
    let mut bytes = BytesMut::new();
    for part in message.bytes().chunks(3) {
        let payload = Bytes::copy_from_slice(part);
        tokio_util::codec::Encoder::encode(&mut Mux, Frame { connection, payload }, &mut bytes)
            .unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
}

fn request(stream: u32, service: &str, method: &str, message: &impl prost::Message) -> Message {
    let payload = message.encode_to_vec().into();
    let service = service.into();
    let method = method.into();
    Message::Request(stream, Request { service, method, payload, timeout_nano: 1 })
}

async fn ask(stream: &mut DuplexStream, id: u32, message: &Message) -> Response {
    send(stream, PLUGIN, message).await;
    let (connection, answer) = next(stream).await;
    let Message::Response(answered, response) = answer else { panic!("{answer:?}") };
    assert_eq!((connection, answered), (PLUGIN, id));
    response
}

#[tokio::test]
async fn it_asks_for_the_beginning_and_the_end_of_containers_and_changes_nothing_that_runs() {
    let (_state, mut runtime, _running) = registered().await;
    let configure = api::ConfigureRequest { runtime_name: "c".into(), runtime_version: "1".into() };
    let answer =
        ask(&mut runtime, 1, &request(1, api::PLUGIN_SERVICE, "Configure", &configure)).await;
    assert_eq!(api::ConfigureResponse::decode(answer.payload).unwrap().events, 8 | 512 | 1024);
    for (more, id) in [(true, 3), (false, 5)] {
        let pods = vec![PodSandbox::default()];
        let sync = api::SynchronizeRequest { pods, containers: vec![], more };
        let answer =
            ask(&mut runtime, id, &request(id, api::PLUGIN_SERVICE, "Synchronize", &sync)).await;
        assert_eq!(api::SynchronizeResponse::decode(answer.payload).unwrap().more, more);
    }
}

#[tokio::test]
async fn what_it_does_not_know_is_unimplemented_and_what_it_cannot_read_is_refused() {
    let (_state, mut runtime, _running) = registered().await;
    let empty = api::SynchronizeResponse::default();
    let cases = [
        (api::PLUGIN_SERVICE, "ValidateContainerAdjustment", Code::Unimplemented),
        ("grpc.health.v1.Health", "Check", Code::Unimplemented),
    ];
    for (service, method, code) in cases {
        let status =
            ask(&mut runtime, 1, &request(1, service, method, &empty)).await.status.unwrap();
        assert_eq!(status.code, i32::from(code), "{}", status.message);
    }
    let broken = Request {
        service: api::PLUGIN_SERVICE.into(),
        method: "CreateContainer".into(),
        payload: Bytes::from_static(b"\x0a\xff"),
        timeout_nano: 0,
    };
    let status = ask(&mut runtime, 1, &Message::Request(1, broken)).await.status.unwrap();
    assert_eq!(status.code, i32::from(Code::InvalidArgument), "{}", status.message);
}

#[tokio::test]
async fn records_that_cannot_be_read_stop_what_may_be_direct_and_nothing_else() {
    let (state, mut runtime, _running) = registered().await;
    let records = state.path().join("direct").join("published");
    std::fs::create_dir_all(records.join("x.json")).unwrap();
    let create = |source: &str| {
        let mount = api::Mount { source: source.into(), ..Default::default() };
        let container = api::Container { mounts: vec![mount], ..Default::default() };
        let pod = Some(PodSandbox::default());
        request(
            7,
            api::PLUGIN_SERVICE,
            "CreateContainer",
            &CreateContainerRequest { pod, container: Some(container) },
        )
    };
    let direct = create("/pods/u/volumes/kubernetes.io~csi/pv/mount");
    let status = ask(&mut runtime, 7, &direct).await.status.unwrap();
    assert_eq!(status.code, i32::from(Code::Unavailable), "{}", status.message);
    let other = create("/pods/u/etc-hosts");
    assert_eq!(ask(&mut runtime, 7, &other).await.status, None);
}

#[tokio::test]
async fn a_connection_ends_with_a_reason() {
    let (_state, mut runtime, running) = registered().await;
    let status = Some(Status { code: 3, message: "no such index".into() });
    send(
        &mut runtime,
        RUNTIME,
        &Message::Response(FIRST, Response { status, payload: Bytes::new() }),
    )
    .await;
    let ended = running.await.unwrap();
    assert!(matches!(&ended, Ended::Refused(why) if why == "no such index"), "{ended}");

    let (_state, mut runtime, running) = registered().await;
    runtime.write_all(&[0xff; 16]).await.unwrap();
    let ended = running.await.unwrap();
    assert!(matches!(ended, Ended::Frame(BadFrame::TooLong(_))), "{ended}");

    let (_state, runtime, running) = registered().await;
    drop(runtime);
    assert!(matches!(running.await.unwrap(), Ended::Closed));
}

/// The container runtime goes on without a plugin that does not answer within 2 s.
#[tokio::test]
async fn a_look_that_hangs_is_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let target = "/pods/u/volumes/kubernetes.io~csi/pv/mount";
    let metadata = [(DRIVER, "d.example"), (VOLUME, "v")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let volume = Published { target: target.into(), metadata, ..record("v") };
    volume.keep(dir.path()).unwrap();
    let mut plugin = plugin(dir.path().to_owned());
    entry::restore(&plugin.runtimes.root(), &volume).unwrap();
    plugin.handlers.vm = ["kata".to_owned(), "kata-rs".to_owned()].into();
    plugin.handlers.typed = ["kata-rs".to_owned()].into();
    plugin.host = Host { proc: dir.path().join("proc"), ..Host::default() };
    std::fs::create_dir_all(plugin.host.proc.join("self")).unwrap();
    // A FIFO without a writer.
    let hanging = plugin.host.proc.join("self/mountinfo");
    mknodat(CWD, &hanging, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let create = async |handler: &str| {
        let mount = api::Mount { source: target.into(), ..Default::default() };
        let container = api::Container { mounts: vec![mount], ..Default::default() };
        let (id, runtime_handler) = ("s-1".into(), handler.into());
        let pod = Some(PodSandbox { id, runtime_handler, ..Default::default() });
        let asked = CreateContainerRequest { pod, container: Some(container) };
        let payload = asked.encode_to_vec().into();
        let (service, method) = (api::PLUGIN_SERVICE.into(), "CreateContainer".into());
        let begun = tokio::time::Instant::now();
        let response = plugin.answer(Request { service, method, payload, timeout_nano: 0 });
        let response = response.await;
        assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
        response.status.map(|status| status.message)
    };
    // More than may hang at once.
    for _ in 0..10 {
        let why = create("kata-rs").await.unwrap();
        assert!(why.contains("not known in time"), "{why}");
    }
    assert_eq!(admitted::last(dir.path(), &volume.target).unwrap(), None);
    // The looks that hang end with it.
    let writer = std::fs::File::options().write(true).open(&hanging).unwrap();
    std::fs::remove_file(&hanging).unwrap();
    drop(writer);
}
