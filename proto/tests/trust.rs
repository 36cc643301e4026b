//! Who is trusted. An edge that joins knows the CA by its hash, and certificates are refused by
//! name. An ended one may renew itself, and files are read again.
#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests call these functions")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use proto::control::base64::Base64;
use proto::control::certificate::Certificate;
use proto::control::hello::Message;
use proto::control::join::{Answer, Join, Token};
use proto::host::publish::{Existing, publish};
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::tls::{
    Admit, Credentials, Denied, Files, Pin, Role, join_config, joining_config, server_config,
};
use proto::link::{Event, Io, KeepAlive, Link, LinkError, dial, join, quic, ws};
use proto::names::NodeName;
use proto::names::certificate::{Identity, Subject};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const DAY: Duration = Duration::from_secs(86_400);

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A certificate and its key, PEM, which ended so long ago (or ends tomorrow).
    fn issue(&self, name: SanType, ended: Option<Duration>) -> (rcgen::Certificate, KeyPair) {
        let usage = match name {
            SanType::URI(_) => ExtendedKeyUsagePurpose::ClientAuth,
            _ => ExtendedKeyUsagePurpose::ServerAuth,
        };
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        params.extended_key_usages = vec![usage];
        let now = SystemTime::now();
        let end = ended.map_or_else(|| now + DAY, |ago| now - ago);
        params.not_before = (end - 10 * DAY).into();
        params.not_after = end.into();
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    fn made(&self, name: SanType, ended: Option<Duration>) -> Credentials {
        let (certificate, key) = self.issue(name, ended);
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::made(self.der(), certificate.der().clone(), key.into()).unwrap()
    }

    /// A certificate with these names and extended key usages; without any, it has no extension.
    fn made_for(&self, names: Vec<SanType>, usages: Vec<ExtendedKeyUsagePurpose>) -> Credentials {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = usages;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::made(self.der(), certificate.der().clone(), key.into()).unwrap()
    }

    fn cloud(&self) -> Credentials {
        self.made(host(), None)
    }

    /// Writes an identity of node n1.
    fn write(&self, dir: &Path, ended: Option<Duration>) -> Files {
        self.write_as(dir, node(), ended)
    }

    fn write_as(&self, dir: &Path, name: SanType, ended: Option<Duration>) -> Files {
        let (certificate, key) = self.issue(name, ended);
        let files = Files::identity(dir);
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        publish(&files.cert, pem.as_bytes(), 0o600, Existing::Replace).unwrap();
        publish(&files.ca, self.0.pem().as_bytes(), 0o644, Existing::Replace).unwrap();
        files
    }
}

fn host() -> SanType {
    SanType::DnsName("localhost".try_into().unwrap())
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn node() -> SanType {
    uri("edge-csi://node/n1")
}

fn question() -> Join {
    Join { token: Token::new("id.secret"), csr: Base64(Bytes::from_static(b"csr")) }
}

/// A listener at the cloud over one transport.
enum Listener {
    Ws(TcpListener, ws::Acceptor),
    Quic(quic::Acceptor),
}

impl Listener {
    async fn bind(transport: Transport, cloud: &Credentials) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        match transport {
            Transport::Ws => {
                let tls = server_config(cloud, ws::ALPN).unwrap();
                let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
                let acceptor = acceptor.with_join(join_config(cloud, join::ALPN).unwrap());
                Self::Ws(TcpListener::bind(any).await.unwrap(), acceptor)
            }
            Transport::Quic => {
                Self::Quic(quic::Acceptor::bind(any, cloud, KeepAlive::default()).unwrap())
            }
        }
    }

    fn endpoint(&self) -> Endpoint {
        let (scheme, addr) = match self {
            Self::Ws(listener, _) => ("wss", listener.local_addr().unwrap()),
            Self::Quic(acceptor) => ("quic", acceptor.local_addr().unwrap()),
        };
        format!("{scheme}://localhost:{}", addr.port()).parse().unwrap()
    }

    async fn accepted(&self) -> Result<ws::Accepted, LinkError> {
        let Self::Ws(listener, acceptor) = self else { panic!("not WebSocket") };
        let (tcp, _) = listener.accept().await.unwrap();
        acceptor.accept(acceptor.greet(Box::new(tcp) as Io).await?).await
    }

    async fn link(&self) -> Result<(Identity<NodeName>, Link), LinkError> {
        match self {
            Self::Ws(..) => {
                let (peer, link) = self.accepted().await?.link().unwrap();
                Ok((peer, link.into()))
            }
            Self::Quic(acceptor) => {
                let incoming = acceptor.accept().await.unwrap();
                let (peer, link) = quic::authenticate(incoming).await?;
                Ok((peer, link.into()))
            }
        }
    }
}

