//! Renews this node's certificate on the link in use. One that has ended is renewed by the first
//! message of a link that is for nothing else.

use std::time::{Duration, SystemTime};

use proto::control::certificate::{Certificate, Renew};
use proto::control::hello::Message;
use proto::control::machine::MachineId;
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::tasks::Tasks;
use proto::link::{Event, Link, LinkError};
use rand::RngExt;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::identity::directory::NodeIdentity;
use crate::identity::request::Request;
use crate::identity::schedule::{delays, reached, renew_at};

/// The time limit for the cloud's answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest time between the begin of a link and an attempt that is due: a fleet that comes back
/// together does not renew together.
const SPREAD: Duration = Duration::from_secs(10);

/// The same for a renewal that the cloud asks the whole fleet for.
const SPREAD_OF_ALL: Duration = Duration::from_secs(60);

/// The renewals of one link.
pub(super) struct Renewal {
    identity: NodeIdentity,
    /// This machine. `None` if it has no id.
    machine: Option<MachineId>,
    /// The random position of the renewal within its window, from 0 to 1.
    dice: f64,
    delays: Backoff,
    /// No attempt before this, whatever the certificate says.
    not_before: Instant,
    /// The cloud asks for a renewal, however old the certificate is.
    is_asked: bool,
    pending: Option<Request>,
}

impl Renewal {
    /// The renewals on a link whose cloud issues certificates.
    pub(super) fn new(identity: NodeIdentity, machine: Option<MachineId>) -> Self {
        let life = identity.validity().map(|validity| validity.life()).unwrap_or_default();
        let spread = SPREAD.min(life / 60).mul_f64(rand::rng().random_range(0.0..1.0));
        Self {
            identity,
            machine,
            dice: rand::rng().random_range(0.0..1.0),
            delays: delays(life),
            not_before: Instant::now() + spread,
            is_asked: false,
            pending: None,
        }
    }

    /// Takes the cloud's word on whether a renewal is due, since its CAs have changed. The first
    /// attempt is spread over a minute, or less for a certificate of a short life.
    pub(super) fn ask_now(&mut self, now: bool) {
        if now && !self.is_asked {
            let life = self.identity.validity().map(|validity| validity.life());
            let spread = SPREAD_OF_ALL.min(life.unwrap_or_default() / 60);
            let delay = spread.mul_f64(rand::rng().random_range(0.0..1.0));
            self.not_before = self.not_before.max(Instant::now() + delay);
            peer_info!(
                LogPeer::Cloud,
                ?delay,
                "csi-cloud's CAs have changed; the certificate will be renewed"
            );
        }
        self.is_asked = now;
    }

    /// Ends when an attempt is due. May be dropped and called again.
    async fn due(&self) {
        sleep_until(self.not_before).await;
        if self.is_asked {
            return;
        }
        match self.identity.validity() {
            Some(validity) => reached(renew_at(&validity, self.dice)).await,
            None => std::future::pending().await,
        }
    }

    /// The next attempt.
    fn attempt(&mut self) -> anyhow::Result<Message> {
        let delay = self.delays.jittered(rand::random());
        self.not_before = Instant::now() + delay;
        if self.pending.take().is_some() {
            peer_warn!(
                LogPeer::Cloud,
                "csi-cloud did not answer the request of a new certificate; asking again"
            );
        }
        let request = Request::new()?;
        let csr = request.csr()?;
        self.pending = Some(request);
        Ok(Message::Renew(Renew { csr, machine: self.machine }))
    }

    /// Takes the new certificate, in a task of its own: a disk may hang.
    pub(super) fn renewed(&mut self, certificate: Certificate, tasks: &Tasks) {
        let Some(request) = self.pending.take() else {
            return peer_warn!(
                LogPeer::Cloud,
                "csi-cloud sent a certificate that nobody asked for; it is not used"
            );
        };
        let identity = self.identity.clone();
        tasks.spawn("renewal", async move {
            if let Err(error) = take(identity, request, certificate).await {
                let error = chain(error.as_ref());
                warn!(%error, "cannot use the new certificate; the old one stays in use");
            }
        });
    }

    /// The cloud has refused. If the files have a newer certificate, that one is used.
    pub(super) fn refused(&mut self, why: &str, tasks: &Tasks) {
        self.pending = None;
        let again = self.not_before.saturating_duration_since(Instant::now());
        let left = self.identity.validity().map(|validity| validity.left(SystemTime::now()));
        peer_warn!(
            LogPeer::Cloud,
            reason = why,
            ?left,
            ?again,
            "csi-cloud did not renew the certificate; asking again"
        );
        let identity = self.identity.clone();
        tasks.spawn("identity", async move {
            let _ = identity.read_again().await;
        });
    }
}

/// The next request; never one if the cloud issues no certificates.
pub(super) async fn next(renewal: &mut Option<Renewal>) -> Message {
    let Some(renewal) = renewal else { return std::future::pending().await };
    loop {
        renewal.due().await;
        match renewal.attempt() {
            Ok(message) => return message,
            Err(error) => {
                let error = chain(error.as_ref());
                warn!(%error, "cannot request a new certificate");
            }
        }
    }
}

async fn take(
    identity: NodeIdentity,
    request: Request,
    certificate: Certificate,
) -> anyhow::Result<()> {
    identity.renew(request, &certificate).await?;
    let left = identity.validity().map(|validity| validity.left(SystemTime::now()));
    let days = left.unwrap_or_default().as_secs() / 86_400;
    info!(days, "the certificate was renewed; a new link uses it");
    Ok(())
}

/// Renews a certificate that has ended, on a link that is for nothing else.
///
/// # Errors
/// The cloud cannot be asked, its answer cannot be used, or it refuses and the files have no other
/// certificate.
pub(super) async fn ended(
    identity: &NodeIdentity,
    machine: Option<MachineId>,
    mut link: Link,
) -> Result<(), LinkError> {
    let unusable = |error: anyhow::Error| LinkError::NotJoined(chain(error.as_ref()));
    let request = Request::new().map_err(unusable)?;
    let csr = request.csr().map_err(unusable)?;
    link.send(&Message::Renew(Renew { csr, machine })).await?;
    let answer = timeout(ANSWER, link.next()).await;
    let certificate = match answer.map_err(|_| LinkError::Unanswered(ANSWER))? {
        Event::Message(Message::Renewed(certificate)) => certificate,
        Event::Message(Message::NotRenewed(not)) => {
            let is_another = identity.read_again().await;
            return if is_another { Ok(()) } else { Err(LinkError::NotJoined(not.why)) };
        }
        Event::Message(Message::Refused(refused)) => {
            return Err(LinkError::NotJoined(refused.reason));
        }
        Event::Message(_) | Event::Opened(..) => {
            let reason = "it did not answer the request of a new certificate";
            return Err(LinkError::Transport(reason.into()));
        }
        Event::Closed(error) => return Err(error),
    };
    link.close("the certificate is renewed").await;
    take(identity.clone(), request, certificate).await.map_err(unusable)
}
