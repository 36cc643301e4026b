//! A link works the same over each transport: messages both ways, both byte streams, and its close.
#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests call these functions")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use proto::control::hello::{MAX_BYTES, Message, Refused};
use proto::host::tasks::Tasks;
use proto::link::addresses::Addresses;
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::tls::{Credentials, client_config, server_config};
use proto::link::{
    Connect, Event, GREETING, Io, KeepAlive, Link, NodeNetwork, StreamKind, WRITE, dial, quic, ws,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// Credentials of one CA: the cloud's and those of node n1.
fn credentials() -> [Credentials; 2] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let host = SanType::DnsName("localhost".try_into().unwrap());
    let node = SanType::URI("edge-csi://node/n1".try_into().unwrap());
    [host, node].map(|name| {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::made(ca.der().clone(), certificate.der().clone(), key.into()).unwrap()
    })
}

/// A listener of the cloud.
enum Listener {
    Ws(TcpListener, ws::Acceptor),
    Quic(quic::Acceptor),
}

impl Listener {
    async fn bind(transport: Transport, cloud: &Credentials) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let keep_alive = KeepAlive::default();
        match transport {
            Transport::Ws => {
                let tls = server_config(cloud, ws::ALPN).unwrap();
                let listener = TcpListener::bind(any).await.unwrap();
                Self::Ws(listener, ws::Acceptor::new(tls, keep_alive))
            }
            Transport::Quic => Self::Quic(quic::Acceptor::bind(any, cloud, keep_alive).unwrap()),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Ws(listener, _) => listener.local_addr().unwrap().port(),
            Self::Quic(acceptor) => acceptor.local_addr().unwrap().port(),
        }
    }

    /// The next link; none for a bulk connection, which goes to its link.
    async fn accept(&self) -> Option<Link> {
        match self {
            Self::Ws(listener, acceptor) => {
                let (tcp, _) = listener.accept().await.unwrap();
                let greeted = acceptor.greet(Box::new(tcp)).await.unwrap();
                let (peer, link) = acceptor.accept(greeted).await.unwrap().link()?;
                assert_eq!(peer.name.as_str(), "n1");
                Some(link.into())
            }
            Self::Quic(acceptor) => {
                let incoming = acceptor.accept().await.unwrap();
                let (peer, link) = quic::authenticate(incoming).await.unwrap();
                assert_eq!(peer.name.as_str(), "n1");
                Some(link.into())
            }
        }
    }
}

/// Opens a stream at the cloud, and writes to it; gives back what the edge gets.
async fn open(
    listener: &Listener,
    cloud: &mut Link,
    edge: &mut Link,
    kind: StreamKind,
) -> (Io, Io) {
    let opening = cloud.open(kind);
    let opened = async {
        let mut ours = opening.await.unwrap();
        ours.write_all(b"x").await.unwrap();
        ours.flush().await.unwrap();
        ours
    };
    let theirs = async {
        loop {
            match edge.next().await {
                Event::Opened(opened, io) => {
                    assert_eq!(opened, kind);
                    return io;
                }
                Event::Message(_) => {}
                Event::Closed(error) => panic!("{error}"),
            }
        }
    };
    let accepting = async {
        // Only a bulk stream over WebSocket is a connection of its own.
        if matches!((listener, kind), (Listener::Ws(..), StreamKind::Bulk)) {
            assert!(listener.accept().await.is_none());
        }
    };
    tokio::select! {
        biased;
        (ours, theirs, ()) = async { tokio::join!(opened, theirs, accepting) } => (ours, theirs),
        event = cloud.next() => match event {
            Event::Closed(error) => panic!("{error}"),
            Event::Message(_) | Event::Opened(..) => panic!("the edge sent nothing"),
        },
    }
}

/// Makes a link, each side of which has sent one message.
async fn linked(transport: Transport) -> (Listener, Link, Link) {
    let (listener, mut cloud, edge) = accepted(transport).await;
    cloud.send(&Message::Leaving).await.unwrap();
    (listener, cloud, edge)
}