/// What both ends make of a link: the cloud's peer, or its error, and the edge's error.
async fn linked(
    listener: &Listener,
    node: &Credentials,
) -> (Result<Identity<NodeName>, LinkError>, Result<(), LinkError>) {
    let endpoint = listener.endpoint();
    let connect = ws::tcp();
    let edge = async {
        let mut link = dial(&endpoint, node, KeepAlive::default(), &connect).await?;
        link.send(&Message::Leaving).await?;
        match link.next().await {
            Event::Closed(LinkError::Closed(_)) => Ok(()),
            Event::Closed(error) => Err(error),
            _ => panic!("the cloud says nothing"),
        }
    };
    let cloud = async {
        let (peer, link) = listener.link().await?;
        link.close("seen").await;
        Ok(peer)
    };
    tokio::join!(cloud, edge)
}

async fn ask(listener: &Listener, pin: Pin) -> Result<Answer, LinkError> {
    join::ask(&listener.endpoint(), pin, &question(), &ws::tcp()).await
}

/// Answers the one who asks.
async fn answer(listener: &Listener, answer: Answer) -> Result<Join, LinkError> {
    match listener.accepted().await? {
        ws::Accepted::Asker(asker) => {
            let asked = asker.join.clone();
            asker.reply(&answer).await?;
            Ok(asked)
        }
        _ => panic!("nobody asks"),
    }
}

#[tokio::test]
async fn an_edge_joins_a_cloud_whose_ca_has_the_hash() {
    let ca = Ca::new();
    let cloud = ca.cloud();
    let listener = Listener::bind(Transport::Ws, &cloud).await;
    let pin = cloud.ca_pin().unwrap();
    assert_eq!(pin, Pin::of(&ca.der()));
    let certificate = Certificate { chain: "chain".into(), ca: "ca".into() };
    let told = Answer::Certificate(certificate.clone());
    let (got, asked) = tokio::join!(ask(&listener, pin), answer(&listener, told));
    assert_eq!(got.unwrap(), Answer::Certificate(certificate));
    assert_eq!(asked.unwrap(), question());
    let told = Answer::refused("the token was used at 12:00; make another one");
    let (got, asked) = tokio::join!(ask(&listener, pin), answer(&listener, told.clone()));
    assert_eq!(got.unwrap(), told);
    asked.unwrap();
}

#[tokio::test]
async fn nothing_is_sent_to_a_cloud_with_another_ca() {
    let [ca, other] = [Ca::new(), Ca::new()];
    let listener = Listener::bind(Transport::Ws, &ca.cloud()).await;
    let told = Answer::refused("never said");
    let (got, asked) = tokio::join!(ask(&listener, Pin::of(&other.der())), answer(&listener, told));
    let text = got.unwrap_err().to_string();
    assert!(text.contains("has the hash sha256:"), "{text}");
    assert!(text.contains("is this the right address"), "{text}");
    assert!(matches!(asked, Err(LinkError::Tls(_))), "the cloud saw the question: {asked:?}");
}

#[tokio::test]
async fn the_hash_alone_does_not_vouch_for_another_host() {
    let ca = Ca::new();
    let elsewhere = SanType::DnsName("other.example".try_into().unwrap());
    let listener = Listener::bind(Transport::Ws, &ca.made(elsewhere, None)).await;
    let told = Answer::refused("never said");
    let (got, asked) = tokio::join!(ask(&listener, Pin::of(&ca.der())), answer(&listener, told));
    let text = got.unwrap_err().to_string();
    assert!(text.contains("certificate is refused"), "{text}");
    assert!(matches!(asked, Err(LinkError::Tls(_))), "the cloud saw the question: {asked:?}");
}

#[tokio::test]
async fn a_certificate_of_a_node_does_not_pass_for_the_ca() {
    // Whoever has a node's certificate shows it as if it were the CA.
    let ca = Ca::new();
    let cloud = ca.cloud();
    let listener = Listener::bind(Transport::Ws, &cloud).await;
    let pin = Pin::of(&cloud.certificate().unwrap());
    let told = Answer::refused("never said");
    let (got, asked) = tokio::join!(ask(&listener, pin), answer(&listener, told));
    assert!(got.unwrap_err().to_string().contains("has the hash"));
    assert!(matches!(asked, Err(LinkError::Tls(_))), "the cloud saw the question: {asked:?}");
}

