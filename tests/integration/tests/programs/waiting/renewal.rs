//! An edge's certificate: joined with a token, renewed under calls, and renewed after its end.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drivers::testdriver::TestDriver;
use harness::hostile_cloud;
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::START;
use harness::world::{DRIVER, NODE, TRANSPORTS};
use parking_lot::Mutex;
use proto::control::base64::Base64;
use proto::control::certificate::{Certificate, NotRenewed};
use proto::control::hello::{Message, Welcome};
use proto::control::join::Answer;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use proto::http2::forward::NOT_DISPATCHED;
use proto::link::tls::{Credentials, Files, join_config, server_config};
use proto::link::{Event, KeepAlive, Link, LinkError, Opening, StreamKind, join, quic, ws};
use proto::names::NodeName;
use proto::names::certificate::{Identity, Serial};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::{CertificateSigningRequestDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;

/// The life of certificates; each is renewed at a half to two thirds of it.
const LIFE: Duration = Duration::from_secs(6);
const TOKEN: &str = "id.secret";

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn cloud(&self) -> anyhow::Result<Credentials> {
        let mut params = CertificateParams::new(vec!["localhost".into()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok(Credentials::made(self.0.der().clone(), certificate.der().clone(), key.into())?)
    }

    /// What csi-cloud issues: the begin is before the issue, for clocks that are behind.
    fn client(&self, end: SystemTime) -> anyhow::Result<CertificateParams> {
        let mut params = CertificateParams::default();
        let uri = format!("edge-csi://node/{NODE}");
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (end - Duration::from_secs(3600)).into();
        params.not_after = end.into();
        Ok(params)
    }

    fn issue(&self, csr: &Base64) -> anyhow::Result<Certificate> {
        let der = CertificateSigningRequestDer::from(csr.0.to_vec());
        let mut request = CertificateSigningRequestParams::from_der(&der)?;
        request.params = self.client(SystemTime::now() + LIFE)?;
        let certificate = request.signed_by(&self.0)?;
        Ok(Certificate { chain: certificate.pem(), ca: self.0.pem() })
    }

    /// Writes an identity that has ended.
    fn write_ended(&self, dir: &str) -> anyhow::Result<()> {
        let files = Files::identity(dir.as_ref());
        let key = KeyPair::generate()?;
        let params = self.client(SystemTime::now() - Duration::from_secs(60))?;
        let pem = format!("{}{}", params.signed_by(&key, &self.0)?.pem(), key.serialize_pem());
        std::fs::create_dir_all(dir)?;
        publish(&files.cert, pem.as_bytes(), 0o600, Existing::Keep)?;
        Ok(publish(&files.ca, self.0.pem().as_bytes(), 0o644, Existing::Keep)?)
    }
}

enum Listener {
    Ws(TcpListener, ws::Acceptor),
    Quic(quic::Acceptor),
}

impl Listener {
    async fn bind(transport: &str, cloud: &Credentials) -> anyhow::Result<(Self, String)> {
        if transport.starts_with("wss") {
            let acceptor = ws::Acceptor::new(server_config(cloud, ws::ALPN)?, KeepAlive::default())
                .with_join(join_config(cloud, join::ALPN)?);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("wss://localhost:{}", listener.local_addr()?.port());
            return Ok((Self::Ws(listener, acceptor), url));
        }
        let acceptor = quic::Acceptor::bind("127.0.0.1:0".parse()?, cloud, KeepAlive::default())?;
        let url = format!("quic://localhost:{}", acceptor.local_addr()?.port());
        Ok((Self::Quic(acceptor), url))
    }

    async fn accept(&self) -> Result<Accepted, LinkError> {
        match self {
            Self::Ws(listener, acceptor) => {
                let (tcp, _) =
                    listener.accept().await.map_err(|e| LinkError::Closed(e.to_string()))?;
                match acceptor.accept(acceptor.greet(Box::new(tcp)).await?).await? {
                    ws::Accepted::Link(peer, link) => Ok(Accepted::Link(peer, (*link).into())),
                    ws::Accepted::Asker(asker) => Ok(Accepted::Asker(asker)),
                    ws::Accepted::Bulk => Err(LinkError::Closed("nobody lists".into())),
                }
            }
            Self::Quic(acceptor) => {
                let incoming = acceptor.accept().await;
                let incoming = incoming.ok_or_else(|| LinkError::Closed("closed".into()))?;
                let (peer, link) = quic::authenticate(incoming).await?;
                Ok(Accepted::Link(peer, link.into()))
            }
        }
    }
}

enum Accepted {
    Link(Identity<NodeName>, Link),
    Asker(Box<join::Asker>),
}

/// A cloud that issues certificates, and hands out a client of the newest link.
struct Cloud {
    ca: Ca,
    /// The newest link's number, from 1, and its client.
    newest: watch::Sender<(u64, Option<RawClient>)>,
    /// Of the certificates that came with a hello.
    serials: Mutex<BTreeSet<Serial>>,
    /// Refuse so many renewals.
    refusals: Mutex<u32>,
}

impl Cloud {
    fn run(self: Arc<Self>, listener: Listener, tasks: Tasks) {
        let links = tasks.clone();
        tasks.spawn_until_stop("cloud", async move {
            loop {
                let cloud = self.clone();
                match listener.accept().await {
                    Ok(Accepted::Link(peer, link)) => links.spawn_until_stop("link", async move {
                        cloud.serve(peer, link).await.unwrap();
                    }),
                    Ok(Accepted::Asker(asker)) => {
                        assert_eq!(asker.join.token.reveal(), TOKEN);
                        let certificate = cloud.ca.issue(&asker.join.csr).unwrap();
                        asker.reply(&Answer::Certificate(certificate)).await.unwrap();
                    }
                    Err(error) => eprintln!("refused: {error}"),
                }
            }
        });
    }

    async fn serve(&self, peer: Identity<NodeName>, mut link: Link) -> anyhow::Result<()> {
        let mut opening: Option<Opening> = None;
        let mut number = 0;
        let mut leaving = false;
        let mut newest = self.newest.subscribe();
        loop {
            let opened = async {
                match &mut opening {
                    Some(opening) => opening.await,
                    None => std::future::pending().await,
                }
            };
            let replaced = async { drop(newest.wait_for(|(newest, _)| *newest > number).await) };
            tokio::select! {
                biased;
                io = opened => {
                    opening = None;
                    let client = RawClient::over(io?, DRIVER).await?;
                    self.newest.send_modify(|newest| *newest = (number, Some(client)));
                }
                () = replaced, if leaving => {
                    leaving = false;
                    link.send(&Message::Leave).await?;
                }
                event = link.next() => match event {
                    Event::Message(Message::Hello(_)) => {
                        anyhow::ensure!(!peer.validity.ended(SystemTime::now()), "an ended hello");
                        self.serials().insert(peer.serial.clone());
                        number = self.newest.borrow().0 + 1;
                        link.send(&welcome()).await?;
                        opening = Some(link.open(StreamKind::Calls));
                    }
                    Event::Message(Message::Renew(renew)) => {
                        link.send(&self.renew(&renew.csr)?).await?;
                    }
                    Event::Message(Message::Leaving) => leaving = true,
                    Event::Closed(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn renew(&self, csr: &Base64) -> anyhow::Result<Message> {
        let mut refusals = self.refusals.lock();
        if *refusals > 0 {
            *refusals -= 1;
            return Ok(Message::NotRenewed(NotRenewed { why: "the CA is away".into() }));
        }
        Ok(Message::Renewed(self.ca.issue(csr)?))
    }

    fn serials(&self) -> parking_lot::MutexGuard<'_, BTreeSet<Serial>> {
        self.serials.lock()
    }

    /// The newest link's number and client.
    async fn client(&self) -> anyhow::Result<(u64, RawClient)> {
        let mut newest = self.newest.subscribe();
        let linked = newest.wait_for(|(_, client)| client.is_some());
        let (link, client) = timeout(START, linked).await??.clone();
        Ok((link, client.ok_or_else(|| anyhow::anyhow!("no link"))?))
    }

    /// Calls on the newest link. If that was replaced meanwhile, or the edge did not pass the call
    /// on, it is sent again, as csi-cloud does it.
    async fn call(&self, method: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
        loop {
            let (link, client) = self.client().await?;
            match client.call(method, request).await {
                Err(_) if self.newest.borrow().0 > link => {}
                Ok(refused) if refused.headers.contains_key(&NOT_DISPATCHED) => {}
                answer => return answer,
            }
        }
    }
}

fn welcome() -> Message {
    Message::Welcome(Welcome { renews: true, ..hostile_cloud::welcome("issuing") })
}

struct World {
    stand: Stand,
    cloud: Arc<Cloud>,
    url: String,
    tasks: Tasks,
    driver: TestDriver,
    _serving: drivers::testdriver::Running,
}

impl World {
    async fn new(transport: &str) -> anyhow::Result<Self> {
        let ca = Ca::new()?;
        let credentials = ca.cloud()?;
        let (listener, url) = Listener::bind(transport, &credentials).await?;
        let cloud = Arc::new(Cloud {
            ca,
            newest: watch::Sender::default(),
            serials: Mutex::default(),
            refusals: Mutex::default(),
        });
        let tasks = Tasks::default();
        cloud.clone().run(listener, tasks.clone());
        let stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(stand.at("driver.sock").as_ref())?;
        Ok(Self { stand, cloud, url, tasks, driver, _serving: serving })
    }

    fn identity(&self) -> PathBuf {
        self.stand.at("identity").into()
    }

    /// Starts csi-edge with the identity.
    fn edge(&self) -> anyhow::Result<Process> {
        let mut command = self.stand.program("csi-edge")?;
        command.args(["serve", "--cloud", &self.url, "--identity"]).arg(self.identity());
        command.arg(format!("--driver={DRIVER}={}", self.stand.at("driver.sock")));
        Process::start("csi-edge", command, self.stand.dir())
    }
}

#[tokio::test]
async fn an_edge_joins_and_renews_its_certificate_under_calls() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let pin = world.cloud.ca.cloud()?.ca_pin().unwrap().to_string();
    let dir = world.identity().display().to_string();
    let asked = ["join", "--cloud", &world.url, "--ca-hash", &pin, "--token", TOKEN];
    let asked = [&asked[..], &["--identity", &dir]].concat();
    let said = world.stand.run("csi-edge", &asked).await?;
    assert!(said.contains("joined as node") && said.contains("--identity"), "{said}");
    // The identity is in use, and the token is not asked for a second one.
    let error = world.stand.run("csi-edge", &asked).await.unwrap_err().to_string();
    assert!(error.contains("is an identity in use"), "{error}");
    renewed_under_calls(world).await
}

#[tokio::test]
async fn over_quic_an_ended_certificate_is_renewed_before_the_hello() -> anyhow::Result<()> {
    let transport = TRANSPORTS.into_iter().find(|one| one.starts_with("quic")).unwrap();
    let world = World::new(transport).await?;
    world.cloud.ca.write_ended(&world.identity().display().to_string())?;
    renewed_under_calls(world).await
}

/// Calls without a pause, until the certificate has been renewed twice.
async fn renewed_under_calls(world: World) -> anyhow::Result<()> {
    world.driver.slow(Duration::from_millis(50), Duration::from_millis(50));
    *world.cloud.refusals.lock() = 1;
    let mut edge = world.edge()?;
    // The first attempt of a certificate that has ended is refused, and so is that of a valid one.
    edge.line_starting("linked ", START).await?;
    let enough = || world.cloud.serials().len() >= 3;
    let caller = |caller: u32| {
        let cloud = world.cloud.clone();
        async move {
            let mut number = 0;
            while !enough() {
                number += 1;
                let request = create(&format!("v{caller}-{number}"));
                let answer = cloud.call(&controller("CreateVolume"), &request).await?;
                anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
            }
            Ok(number)
        }
    };
    let calling = futures_util::future::try_join_all((0..4).map(caller));
    let calls: u32 = timeout(START + 10 * LIFE, calling).await??.into_iter().sum();
    assert!(calls > 40, "{calls} calls");
    assert_eq!(world.driver.calls_of("CreateVolume").len(), usize::try_from(calls)?);
    edge.logged("the CA is away").await?;
    world.tasks.stop();
    edge.stop(START).await
}