/// Makes a link, whose edge has sent one message.
async fn accepted(transport: Transport) -> (Listener, Link, Link) {
    let [cloud, node] = credentials();
    let listener = Listener::bind(transport, &cloud).await;
    let endpoint = format!("{}://localhost:{}", transport.scheme(), listener.port());
    let endpoint: Endpoint = endpoint.parse().unwrap();
    let connect = ws::tcp();
    // Over QUIC, a link is accepted when the edge's first message comes.
    let edge = async {
        let mut edge = dial(&endpoint, &node, KeepAlive::default(), &connect).await.unwrap();
        edge.send(&Message::Leaving).await.unwrap();
        edge
    };
    let (edge, cloud) = tokio::join!(edge, listener.accept());
    (listener, cloud.unwrap(), edge)
}

/// What comes to the cloud, while the edge is driven.
async fn heard(cloud: &mut Link, edge: &mut Link) -> Event {
    tokio::select! {
        event = cloud.next() => event,
        why = end_of(edge) => panic!("{why}"),
    }
}

async fn exchange(transport: Transport) {
    let (listener, mut cloud, mut edge) = linked(transport).await;
    assert_eq!([edge.transport(), cloud.transport()], [transport.scheme(); 2]);
    assert!(matches!(heard(&mut cloud, &mut edge).await, Event::Message(Message::Leaving)));

    let tasks = Tasks::default();
    for kind in [StreamKind::Calls, StreamKind::Bulk] {
        let (mut ours, mut theirs) = open(&listener, &mut cloud, &mut edge, kind).await;
        assert_eq!(theirs.read_u8().await.unwrap(), b'x');
        theirs.write_all(b"y").await.unwrap();
        theirs.flush().await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'y');
        // Over WebSocket, control messages go out while the calls stream is polled.
        for mut io in [ours, theirs] {
            tasks.spawn_until_stop("stream", async move {
                let _ = io.read_u8().await;
            });
        }
    }
    tasks.stop();
    tasks.ended().await;
}

#[tokio::test]
async fn a_websocket_carries_messages_and_streams() {
    exchange(Transport::Ws).await;
}

#[tokio::test]
async fn quic_carries_messages_and_streams() {
    exchange(Transport::Quic).await;
}

/// The cloud ends a byte stream, and drops it before the edge has answered.
async fn end(cloud: &mut Link, edge: &mut Link, mut ours: Io, mut theirs: Io) {
    let ending = async {
        theirs.write_all(b"late").await.unwrap();
        theirs.flush().await.unwrap();
        ours.shutdown().await.unwrap();
        drop(ours);
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"x");
        let _ = theirs.shutdown().await;
    };
    tokio::select! {
        biased;
        () = ending => {}
        _ = async { tokio::join!(cloud.next(), edge.next()) } => panic!("they sent nothing"),
    }
}

/// The edge ends a byte stream before the cloud's end arrives, as HTTP/2 does after a GOAWAY.
async fn end_early(cloud: &mut Link, edge: &mut Link, mut ours: Io, mut theirs: Io) {
    let ending = async {
        let their_end = async {
            let ended = theirs.shutdown().await;
            drop(theirs);
            ended
        };
        let our_end = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let ended = ours.shutdown().await;
            drop(ours);
            ended
        };
        let (theirs, ours) = tokio::join!(their_end, our_end);
        assert!(theirs.is_ok() && ours.is_ok(), "{theirs:?} {ours:?}");
    };
    tokio::select! {
        biased;
        () = ending => {}
        _ = async { tokio::join!(cloud.next(), edge.next()) } => panic!("they sent nothing"),
    }
}

/// Whether an edge gets a message and then a stream.
async fn is_in_order(edge: &mut Link) -> bool {
    matches!(edge.next().await, Event::Message(_)) && matches!(edge.next().await, Event::Opened(..))
}

#[tokio::test]
async fn the_first_message_leaves_a_websocket_before_the_first_bytes_of_calls() {
    let (_listener, mut cloud, mut edge) = linked(Transport::Ws).await;
    let mut calls = cloud.open(StreamKind::Calls).await.unwrap();
    calls.write_all(b"x").await.unwrap();
    calls.flush().await.unwrap();
    assert!(is_in_order(&mut edge).await);
}

