//! The leadership of this csi-cloud. Each call, answer and link asks it.
//!
//! Nothing is answered and no link is welcomed before [`Leading::begin`]: decisions must see
//! everything that the leader before has written to the store.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::error::NotLeading;
use crate::state::store::leadership::{Leadership, Role};
use crate::state::store::replicated::Cluster;

/// The time for which an edge may wait here for a leader. It waits 10 s for its welcome, and dials
/// elsewhere when it is refused.
const WAIT: Duration = Duration::from_secs(5);

/// The leadership of this csi-cloud, and its begin.
pub(crate) struct Leading {
    leadership: Leadership,
    /// The replicas, if there are several.
    cluster: Option<Arc<Cluster>>,
    begun: OnceLock<Begun>,
    /// Changed when it has begun.
    beginning: watch::Sender<()>,
}

/// The beginning, after which nothing of it changes.
struct Begun {
    since: Instant,
    /// The epoch, as calls have it; none without one.
    epoch: Option<HeaderValue>,
}

impl Leading {
    /// A csi-cloud that shares no store has begun.
    pub(super) fn new(leadership: Leadership, cluster: Option<Arc<Cluster>>) -> Self {
        let is_alone = matches!(leadership.role(), Role::Alone(_));
        let beginning = watch::Sender::default();
        let leading = Self { leadership, cluster, begun: OnceLock::new(), beginning };
        if is_alone {
            leading.begin();
        }
        leading
    }

    /// Allows calls and links from now on. Call it as the leader, after everything that depends on
    /// the store was computed anew.
    pub(crate) fn begin(&self) {
        let epoch = self.leadership.epoch().map(|epoch| epoch.header());
        // It leads once only, so nothing changes the second time.
        let _ = self.begun.set(Begun { since: Instant::now(), epoch });
        self.beginning.send_replace(());
    }

    /// True if it has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// The time since it began to lead, when the first link was possible; zero before.
    pub(crate) fn age(&self) -> Duration {
        self.begun.get().map(|begun| begun.since.elapsed()).unwrap_or_default()
    }

    /// The epoch for the headers of a call; none if its store never had several csi-clouds.
    pub(super) fn epoch(&self) -> Option<&HeaderValue> {
        self.begun.get()?.epoch.as_ref()
    }

    /// Checks that this csi-cloud may carry out a call and give a final answer.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self) -> Result<(), NotLeading> {
        if self.has_begun() && self.leadership.leads() {
            return Ok(());
        }
        let trouble = || self.cluster.as_ref()?.trouble();
        Err(match (self.leadership.role(), trouble()) {
            (Role::Following(_), Some(why)) => NotLeading::NoEtcd(why.to_string()),
            (Role::Following(Some(leader)), None) => NotLeading::Follows(leader.name.to_string()),
            (Role::Following(None), None) => NotLeading::NoLeader,
            (Role::Alone(_) | Role::Leading(_), _) if !self.has_begun() => NotLeading::NoLeader,
            (Role::Alone(_) | Role::Leading(_) | Role::Deposed, _) => NotLeading::Deposed,
        })
    }

    /// The leader's endpoints for edges, if another csi-cloud leads; empty if none leads.
    pub(super) fn leader(&self) -> Vec<String> {
        match self.leadership.role() {
            Role::Following(Some(leader)) => {
                leader.endpoints.iter().map(ToString::to_string).collect()
            }
            Role::Following(None) | Role::Alone(_) | Role::Leading(_) | Role::Deposed => Vec::new(),
        }
    }

    /// The same as [`Self::check`], after a while if nobody leads, or if the edge cannot use the
    /// present leader. So edges without a leader do not dial all the time.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn check_for_edge(&self, awaits_another: bool) -> Result<(), NotLeading> {
        let mut roles = self.leadership.roles();
        let mut beginning = self.beginning.subscribe();
        let useless = self.check().err().filter(|_| awaits_another);
        let known = async {
            loop {
                match self.check() {
                    Err(NotLeading::NoLeader | NotLeading::NoEtcd(_)) => {}
                    Err(why) if Some(&why) == useless.as_ref() => {}
                    _ => return,
                }
                // `self` has both senders.
                tokio::select! {
                    biased;
                    _ = roles.changed() => {}
                    _ = beginning.changed() => {}
                }
            }
        };
        let _ = timeout(WAIT, known).await;
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use proto::control::leader::LeaderEpoch;

    use super::*;
    use crate::state::store::leadership::Leader;

    const TEN: Duration = Duration::from_secs(10);

    fn leader(name: &str) -> Leader {
        let endpoint = format!("wss://{name}.example:7443").parse().unwrap();
        Leader { name: name.into(), epoch: LeaderEpoch(3), endpoints: Arc::new([endpoint]) }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_has_begun_and_whoever_follows_has_not() {
        let alone = Leading::new(Leadership::alone(None), None);
        assert!(alone.check().is_ok() && alone.epoch().is_none());
        let alone = Leading::new(Leadership::alone(Some(LeaderEpoch(9))), None);
        assert_eq!(alone.epoch().unwrap(), "9");
        let leadership = Leadership::following();
        let leading = Leading::new(leadership.clone(), None);
        assert_eq!(leading.check(), Err(NotLeading::NoLeader));
        leadership.follow(Some(leader("b")));
        assert_eq!(leading.check(), Err(NotLeading::Follows("b".into())));
        assert_eq!(leading.leader(), ["wss://b.example:7443"]);
        tokio::time::advance(TEN).await;
        leadership.lead(LeaderEpoch(7), Instant::now() + TEN);
        assert_eq!(leading.check(), Err(NotLeading::NoLeader), "it has yet to begin");
        leading.begin();
        assert!(leading.check().is_ok() && leading.leader().is_empty());
        assert_eq!(leading.epoch().unwrap(), "7");
        assert_eq!(leading.age(), Duration::ZERO, "what came before does not count");
        tokio::time::advance(TEN).await;
        assert_eq!(leading.check(), Err(NotLeading::Deposed), "its lease may be over");
    }

    #[tokio::test(start_paused = true)]
    async fn an_edge_waits_while_nobody_leads_and_is_refused_at_once_for_a_leader() {
        let leadership = Leadership::following();
        let leading = Arc::new(Leading::new(leadership.clone(), None));
        let begun = Instant::now();
        assert_eq!(leading.check_for_edge(false).await, Err(NotLeading::NoLeader));
        assert_eq!(begun.elapsed(), WAIT);
        let follow = async {
            tokio::task::yield_now().await;
            leadership.follow(Some(leader("b")));
        };
        let (checked, ()) = tokio::join!(leading.check_for_edge(false), follow);
        assert_eq!(checked, Err(NotLeading::Follows("b".into())));
        leading.check_for_edge(false).await.unwrap_err();
        assert_eq!(begun.elapsed(), WAIT, "it knew at once");
        leading.check_for_edge(true).await.unwrap_err();
        assert_eq!(begun.elapsed(), WAIT * 2, "the edge cannot use that leader");
        let lead = async {
            tokio::task::yield_now().await;
            leadership.lead(LeaderEpoch(7), Instant::now() + TEN);
            tokio::task::yield_now().await;
            leading.begin();
        };
        let (checked, ()) = tokio::join!(leading.check_for_edge(true), lead);
        assert_eq!(checked, Ok(()));
        assert_eq!(begun.elapsed(), WAIT * 2);
    }
}
