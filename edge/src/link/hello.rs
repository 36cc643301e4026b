//! Says hello on a new link and takes the cloud's welcome.

use std::time::Duration;

use proto::control::hello::{Hello, Message, PROTOCOL, Refused, True, Welcome};
use proto::control::leader::LeaderEpoch;
use proto::link::{Event, HANDSHAKE, Link, LinkError};
use tokio::sync::watch;

use super::dial::Dial;
use crate::identity::directory::NodeIdentity;

/// A link that the cloud has welcomed.
pub(super) struct Greeted {
    pub(super) link: Link,
    /// Has changed if the drivers have since the hello.
    pub(super) changed: watch::Receiver<u64>,
    /// True if the cloud issues certificates.
    pub(super) renews: bool,
    /// True if the cloud asks for a renewal at once.
    pub(super) renew_now: bool,
    pub(super) backoff_cap: Option<Duration>,
    /// True if the cloud may be asked for a sign of life.
    pub(super) asks: bool,
    /// The cloud's number among several, if it has one.
    pub(super) epoch: Option<LeaderEpoch>,
}

/// The reason why a link has no welcome.
pub(super) enum NotGreeted {
    /// The cloud follows another one, which is at these endpoints; none if nobody leads.
    Follows { reason: String, leader: Vec<String> },
    /// The cloud refuses this edge, for this reason.
    Refused(String),
    /// It is lost.
    Lost(LinkError),
}

impl From<LinkError> for NotGreeted {
    fn from(error: LinkError) -> Self {
        Self::Lost(error)
    }
}

/// Says hello and takes the welcome. `awaits_leader` lets a cloud that follows wait for another
/// leader.
///
/// # Errors
/// [`NotGreeted::Follows`] if the cloud follows another one, or none. Otherwise the link is lost,
/// or the cloud refuses, is too slow, speaks another protocol, or leads no more.
pub(super) async fn greet(
    dial: &Dial,
    mut link: Link,
    awaits_leader: bool,
) -> Result<Greeted, NotGreeted> {
    let changed = dial.drivers.changes();
    let hello = Hello {
        protocol: PROTOCOL,
        node: dial.node.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        drivers: dial.drivers.hello(),
        leases: True,
        not_taken: True,
        expands: dial.expands,
        metadata: Some(dial.metadata.position()),
        takes_node: true,
        begins_within: true,
        reopens_calls: true,
        certificate_on_disk: dial.identity.as_ref().is_none_or(NodeIdentity::is_on_disk),
        trust: Some(dial.credentials.trust().into()),
        awaits_leader,
        answers_challenge: dial.answers_challenge,
        run: dial.run,
        machine: dial.machine,
        takes_watermark: true,
        watermark: dial.executor.watermark().get().map(Box::new),
    };
    link.send(&Message::Hello(hello)).await?;
    let answer = tokio::time::timeout(HANDSHAKE, answer(&mut link)).await;
    match answer.map_err(|_| LinkError::TimedOut)?? {
        Event::Message(Message::Welcome(welcome)) if welcome.protocol == PROTOCOL => {
            let epoch = welcome.leader_epoch;
            if let Err(old) = dial.executor.fence().observe(epoch) {
                let reason = old.to_string();
                link.close(&reason).await;
                return Err(LinkError::Closed(reason).into());
            }
            let backoff_cap = cap(&welcome);
            let renews = welcome.renews;
            let renew_now = welcome.renew_now;
            let every = welcome.keep_alive_ms.map(|ms| Duration::from_millis(ms.into()));
            if let Some(every) = every {
                link.set_keep_alive(dial.keep_alive.told(every));
            }
            let asks = every.is_some();
            dial.receive(welcome);
            Ok(Greeted { asks, link, changed, renews, renew_now, backoff_cap, epoch })
        }
        Event::Message(Message::Welcome(Welcome { protocol, .. })) => {
            let speaks = format!("the cloud speaks link protocol {protocol}");
            let why = format!("{speaks} and this csi-edge speaks {PROTOCOL}");
            Err(LinkError::Transport(why).into())
        }
        Event::Message(Message::Refused(Refused { reason, leader: Some(leader), .. })) => {
            Err(NotGreeted::Follows { reason, leader })
        }
        Event::Message(Message::Refused(refused)) => Err(NotGreeted::Refused(refused.reason)),
        Event::Message(_) | Event::Opened(..) => {
            Err(LinkError::Transport("it did not answer the hello".into()).into())
        }
        Event::Closed(error) => Err(error.into()),
    }
}

/// The cloud's answer to the hello. A challenge before it is answered.
async fn answer(link: &mut Link) -> Result<Event, LinkError> {
    match link.next().await {
        Event::Message(Message::Challenge(nonce)) => {
            link.send(&Message::ChallengeAnswer(nonce)).await?;
            Ok(link.next().await)
        }
        other => Ok(other),
    }
}

/// The longest backoff that the cloud wishes.
pub(super) fn cap(welcome: &Welcome) -> Option<Duration> {
    welcome.backoff_cap_ms.map(|ms| Duration::from_millis(ms.into()))
}