/// As if the packet of the message was lost and sent again.
#[tokio::test]
async fn over_quic_a_stream_waits_for_the_first_message() {
    let (_listener, mut cloud, mut edge) = accepted(Transport::Quic).await;
    let mut calls = cloud.open(StreamKind::Calls).await.unwrap();
    calls.write_all(b"x").await.unwrap();
    let early = timeout(Duration::from_millis(200), edge.next()).await;
    assert!(early.is_err(), "it came first");
    cloud.send(&Message::Leaving).await.unwrap();
    assert!(is_in_order(&mut edge).await);
}

#[tokio::test]
async fn calls_streams_follow_each_other_on_a_link() {
    for transport in Transport::ALL {
        let (listener, mut cloud, mut edge) = linked(transport).await;
        assert!(matches!(heard(&mut cloud, &mut edge).await, Event::Message(Message::Leaving)));
        assert_eq!(cloud.reopens_calls(), transport == Transport::Quic, "an older edge");
        edge.send(&hello()).await.unwrap();
        assert!(matches!(heard(&mut cloud, &mut edge).await, Event::Message(Message::Hello(_))));
        assert!(cloud.reopens_calls());
        for _ in 0..10 {
            let calls = StreamKind::Calls;
            let (ours, theirs) = open(&listener, &mut cloud, &mut edge, calls).await;
            end(&mut cloud, &mut edge, ours, theirs).await;
        }
        for _ in 0..3 {
            let calls = StreamKind::Calls;
            let (ours, theirs) = open(&listener, &mut cloud, &mut edge, calls).await;
            end_early(&mut cloud, &mut edge, ours, theirs).await;
        }
        // Nobody took this one.
        drop(cloud.open(StreamKind::Calls));
        open(&listener, &mut cloud, &mut edge, StreamKind::Calls).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_ends_whose_edge_does_not_end_its_calls_stream() {
    let (mut cloud, mut edge) = unread().await;
    edge.send(&hello()).await.unwrap();
    tokio::select! {
        _ = cloud.next() => {}
        _ = edge.next() => panic!("the cloud sent nothing"),
    }
    let mut ours = cloud.open(StreamKind::Calls).await.unwrap();
    ours.write_all(b"x").await.unwrap();
    ours.shutdown().await.unwrap();
    drop(ours);
    // The edge is alive, and keeps the stream.
    let begun = Instant::now();
    let living = async {
        let Event::Opened(_, mut io) = edge.next().await else { panic!("no stream") };
        while io.write_all(b"y").await.is_ok() && io.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        biased;
        ended = end_of(&mut cloud) => {
            assert!(ended.contains("did not end its calls stream"), "{ended}");
        }
        () = living => panic!("the edge cannot write"),
    }
    assert!(begun.elapsed() <= Duration::from_secs(16), "{:?}", begun.elapsed());
}

fn hello() -> Message {
    let hello = r#"{"hello":{"protocol":1,"node":"n1","version":"0.3.0","drivers":[],
        "owners":true,"not_taken":true,"reopens_calls":true,
        "run":"00000000-0000-0000-0000-000000000000"}}"#;
    Message::decode(hello.as_bytes()).unwrap()
}

/// Why a link ended.
async fn end_of(link: &mut Link) -> String {
    loop {
        if let Event::Closed(error) = link.next().await {
            return error.to_string();
        }
    }
}

