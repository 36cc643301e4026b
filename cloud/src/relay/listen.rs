//! The csi-cloud end of the socket relays: accepts their connections and answers the calls on them.
//!
//! When csi-cloud stops, or does not lead, it gives calls back soon and marks them. The relay sends
//! them to the next csi-cloud with the same id, where they join the call that runs at the edge.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use proto::host::accept::accept;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::program;
use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::body::Body;
use proto::http2::forward::failure;
use proto::http2::serve;
use proto::http2::serve::Stopping;
use proto::link::tls::Credentials;
use proto::link::{HANDSHAKE, Io, LinkError};
use proto::names::certificate::{Identity, Subject};
use proto::names::{DriverName, FrontName};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tracing::{debug, info};

use crate::csi::front::Front;
use crate::error::Error;
use crate::relay::address::Address;
use crate::relay::connection::{AGAIN, MODE, TlsAcceptor};
use crate::state::store::writer::Store;
use proto::host::door;
use proto::host::door::{Admission, Limits};

/// The time in which a stopping csi-cloud may still answer calls in flight here.
const SOON: Duration = Duration::from_millis(500);
/// Who is accepted, for the log.
const CALLER: &str = "a socket relay";
/// How often the store is asked whether a connected relay was revoked; there are few relays.
const LOOKED: Duration = Duration::from_secs(1);
/// The limits of one remote address; there are few relays.
const LIMITS: Limits = Limits { handshakes: 8, connections: 64 };

/// Takes relays' calls for these fronts.
#[derive(Clone)]
pub struct RelayListener {
    fronts: Arc<BTreeMap<DriverName, Arc<Front>>>,
    /// The drivers of each relay that may not call all.
    drivers_of: Arc<BTreeMap<FrontName, BTreeSet<DriverName>>>,
    store: Store,
    tasks: Tasks,
}

impl RelayListener {
    /// Its connections are part of `tasks`.
    pub fn new(fronts: BTreeMap<DriverName, Arc<Front>>, store: Store, tasks: Tasks) -> Self {
        Self { fronts: Arc::new(fronts), drivers_of: Arc::default(), store, tasks }
    }

    /// Takes from each of these relays calls for its drivers alone.
    pub(crate) fn with_drivers_of(
        self,
        drivers_of: BTreeMap<FrontName, BTreeSet<DriverName>>,
    ) -> Self {
        Self { drivers_of: Arc::new(drivers_of), ..self }
    }

