//! At the csi-cloud that serves: takes the calls that holders of fronts' sockets bring.
//!
//! Told to stop, it lets go of them soon and marks them, since the holder sends them to the next csi-cloud with the
//! same id, where they join what runs at the edge.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use anyhow::Context;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use proto::csi::status::ToStatus;
use proto::holder::{AGAIN, Acceptor, MODE, Place};
use proto::host::chain;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::forward::Body;
use proto::http2::forward::failure;
use proto::http2::serve;
use proto::http2::serve::Stopping;
use proto::link::tls::Credentials;
use proto::link::{HANDSHAKE, Io, LinkError};
use proto::names::DriverName;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tonic::Code;
use tracing::{debug, info, warn};

use crate::csi::front::Front;
use crate::nodes::admission;
use crate::nodes::admission::{Limits, Room};

/// How long calls in flight may still be answered here when csi-cloud is told to stop.
const SOON: Duration = Duration::from_millis(500);
/// What one address may take; there are few holders.
const LIMITS: Limits = Limits { handshakes: 8, connections: 64 };

/// Takes holders' calls for these fronts.
#[derive(Clone)]
pub(crate) struct Holders {
    fronts: Arc<BTreeMap<DriverName, Arc<Front>>>,
    tasks: Tasks,
}

impl Holders {
    /// Their connections are part of `tasks`.
    pub(crate) fn new(fronts: BTreeMap<DriverName, Arc<Front>>, tasks: Tasks) -> Self {
        Self { fronts: Arc::new(fronts), tasks }
    }

    /// Listens at all places, and prints where.
    ///
    /// # Errors
    /// A place cannot be listened on.
    pub(crate) async fn listen(&self, places: &[Place], credentials: &Credentials) -> anyhow::Result<()> {
        for place in places {
            let cannot = || format!("cannot listen for holders on {place} (holders, --holders)");
            let place = match place {
                Place::Unix(path) => {
                    let socket = Socket::bind_for(path, MODE).with_context(cannot)?;
                    self.tasks.spawn("holders", self.clone().accept_unix(socket));
                    place.clone()
                }
                Place::Https { host, port } => {
                    let addr = lookup_host(format!("{host}:{port}")).await.with_context(cannot)?.next();
                    let listener =
                        TcpListener::bind(addr.with_context(cannot)?).await.with_context(cannot)?;
                    let port = listener.local_addr().with_context(cannot)?.port();
                    let acceptor = Acceptor::new(credentials)?;
                    self.tasks.spawn_until_stop("holders", self.clone().accept_tls(listener, acceptor));
                    Place::Https { host: host.clone(), port }
                }
            };
            println!("holders {place}");
        }
        Ok(())
    }

    async fn accept_unix(self, socket: Socket) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.tasks.stopped() => return,
                accepted = socket.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.serve("unix".into(), Box::new(stream), None),
                Err(error) => cannot_accept(&error).await,
            }
        }
    }

    async fn accept_tls(self, listener: TcpListener, acceptor: Acceptor) {
        let room = Room::new(LIMITS);
        loop {
            match listener.accept().await {
                Ok((tcp, from)) => self.take(tcp, from, &acceptor, &room).await,
                Err(error) => cannot_accept(&error).await,
            }
        }
    }

    /// Authenticates and serves a connection in a task of its own, if its address has room.
    async fn take(&self, tcp: TcpStream, from: SocketAddr, acceptor: &Acceptor, room: &Room) {
        let waiting = match room.enter(from.ip()).await {
            Ok(waiting) => waiting,
            Err(full) => return warn!(%from, error = %full, "refused a holder"),
        };
        let (holders, acceptor) = (self.clone(), acceptor.clone());
        self.tasks.spawn_until_stop("handshake", async move {
            let handshake = tokio::time::timeout(HANDSHAKE, waiting.pass(acceptor.accept(tcp)));
            match handshake.await.unwrap_or((Err(LinkError::TimedOut), None)) {
                (Ok((front, io)), place) => holders.serve(front.to_string(), io, place),
                (Err(error), _) => warn!(%from, error = chain(&error), "refused a holder"),
            }
        });
    }

    /// Serves a holder's connection in a task of its own, which has its address's place.
    fn serve(&self, front: String, io: Io, place: Option<admission::Place>) {
        info!(front, "a holder of fronts is connected");
        let (holders, tasks) = (self.clone(), self.tasks.clone());
        let service = move |request| holders.clone().answer(request);
        self.tasks.spawn("holder", async move {
            let _place = place;
            tokio::select! {
                biased;
                served = serve::serve(io, service, tasks.stopped()) => {
                    let reason = served.err().map(|error| chain(&error)).unwrap_or_default();
                    debug!(front, reason, "a holder's connection ended");
                }
                () = tasks.given_up() => {}
            }
        });
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let driver = request.uri().authority().map(|authority| authority.as_str()).unwrap_or_default();
        let front = self.fronts.iter().find(|(name, _)| name.as_str() == driver);
        let Some((_, front)) = front else { return Ok(failure(&Error::NoFront(driver.to_owned()))) };
        let soon = async {
            self.tasks.stopped().await;
            tokio::time::sleep(SOON).await;
        };
        let mut response = tokio::select! {
            biased;
            answered = front.clone().answer_relayed(request) => match answered {
                Ok(mut response) => {
                    // The mark is ours alone: an edge's or a driver's would have the call sent again and again.
                    response.headers_mut().remove(AGAIN);
                    return Ok(response);
                }
                Err(error) if front.links().is_drained() && is_for_the_next(&error) => failure(&error),
                Err(error) => return Ok(failure(&error)),
            },
            () = soon => failure(&Stopping("csi-cloud")),
        };
        response.headers_mut().insert(AGAIN, HeaderValue::from_static("1"));
        Ok(response)
    }
}

/// Whether a call that a stopping csi-cloud did not carry out, for want of links, say, is a matter for the next one.
fn is_for_the_next(error: &Error) -> bool {
    error.code() == Code::Unavailable || error.awaits_link()
}

/// Out of file descriptors, say: who is connected goes on.
async fn cannot_accept(error: &std::io::Error) {
    warn!(%error, "cannot accept a holder");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_next_csi_cloud_may_do_is_left_to_it_whatever_its_code() {
        let (node, driver): (_, DriverName) = ("n1".parse().unwrap(), "d.example".parse().unwrap());
        assert!(is_for_the_next(&Error::Reschedule { node }), "a claim is given back because a link is gone");
        assert!(is_for_the_next(&Error::NoRoute { driver, why: String::new() }));
        assert!(!is_for_the_next(&Error::UnknownMethod("/x".into())));
    }
}