#[tokio::test]
async fn a_close_tells_the_other_side_why() {
    for transport in Transport::ALL {
        let (_listener, cloud, mut edge) = linked(transport).await;
        let (text, ()) = tokio::join!(end_of(&mut edge), cloud.close("it is over"));
        assert!(text.contains("the other side closed it: it is over"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_whole_client_hello_is_given_up_after_two_seconds() {
    let [cloud, _] = credentials();
    let tls = server_config(&cloud, ws::ALPN).unwrap();
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let (far, mut near) = tokio::io::duplex(1024);
    let begun = Instant::now();
    let greeting = async { acceptor.greet(Box::new(far)).await.err().map(|e| e.to_string()) };
    // The start of a record of 512 bytes, a byte each 100 ms.
    let dripping = async {
        for byte in [0x16, 3, 1, 2, 0, 1].into_iter().chain([0; 90]) {
            if near.write_u8(byte).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (error, ()) = tokio::join!(greeting, dripping);
    assert!(error.as_deref().is_some_and(|e| e.contains("no TLS ClientHello")), "{error:?}");
    assert!(begun.elapsed() < 2 * GREETING, "{:?}", begun.elapsed());
}

/// A name whose first address swallows everything, and whose second one is good.
fn half_dead(swallows: SocketAddr, good: u16) -> NodeNetwork {
    let all = vec![swallows, SocketAddr::from(([127, 0, 0, 1], good))];
    NodeNetwork::direct(Addresses::new(Arc::new(move |_| {
        Box::pin(std::future::ready(Ok(all.clone())))
    })))
}

/// A TCP address of which the kernel drops each SYN, because the queue of its listener is full.
async fn swallows_tcp() -> (SocketAddr, socket2::Socket, Vec<TcpStream>) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    while let Ok(tcp) = timeout(Duration::from_millis(200), TcpStream::connect(at)).await {
        queued.push(tcp.unwrap());
    }
    (at, listener, queued)
}

#[tokio::test]
async fn a_link_comes_up_in_a_second_though_the_first_address_swallows_everything() {
    let (tcp, _listener, _queued) = swallows_tcp().await;
    let udp = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for transport in Transport::ALL {
        let [cloud, node] = credentials();
        let listener = Listener::bind(transport, &cloud).await;
        let endpoint = format!("{}://localhost:1", transport.scheme());
        let endpoint: Endpoint = endpoint.parse().unwrap();
        let swallows = if transport.is_tcp() { tcp } else { udp.local_addr().unwrap() };
        let network = half_dead(swallows, listener.port());
        for limit in [1000, 240].map(Duration::from_millis) {
            let begun = Instant::now();
            let edge = async {
                let dialed = dial(&endpoint, &node, KeepAlive::default(), &network);
                let mut edge = dialed.await.unwrap();
                edge.send(&Message::Leaving).await.unwrap();
                edge
            };
            let (_edge, cloud) = tokio::join!(edge, listener.accept());
            assert!(cloud.is_some());
            assert!(begun.elapsed() < limit, "{transport:?}: {:?}", begun.elapsed());
        }
    }
}

/// A long outage is a handshake every half a minute, which a network may swallow each time.
#[tokio::test]
async fn a_quic_handshake_that_is_swallowed_costs_few_bytes() {
    /// The headers of IPv4 and UDP.
    const HEADERS: usize = 28;
    let [_, node] = credentials();
    let udp = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let network = NodeNetwork::direct(Addresses::only(udp.local_addr().unwrap()));
    let endpoint: Endpoint = "quic://localhost:1".parse().unwrap();
    let mut datagram = [0; 2048];
    let mut bytes = 0;
    let counting = async {
        loop {
            bytes += HEADERS + udp.recv(&mut datagram).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        dialed = dial(&endpoint, &node, KeepAlive::default(), &network) => {
            assert!(dialed.is_err());
        }
        () = counting => {}
    }
    println!("{bytes} bytes");
    assert!((1_000..=9_000).contains(&bytes), "{bytes}");
}

/// A link over a network that takes few bytes, and its edge, which reads none of them.
async fn unread() -> (Link, Link) {
    let [cloud, node] = credentials();
    let tls = server_config(&cloud, ws::ALPN).unwrap();
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let (near, far) = tokio::io::duplex(4096);
    let near = Arc::new(Mutex::new(Some(near)));
    let connect: Connect = Arc::new(move |_| {
        let near = near.lock().take();
        Box::pin(async move { Ok(Box::new(near.ok_or(std::io::ErrorKind::NotFound)?) as Io) })
    });
    let network = NodeNetwork::from(connect);
    let endpoint: Endpoint = "wss://localhost:1".parse().unwrap();
    let dialing = dial(&endpoint, &node, KeepAlive::default(), &network);
    let accepting = async {
        let greeted = acceptor.greet(Box::new(far)).await.unwrap();
        acceptor.accept(greeted).await.unwrap().link().unwrap().1
    };
    let (cloud, edge) = tokio::join!(accepting, dialing);
    (cloud.into(), edge.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_holds_up_a_write_for_ten_seconds_and_little_memory() {
    let (mut cloud, _edge) = unread().await;
    let reason = "x".repeat(MAX_BYTES / 2);
    let large = Message::Refused(Refused { protocol: 1, reason, leader: None });
    let begun = Instant::now();
    let mut taken = 0;
    let error = loop {
        match cloud.send(&large).await {
            Ok(()) => taken += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("took no message"), "{error}");
    assert!(taken <= 5, "{taken} messages wait, of 128 KiB each");
    assert!(begun.elapsed() <= WRITE + Duration::from_secs(1), "{:?}", begun.elapsed());
    let begun = Instant::now();
    cloud.close("nobody reads this").await;
    assert!(begun.elapsed() <= Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_not_read_ends_though_nobody_writes_more() {
    let (mut cloud, _edge) = unread().await;
    let large =
        Message::Refused(Refused { protocol: 1, reason: "x".repeat(100_000), leader: None });
    cloud.send(&large).await.unwrap();
    let begun = Instant::now();
    let ended = end_of(&mut cloud).await;
    assert!(ended.contains("took no message"), "{ended}");
    assert!(begun.elapsed() <= Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_burst_of_messages_waits_for_its_reader() {
    for transport in Transport::ALL {
        let (_listener, mut cloud, mut edge) = linked(transport).await;
        let sending = async {
            for _ in 0..150 {
                edge.send(&Message::Leaving).await.unwrap();
            }
            end_of(&mut edge).await
        };
        let hearing = async {
            for _ in 0..151 {
                assert!(matches!(cloud.next().await, Event::Message(Message::Leaving)));
            }
            cloud.close("all is heard").await;
        };
        let (ended, ()) = tokio::join!(sending, hearing);
        assert!(ended.contains("all is heard"), "{ended}");
    }
}

#[tokio::test]
async fn each_end_knows_when_the_certificate_of_the_other_ends() {
    for transport in Transport::ALL {
        let (_listener, cloud, edge) = linked(transport).await;
        // rcgen's default.
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(67_090_118_400);
        assert_eq!([cloud.expires(), edge.expires()], [Some(end); 2], "{transport:?}");
    }
}

/// How the cloud ends a link whose edge sends these bytes after its upgrade.
async fn end_after(sent: Vec<u8>) -> String {
    let [cloud, node] = credentials();
    let tls = server_config(&cloud, ws::ALPN).unwrap();
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let (near, far) = tokio::io::duplex(1 << 20);
    let sending = async {
        let config = client_config(&node, ws::ALPN).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut tls = TlsConnector::from(config).connect(name, near).await.unwrap();
        let upgrade = "GET /link HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        tls.write_all(upgrade.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(tls.read_u8().await.unwrap());
        }
        // The link may end before all is sent.
        let _ = tls.write_all(&sent).await;
        tls
    };
    let hearing = async {
        let greeted = acceptor.greet(Box::new(far)).await.unwrap();
        let (_, link) = acceptor.accept(greeted).await.unwrap().link().unwrap();
        end_of(&mut link.into()).await
    };
    let (_tls, ended) = tokio::join!(sending, hearing);
    ended
}

#[tokio::test]
async fn a_peer_that_sends_pings_without_end_is_closed() {
    // An empty ping with an empty mask (RFC 6455, 5.2).
    let ended = end_after([0x89, 0x80, 0, 0, 0, 0].repeat(1_000)).await;
    assert!(ended.contains("more signs of life than it may"), "{ended}");
}

#[tokio::test]
async fn a_peer_that_sends_fragments_of_a_message_is_closed() {
    // A message that goes on, and empty continuations of it.
    let begun = vec![0x02, 0x80, 0, 0, 0, 0];
    let fragments = [begun, [0x00, 0x80, 0, 0, 0, 0].repeat(100_000)].concat();
    let ended = end_after(fragments).await;
    assert!(ended.contains("a message in fragments"), "{ended}");
}