    /// Listens at all addresses, and prints them.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub(crate) async fn listen(
        &self,
        addresses: &[Address],
        credentials: &Credentials,
    ) -> anyhow::Result<()> {
        for address in addresses {
            let bound = match address {
                Address::Unix(path) => self.listen_unix(path),
                Address::Https { host, port } => self.listen_tls(host, *port, credentials).await,
            };
            let bound = bound.with_context(|| {
                format!("cannot listen for socket relays on {address} (relays, --relays)")
            })?;
            program::tell(format_args!("holders {bound}"));
        }
        Ok(())
    }

    fn listen_unix(&self, path: &Path) -> anyhow::Result<Address> {
        let socket = Socket::bind_for(path, MODE)?;
        self.tasks.spawn(TaskKind::All("relays"), self.clone().accept_unix(socket));
        Ok(Address::Unix(path.to_owned()))
    }

    async fn listen_tls(
        &self,
        host: &str,
        port: u16,
        credentials: &Credentials,
    ) -> anyhow::Result<Address> {
        let address = lookup_host(format!("{host}:{port}")).await?.next();
        let address = address.context("the host has no address")?;
        let listener = TcpListener::bind(address).await?;
        let port = listener.local_addr()?.port();
        let acceptor = TlsAcceptor::new(credentials)?;
        self.tasks
            .spawn_until_stop(TaskKind::All("relays"), self.clone().accept_tls(listener, acceptor));
        Ok(Address::Https { host: host.to_owned(), port })
    }

    async fn accept_unix(self, socket: Socket) {
        loop {
            let (stream, _) = tokio::select! {
                biased;
                () = self.tasks.stopped() => return,
                accepted = accept(CALLER, || socket.listener.accept()) => accepted,
            };
            self.take(Box::new(stream));
        }
    }

    async fn accept_tls(self, listener: TcpListener, acceptor: TlsAcceptor) {
        let room = Admission::new(LIMITS);
        loop {
            let (tcp, from) = accept(CALLER, || listener.accept()).await;
            self.admit(tcp, from, &acceptor, &room).await;
        }
    }

    /// Authenticates and serves a connection in its own task, if its address is within the limits.
    async fn admit(
        &self,
        tcp: TcpStream,
        from: SocketAddr,
        acceptor: &TlsAcceptor,
        room: &Admission,
    ) {
        let waiting = match room.enter(from.ip()).await {
            Ok(waiting) => waiting,
            Err(full) => {
                return peer_warn!(
                    LogPeer::Stranger, %from, error = %full, "refused a socket relay"
                );
            }
        };
        let listener = self.clone();
        let acceptor = acceptor.clone();
        self.tasks.spawn_until_stop("handshake", async move {
            let handshake = tokio::time::timeout(HANDSHAKE, waiting.pass(acceptor.accept(tcp)));
            let passed = handshake.await.ok().flatten();
            match passed.unwrap_or((Err(LinkError::TimedOut), None)) {
                (Ok((relay, io)), place) => listener.serve(Some(relay), io, place),
                (Err(error), _) => peer_warn!(
                    LogPeer::Stranger, %from, error = chain(&error), "refused a socket relay"
                ),
            }
        });
    }

    /// Serves a connection of a relay that needs no certificate.
    pub fn take(&self, io: Io) {
        self.serve(None, io, None);
    }

    /// Serves a relay's connection in its own task, which keeps its place in the address's limit.
    fn serve(&self, identity: Option<Identity<FrontName>>, io: Io, place: Option<door::Slot>) {
        let name = identity.as_ref().map(|identity| identity.name.to_string());
        let relay = name.unwrap_or_else(|| "unix".into());
        peer_info!(LogPeer::Caller, front = relay, "a socket relay is connected");
        let listener = self.clone();
        let tasks = self.tasks.clone();
        let store = self.store.clone();
        let named = identity.as_ref().map(|identity| identity.name.clone());
        let service = move |request| listener.clone().answer(named.clone(), request);
        self.tasks.spawn("relay", async move {
            let _place = place;
            tokio::select! {
                biased;
                served = serve::serve(io, service, tasks.stopped()) => {
                    let reason = served.err().map(|error| chain(&error)).unwrap_or_default();
                    debug!(front = relay, reason, "a socket relay's connection ended");
                }
                () = revoked(&store, identity) => {
                    info!(front = relay, "a socket relay was revoked; its connection is ended");
                }
                () = tasks.given_up() => {}
            }
        });
    }

    async fn answer(
        self,
        relay: Option<FrontName>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let driver = request.uri().authority().map(|authority| authority.as_str());
        let driver = driver.unwrap_or_default();
        let front = self.fronts.iter().find(|(name, _)| name.as_str() == driver);
        let Some((driver, front)) = front else {
            return Ok(failure(&Error::NoFront(driver.to_owned())));
        };
        if let Some(relay) = relay
            && self.drivers_of.get(&relay).is_some_and(|drivers| !drivers.contains(driver))
        {
            peer_warn!(
                LogPeer::Caller, %relay, %driver,
                "refused a call for a driver that is not the relay's"
            );
            return Ok(failure(&Error::NotOfRelay { relay, driver: driver.clone() }));
        }
        let soon = async {
            self.tasks.stopped().await;
            tokio::time::sleep(SOON).await;
        };
        let answered = tokio::select! {
            biased;
            answered = front.clone().answer_relayed(request) => answered,
            () = soon => return Ok(again(failure(&Stopping("csi-cloud")))),
        };
        match answered {
            Ok(mut response) => {
                // An edge or a driver must not set the mark: the call would be repeated for ever.
                response.headers_mut().remove(AGAIN);
                Ok(response)
            }
            Err(error) if error.is_for_the_next(front.links().is_drained()) => {
                Ok(again(failure(&error)))
            }
            Err(error) => Ok(failure(&error)),
        }
    }
}

/// Marks an answer: the relay sends the call to the next csi-cloud.
fn again(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(AGAIN, HeaderValue::from_static("1"));
    response
}

