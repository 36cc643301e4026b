//! The role of this csi-cloud: alone, leader or follower. Only the first two may change the store.
//!
//! Of several csi-clouds with one store, one leads at a time, as long as it holds its lease. This
//! file's answer is a local bound: it ends before the lease can. Each commit and each call proves
//! the same again, at the store and at the edge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::control::leader::LeaderEpoch;
use proto::link::endpoint::Endpoint;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The role of this csi-cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// No other csi-cloud can use the store. It has an epoch if the store once had several
    /// csi-clouds: their edges carry out no call without one.
    Alone(Option<LeaderEpoch>),
    /// It leads, while its lease is valid.
    Leading(LeaderEpoch),
    /// Another one leads, or none does.
    Following(Option<Leader>),
    /// It led, and another one may lead now. It never leads again before a restart.
    Deposed,
}

/// The leading csi-cloud, as it registers in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The name of its replica.
    pub name: Arc<str>,
    /// Its epoch.
    pub epoch: LeaderEpoch,
    /// Its endpoints for edges.
    pub endpoints: Arc<[Endpoint]>,
}

/// The role of this csi-cloud. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    role: watch::Sender<Role>,
    /// The origin of `until`.
    began: Instant,
    /// The time until which the lease is certainly valid, in ms since `began`.
    until: AtomicU64,
    resign: CancellationToken,
}

impl Leadership {
    /// The role of a csi-cloud that shares no store, with the epoch in the store.
    pub fn alone(epoch: Option<LeaderEpoch>) -> Self {
        Self::begin(Role::Alone(epoch))
    }

    /// That of one of several, which follows at first.
    pub fn following() -> Self {
        Self::begin(Role::Following(None))
    }

    fn begin(role: Role) -> Self {
        let role = watch::Sender::new(role);
        let resign = CancellationToken::new();
        Self(Arc::new(Inner { role, began: Instant::now(), until: AtomicU64::new(0), resign }))
    }

    /// The role now. `Leading` may be over already: see [`Self::leads`].
    pub fn role(&self) -> Role {
        self.0.role.borrow().clone()
    }

    /// The role, and each change of it.
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.0.role.subscribe()
    }

    /// True while no other csi-cloud can lead. An answer that is final for its caller needs it.
    pub fn leads(&self) -> bool {
        match &*self.0.role.borrow() {
            Role::Alone(_) => true,
            Role::Leading(_) => self.left() > Duration::ZERO,
            Role::Following(_) | Role::Deposed => false,
        }
    }

    /// The epoch of its calls; none if it does not lead, or never was one of several.
    pub fn epoch(&self) -> Option<LeaderEpoch> {
        match &*self.0.role.borrow() {
            Role::Leading(epoch) => Some(*epoch),
            Role::Alone(epoch) => *epoch,
            Role::Following(_) | Role::Deposed => None,
        }
    }

    /// Notes the present leader. Changes nothing once this csi-cloud has led.
    pub fn follow(&self, leader: Option<Leader>) {
        self.0.role.send_if_modified(|role| match role {
            Role::Following(known) if *known != leader => {
                *known = leader;
                true
            }
            Role::Following(_) | Role::Alone(_) | Role::Leading(_) | Role::Deposed => false,
        });
    }

    /// Leads from now on, as long as the lease is valid. A follower only can begin to.
    pub fn lead(&self, epoch: LeaderEpoch, until: Instant) {
        self.extend(until);
        self.0.role.send_if_modified(|role| {
            let follows = matches!(role, Role::Following(_));
            if follows {
                *role = Role::Leading(epoch);
            }
            follows
        });
    }

    /// The lease is valid until then.
    pub fn extend(&self, until: Instant) {
        let until = until.saturating_duration_since(self.0.began).as_millis();
        self.0.until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Leads no more, and never again.
    pub fn depose(&self) {
        self.0.role.send_if_modified(|role| {
            let led = matches!(role, Role::Leading(_));
            if led {
                *role = Role::Deposed;
            }
            led
        });
    }

    /// Waits until it leads, or is alone.
    pub async fn leading(&self) {
        let leads = |role: &Role| matches!(role, Role::Alone(_) | Role::Leading(_));
        // `self` has the sender, so this ends only when it leads.
        let _ = self.roles().wait_for(leads).await;
    }

    /// Waits until it led and does not any more.
    pub async fn deposed(&self) {
        let _ = self.roles().wait_for(|role| matches!(role, Role::Deposed)).await;
    }

    /// This csi-cloud stops as if it was told to, and is started again; of several, another one
    /// leads.
    pub(crate) fn resign(&self) {
        self.0.resign.cancel();
    }

    /// Waits until another one shall lead.
    pub async fn resigning(&self) {
        self.0.resign.cancelled().await;
    }

    /// For how long the lease is certainly valid.
    pub fn left(&self) -> Duration {
        let until = Duration::from_millis(self.0.until.load(Ordering::Relaxed));
        until.saturating_sub(self.0.began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn leader(name: &str) -> Leader {
        Leader { name: name.into(), epoch: LeaderEpoch(3), endpoints: Arc::new([]) }
    }

    #[tokio::test(start_paused = true)]
    async fn it_leads_while_its_lease_is_valid() {
        let leadership = Leadership::following();
        assert!(!leadership.leads());
        assert_eq!(leadership.epoch(), None);
        leadership.lead(LeaderEpoch(7), Instant::now() + TEN);
        leadership.leading().await;
        assert!(leadership.leads());
        tokio::time::advance(TEN).await;
        assert!(!leadership.leads(), "nobody told it, and another one may lead");
        assert_eq!(leadership.epoch(), Some(LeaderEpoch(7)), "its calls say whose they are");
        leadership.extend(Instant::now() + TEN);
        assert!(leadership.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_led_never_leads_again() {
        let leadership = Leadership::following();
        leadership.lead(LeaderEpoch(7), Instant::now() + TEN);
        leadership.depose();
        leadership.deposed().await;
        leadership.follow(Some(leader("b")));
        leadership.lead(LeaderEpoch(9), Instant::now() + TEN);
        assert_eq!(leadership.role(), Role::Deposed);
        assert!(!leadership.leads());
    }

    #[tokio::test]
    async fn a_follower_knows_its_leader() {
        let leadership = Leadership::following();
        let mut roles = leadership.roles();
        leadership.follow(Some(leader("b")));
        assert!(roles.has_changed().unwrap());
        assert_eq!(*roles.borrow_and_update(), Role::Following(Some(leader("b"))));
        leadership.follow(Some(leader("b")));
        assert!(!roles.has_changed().unwrap(), "it is no news");
    }

    #[tokio::test]
    async fn who_is_alone_leads_with_the_epoch_of_its_store() {
        for epoch in [None, Some(LeaderEpoch(9))] {
            let leadership = Leadership::alone(epoch);
            leadership.leading().await;
            leadership.depose();
            leadership.lead(LeaderEpoch(1), Instant::now());
            assert!(leadership.leads());
            assert_eq!(leadership.epoch(), epoch);
        }
    }
}
