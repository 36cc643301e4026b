//! Keeps a link to the cloud: dials, says hello, serves the calls that come, and dials again when it ends.

use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder;
use proto::error::chain;
use proto::hello::{Hello, Message, PROTOCOL, Welcome};
use proto::http2;
use proto::identity::NodeName;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Credentials;
use proto::link::{self, Connect, Event, HANDSHAKE, Io, KeepAlive, Kind, Link, LinkError};
use proto::stop::Tasks;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::calls::Calls;
use crate::drivers::Drivers;

/// A link that has held for so long is stable: the next one is dialed without much delay.
const STABLE: Duration = Duration::from_secs(30);

/// All that dialing needs.
pub struct Dial {
    /// Where the cloud is.
    pub endpoint: Endpoint,
    /// Who we are, and whom we trust.
    pub credentials: Credentials,
    /// This node, as its certificate says.
    pub node: NodeName,
    /// What we tell of.
    pub drivers: Arc<Drivers>,
    /// What carries the calls out.
    pub calls: Arc<Calls>,
    /// How liveness is watched.
    pub keep_alive: KeepAlive,
    /// How the network is reached.
    pub connect: Connect,
}

impl Dial {
    /// Keeps a link until told to stop.
    pub async fn keep(self, tasks: Tasks) {
        let mut delays = backoff();
        while !tasks.is_stopped() {
            let begun = Instant::now();
            let ended = self.link_once(&tasks).await;
            if tasks.is_stopped() {
                return;
            }
            if begun.elapsed() >= STABLE {
                delays = backoff();
            }
            // Full jitter, so that edges that lost the cloud together do not come back together.
            let longest = delays.next().unwrap_or(MAX_DELAY);
            let delay = longest.mul_f64(rand::random_range(0.0..1.0));
            warn!(cloud = %self.endpoint, reason = %chain(&ended), ?delay, "no link; dialing again");
            tokio::select! { () = tokio::time::sleep(delay) => {}, () = tasks.stopped() => return }
        }
    }

    /// Dials, and serves the link until it ends.
    async fn link_once(&self, tasks: &Tasks) -> LinkError {
        match link::dial(&self.endpoint, &self.credentials, self.keep_alive, &self.connect).await {
            Ok(link) => {
                let tasks = tasks.child();
                let ended = self.serve(link, &tasks).await;
                tasks.stop();
                ended
            }
            Err(error) => error,
        }
    }

    async fn serve(&self, mut link: Link, tasks: &Tasks) -> LinkError {
        let mut changed = self.drivers.changes();
        if let Err(error) = self.greet(&mut link).await {
            return error;
        }
        info!(cloud = %self.endpoint, node = %self.node, "linked");
        println!("linked {} as {}", self.endpoint, self.node);
        loop {
            tokio::select! {
                event = link.next() => match event {
                    Event::Opened(kind, io) => self.serve_calls(kind, io, tasks),
                    Event::Message(Message::Refused(refused)) => return LinkError::Closed(refused.reason),
                    Event::Message(_) => debug!("a control message that this version has no use for"),
                    Event::Closed(error) => return error,
                },
                _ = changed.changed() => {
                    if let Err(error) = link.send(&Message::Drivers(self.drivers.hello())).await {
                        return error;
                    }
                }
                () = tasks.stopped() => {
                    link.close("csi-edge is stopping").await;
                    return LinkError::Closed("csi-edge is stopping".into());
                }
            }
        }
    }

    async fn greet(&self, link: &mut Link) -> Result<(), LinkError> {
        let version = env!("CARGO_PKG_VERSION").into();
        let drivers = self.drivers.hello();
        let hello = Hello { protocol: PROTOCOL, node: self.node.clone(), version, drivers };
        link.send(&Message::Hello(hello)).await?;
        let answer = tokio::time::timeout(HANDSHAKE, link.next()).await.map_err(|_| LinkError::TimedOut)?;
        match answer {
            Event::Message(Message::Welcome(Welcome { protocol, .. })) if protocol == PROTOCOL => Ok(()),
            Event::Message(Message::Welcome(Welcome { protocol, .. })) => Err(LinkError::Transport(format!(
                "the cloud speaks link protocol {protocol} and this csi-edge speaks {PROTOCOL}"
            ))),
            Event::Message(Message::Refused(refused)) => {
                error!(cloud = %self.endpoint, reason = refused.reason, "the cloud refused this edge");
                Err(LinkError::Closed(format!("the cloud refused this edge: {}", refused.reason)))
            }
            Event::Message(_) | Event::Opened(..) => {
                Err(LinkError::Transport("it did not answer the hello".into()))
            }
            Event::Closed(error) => Err(error),
        }
    }

    /// Serves a byte stream that the cloud opened; ends with the stream, calls in flight do not.
    fn serve_calls(&self, kind: Kind, io: Io, tasks: &Tasks) {
        let calls = self.calls.clone();
        tasks.spawn_until_stop("link http2", async move {
            let service = move |request| calls.clone().from_link(request);
            if let Err(error) = http2::serve(io, service, std::future::pending()).await {
                debug!(?kind, error = %chain(&error), "HTTP/2 on a link ended");
            }
        });
    }
}

const MAX_DELAY: Duration = Duration::from_secs(30);

fn backoff() -> backon::ExponentialBackoff {
    let first = Duration::from_millis(500);
    backon::ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
        .build()
}