#[tokio::test]
async fn an_older_cloud_and_quic_take_no_tokens() {
    let ca = Ca::new();
    let cloud = ca.cloud();
    let Listener::Ws(listener, _) = Listener::bind(Transport::Ws, &cloud).await else { panic!() };
    let tls = server_config(&cloud, ws::ALPN).unwrap();
    let older = Listener::Ws(listener, ws::Acceptor::new(tls, KeepAlive::default()));
    let pin = Pin::of(&ca.der());
    let (got, accepted) = tokio::join!(ask(&older, pin), older.accepted());
    let text = got.unwrap_err().to_string();
    assert!(text.contains("NoApplicationProtocol"), "{text}");
    let error = accepted.err().unwrap().to_string();
    assert!(error.contains("any known protocol"), "{error}");
    let quic: Endpoint = "quic://localhost:1".parse().unwrap();
    let error = join::ask(&quic, pin, &question(), &ws::tcp()).await.unwrap_err().to_string();
    assert!(error.contains("wss://"), "{error}");
}

#[tokio::test]
async fn those_who_join_get_no_link() {
    let ca = Ca::new();
    let listener = Listener::bind(Transport::Ws, &ca.cloud()).await;
    let tls = joining_config(Pin::of(&ca.der()), join::ALPN).unwrap();
    for path in ["/link", "/bulk/00000000-0000-4000-8000-000000000000"] {
        let asking = async {
            let tcp = TcpStream::connect(("127.0.0.1", listener.endpoint().port)).await.unwrap();
            let name = "localhost".try_into().unwrap();
            let stream = TlsConnector::from(tls.clone()).connect(name, tcp).await.unwrap();
            let uri = format!("wss://localhost{path}").parse().unwrap();
            let request = tokio_tungstenite::tungstenite::ClientRequestBuilder::new(uri);
            tokio_tungstenite::client_async(request, stream).await.err().unwrap().to_string()
        };
        let (error, accepted) = tokio::join!(asking, listener.accepted());
        assert!(error.contains("404"), "{path}: {error}");
        let refused = accepted.err().unwrap();
        assert!(matches!(refused, LinkError::Transport(_)), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn denied_identities_are_told_what_it_means() {
    let ca = Ca::new();
    let edge = ca.made(node(), None);
    for transport in Transport::ALL {
        for (denied, words) in
            [(Denied::Revoked, "csi-cloud token create"), (Denied::Removed, "csi-cloud node admit")]
        {
            let admit = Admit::by(move |identity| {
                assert_eq!(identity.name, Subject::Node("n1".parse().unwrap()));
                Err(denied)
            });
            let listener = Listener::bind(transport, &ca.cloud().with_admit(admit)).await;
            let (cloud, edge) = linked(&listener, &edge).await;
            let text = edge.unwrap_err().to_string();
            assert!(text.contains(words), "{transport:?}: {text}");
            let text = cloud.unwrap_err().to_string();
            assert!(text.contains(words), "{transport:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_certificate_of_two_names_or_for_another_purpose_gets_no_link() {
    let ca = Ca::new();
    let (client, server) =
        (ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth);
    let front = || uri("edge-csi://front/f1");
    for transport in Transport::ALL {
        let listener = Listener::bind(transport, &ca.cloud()).await;
        // Issuers that leave the extension out, such as cert-manager by default, mean any purpose.
        for usages in [vec![client.clone()], vec![server.clone(), client.clone()], vec![]] {
            let foreign = uri("spiffe://example/n1");
            let edge = ca.made_for(vec![node(), foreign], usages.clone());
            let (cloud, edge) = linked(&listener, &edge).await;
            edge.unwrap_or_else(|error| panic!("{transport:?} {usages:?}: {error}"));
            assert_eq!(cloud.unwrap().name.as_str(), "n1");
        }
        let refused = [
            (vec![node(), uri("edge-csi://node/n2")], vec![client.clone()], "has 2 names"),
            (vec![node(), front()], vec![client.clone()], "names of two kinds"),
            (vec![node()], vec![server.clone()], "that end of the link"),
        ];
        for (names, usages, why) in refused {
            let (cloud, _) = linked(&listener, &ca.made_for(names, usages)).await;
            let text = proto::host::chain(&cloud.unwrap_err());
            assert!(text.contains(why), "{transport:?}: {text}");
        }
    }
}

#[tokio::test]
async fn an_ended_certificate_of_a_node_is_known_as_ended() {
    let ca = Ca::new();
    for transport in Transport::ALL {
        let listener = Listener::bind(transport, &ca.cloud()).await;
        let now = SystemTime::now();
        for ended in [None, Some(89 * DAY), Some(900 * DAY)] {
            let (cloud, edge) = linked(&listener, &ca.made(node(), ended)).await;
            let peer = cloud.unwrap();
            assert_eq!(peer.name.as_str(), "n1");
            assert_eq!(peer.validity.ended(now), ended.is_some());
            edge.unwrap();
        }
        // What is wrong otherwise does not become right by its end, and only a node may renew.
        for (wrong, why) in [
            (Ca::new().made(node(), Some(DAY)), "of another CA"),
            (ca.made(uri("edge-csi://front/f1"), Some(DAY)), "has expired"),
        ] {
            let text = linked(&listener, &wrong).await.0.unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}

#[tokio::test]
async fn an_ended_identity_is_loaded_to_be_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let load = |files: &Files| Credentials::load(files, Role::Node);
    let files = ca.write(dir.path(), Some(DAY));
    let ended = load(&files).unwrap();
    assert!(ended.validity().unwrap().ended(SystemTime::now()));
    // Nobody renews what an operator issued.
    let key = dir.path().join("n1.key");
    std::fs::copy(&files.key, &key).unwrap();
    let text = load(&Files { key, ..files }).err().unwrap().to_string();
    assert!(text.contains("expired 1 days ago") && text.contains("ca issue"), "{text}");
    let long_ago = load(&ca.write(dir.path(), Some(900 * DAY))).unwrap();
    assert!(long_ago.validity().unwrap().ended(SystemTime::now()));
}

#[tokio::test]
async fn new_files_are_used_without_a_restart_and_bad_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let files = ca.write(dir.path(), None);
    let edge = Credentials::load(&files, Role::Node).unwrap();
    let shown = edge.certificate();
    let listener = Listener::bind(Transport::Ws, &ca.cloud()).await;
    let first = linked(&listener, &edge).await.0.unwrap().serial;
    assert!(!edge.reload(&files, Role::Node).unwrap(), "nothing has changed");
    ca.write(dir.path(), None);
    assert!(edge.reload(&files, Role::Node).unwrap());
    let noticed = tokio::time::timeout(Duration::from_secs(5), edge.renewed(shown.as_ref()));
    noticed.await.unwrap();
    let second = linked(&listener, &edge).await.0.unwrap().serial;
    assert_ne!(first, second);
    publish(&files.cert, b"nonsense", 0o600, Existing::Replace).unwrap();
    let text = edge.reload(&files, Role::Node).unwrap_err().to_string();
    assert!(text.contains("certificate"), "{text}");
    assert_eq!(linked(&listener, &edge).await.0.unwrap().serial, second);
    ca.write_as(dir.path(), uri("edge-csi://node/n2"), None);
    let text = edge.reload(&files, Role::Node).unwrap_err().to_string();
    assert!(text.contains("is of node n2, and this is node n1"), "{text}");
    // The roots are replaced too, for the other side's next certificate.
    let next = Ca::new();
    next.write(dir.path(), None);
    assert!(edge.reload(&files, Role::Node).unwrap());
    let text = linked(&listener, &edge).await.1.unwrap_err().to_string();
    assert!(text.contains("of another CA"), "{text}");
}

#[tokio::test]
async fn a_listener_uses_new_certificates_and_roots() {
    let dir = tempfile::tempdir().unwrap();
    let write = |ca: &Ca| {
        let (certificate, key) = ca.issue(host(), None);
        let files = Files::of(dir.path(), "cloud");
        for (path, text) in [
            (&files.cert, certificate.pem()),
            (&files.key, key.serialize_pem()),
            (&files.ca, ca.0.pem()),
        ] {
            publish(path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
        }
        files
    };
    let [old, new] = [Ca::new(), Ca::new()];
    let files = write(&old);
    let cloud = Credentials::load(&files, Role::Cloud).unwrap();
    for transport in Transport::ALL {
        write(&old);
        cloud.reload(&files, Role::Cloud).unwrap();
        let listener = Listener::bind(transport, &cloud).await;
        linked(&listener, &old.made(node(), None)).await.1.unwrap();
        write(&new);
        cloud.reload(&files, Role::Cloud).unwrap();
        linked(&listener, &new.made(node(), None)).await.1.unwrap();
        let text = linked(&listener, &old.made(node(), None)).await.1.unwrap_err().to_string();
        assert!(text.contains("of another CA"), "{text}");
    }
    assert_eq!(cloud.ca_pin(), Some(Pin::of(&new.der())));
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let files = ca.write(dir.path(), None);
    let edge = Credentials::load(&files, Role::Node).unwrap();
    let shown = edge.certificate();
    ca.write(dir.path(), None);
    tokio::select! {
        () = edge.clone().keep_current(files, Role::Node) => panic!("it never ends"),
        () = edge.renewed(shown.as_ref()) => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it was not noticed"),
    }
}