/// Ends when the certificate of a relay is revoked; never for a relay on this host.
async fn revoked(store: &Store, identity: Option<Identity<FrontName>>) {
    let Some(Identity { name, serial, .. }) = identity else { return pending().await };
    let subject = Subject::Front(name);
    while !store.read(|state| state.trust().is_revoked(&subject, &serial)) {
        tokio::time::sleep(LOOKED).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::uri::Authority;
    use proto::control::leader::LeaderEpoch;
    use proto::csi::{Method, frame};
    use proto::http2::forward;
    use proto::http2::forward::{Answer, Call, Upstream};
    use proto::names::certificate::{Serial, Validity};
    use tokio::net::UnixStream;
    use tokio::time::Instant;

    use super::*;
    use crate::lease::answer;
    use crate::nodes::links::Links;
    use crate::state::policy::Policy;
    use crate::state::store::leadership::Leadership;
    use crate::state::store::memory::Memory;

    const DRIVER: &str = "d.example";

    async fn relay(path: &Path, tasks: &Tasks) -> Upstream {
        let io = UnixStream::connect(path).await.unwrap();
        let (upstream, driving) = forward::connect(io).await.unwrap();
        tasks.spawn("connection", async move { drop(driving.await) });
        upstream
    }

    /// What csi-cloud answers a relay, and whether the next csi-cloud is to get the call.
    async fn call(upstream: &Upstream, method: Method) -> (Answer, bool) {
        let (parts, ()) = Request::post(method.path()).body(()).unwrap().into_parts();
        let call = Call::new(parts, frame::frame(&[]));
        let driver = Authority::from_static(DRIVER);
        let response = forward::forward(upstream, &call, &driver, None).await.unwrap();
        let again = response.headers().contains_key(AGAIN);
        (Answer::collect(response).await.unwrap(), again)
    }

    fn fronts(store: &Store, links: &Arc<Links>) -> BTreeMap<DriverName, Arc<Front>> {
        let driver: DriverName = DRIVER.parse().unwrap();
        let policy = Policy::new(None);
        let front =
            Front::new(driver.clone(), policy, store.clone(), links.clone(), Arc::default());
        BTreeMap::from([(driver, Arc::new(front))])
    }

    #[tokio::test]
    async fn a_relay_whose_drivers_are_named_calls_no_other_one() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Arc::new(Links::new(store.clone(), tasks.clone(), answer::answer));
        let drivers_of = [("its", DRIVER), ("others", "e.example")].map(|(relay, driver)| {
            (relay.parse().unwrap(), BTreeSet::from([driver.parse().unwrap()]))
        });
        let listener = RelayListener::new(fronts(&store, &links), store, tasks.clone())
            .with_drivers_of(drivers_of.into());
        for (relay, may) in
            [(Some("its"), true), (Some("others"), false), (Some("free"), true), (None, true)]
        {
            let identity = relay.map(|name| Identity {
                name: name.parse().unwrap(),
                serial: Serial::of(&[1]),
                validity: Validity { not_before: SystemTime::now(), not_after: SystemTime::now() },
                issuer: None,
            });
            let (near, far) = tokio::io::duplex(1 << 16);
            listener.serve(identity, Box::new(far), None);
            let (upstream, driving) = forward::connect(near).await.unwrap();
            tasks.spawn("connection", async move { drop(driving.await) });
            let (answer, _) = call(&upstream, Method::GetPluginInfo).await;
            assert_eq!(answer.ok().is_some(), may, "{relay:?}");
            if let Some(failure) = answer.failure() {
                assert_eq!(failure.code(), tonic::Code::Unavailable);
                let text = "the socket relay others may not call driver d.example";
                assert!(failure.message().contains(text), "{failure}");
            }
        }
        tasks.finish(SOON * 4).await;
    }

    #[tokio::test]
    async fn whoever_does_not_lead_gives_calls_back_and_answers_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relay.sock");
        let tasks = Tasks::default();
        let leadership = Leadership::following();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let store = store.with_leadership(leadership.clone());
        let links = Arc::new(Links::new(store.clone(), tasks.clone(), answer::answer));
        let listener = RelayListener::new(fronts(&store, &links), store, tasks.clone());
        listener.listen_unix(&path).unwrap();
        let upstream = relay(&path, &tasks).await;
        let list = Method::ListVolumes;
        let (answer, again) = call(&upstream, Method::GetPluginInfo).await;
        assert!(answer.ok().is_some() && !again, "a sidecar would exit");
        let (answer, again) = call(&upstream, list).await;
        assert!(again);
        let failure = answer.failure().unwrap();
        assert_eq!(failure.code(), tonic::Code::Unavailable);
        assert!(failure.message().contains("no csi-cloud leads"), "{failure}");
        leadership.lead(LeaderEpoch(7), Instant::now() + SOON * 100);
        assert!(call(&upstream, list).await.1, "it has yet to begin");
        links.take_over();
        links.leading().check().unwrap();
        leadership.depose();
        let (answer, again) = call(&upstream, list).await;
        assert!(again && answer.failure().unwrap().message().contains("this csi-cloud led"));
        tasks.finish(SOON * 4).await;
    }
}
