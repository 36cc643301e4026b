//! Carries out what is to be told: finds out what waits or is lost, and publishes Events of it.

use std::time::Duration;

use ::kube::Api;
use ::kube::runtime::events::{Event, EventType};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kubernetes::api::ApiError;
use crate::kubernetes::events;
use crate::kubernetes::events::{About, Notice};
use crate::kubernetes::{Away, Keeper, claims};

/// How often volumes are looked through at most, when some have changed.
const SCAN: Duration = Duration::from_secs(5);
/// How often they are looked through in any case, since what lasts is told again.
const ANYWAY: Duration = Duration::from_secs(600);
/// So many times the time that a look takes, nothing is looked at.
const SHARE: u32 = 20;

/// How long an Event that was refused is not tried again.
const REFUSED: Duration = Duration::from_secs(300);
/// What failures to tell are about.
const EVENTS: &str = "Events";

/// When volumes were looked through, and what there was.
#[derive(Default)]
pub(super) struct Scan {
    seen: u64,
    removed: usize,
    /// When the next look may be, and when it will be in any case.
    next: Option<(Instant, Instant)>,
}

impl Keeper {
    /// Tells what is to be told, as much as its turn allows; the rest comes next.
    pub(super) async fn tell(&mut self) -> Result<(), Away> {
        for notice in self.waiting() {
            self.tell_one(notice).await?;
        }
        if self.left.is_empty() {
            let (found, now) = (self.trouble().await, Instant::now());
            let news = found.into_iter().filter(|notice| self.told.is_news(notice, now));
            self.left = news.take(events::MEMORY).collect();
        }
        while self.may_tell()
            && let Some(notice) = self.left.front().cloned()
        {
            self.tell_one(notice).await?;
            self.left.pop_front();
        }
        Ok(())
    }

    /// Whether there is a turn left, and Events are let.
    fn may_tell(&self) -> bool {
        self.turns > 0 && self.retries.may(EVENTS, Instant::now())
    }

    /// The claims that wait for a node.
    fn waiting(&self) -> Vec<Notice> {
        let pending = self.mirror.objects().claims.items().clone();
        let links = &self.facts.links;
        let why = |(key, claim): (String, claims::Pending)| {
            let policy = self.facts.policies.get(&claim.driver)?;
            let away = |node: &_| links.away(node);
            let waits = self.facts.store.read(|state| claims::waits(&claim, state, away, policy.grace))?;
            Some(events::waiting(&key, &claim.uid, &waits))
        };
        pending.into_iter().filter_map(why).collect()
    }

    /// What is wrong with volumes, if any changed.
    async fn trouble(&mut self) -> Vec<Notice> {
        let now = Instant::now();
        let drivers: Vec<_> = self.facts.policies.keys().cloned().collect();
        let (seen, removed) = self.facts.store.read(|state| {
            let seen = drivers.iter().filter_map(|driver| state.driver(driver)).map(|of| of.changes()).sum();
            (seen, state.nodes().values().filter(|node| node.removed.is_some()).count())
        });
        let changed = (seen, removed) != (self.scan.seen, self.scan.removed);
        if self.scan.next.is_some_and(|(may, must)| if changed { now < may } else { now < must }) {
            return Vec::new();
        }
        let mut notices = Vec::new();
        for driver in &drivers {
            let mut after = None;
            loop {
                let (some, next) = self.facts.store.read(|state| events::trouble(state, driver, after));
                notices.extend(some);
                after = next;
                if after.is_none() {
                    break;
                }
                // Calls come in between.
                tokio::task::yield_now().await;
            }
        }
        let end = Instant::now();
        let may = end + SCAN.max(end.saturating_duration_since(now) * SHARE);
        self.scan = Scan { seen, removed, next: Some((may, end + ANYWAY)) };
        notices
    }

    /// Publishes an Event, unless that was told within the hour or it is not its turn.
    pub(super) async fn tell_one(&mut self, notice: Notice) -> Result<(), Away> {
        if !self.may_tell() || !self.told.is_news(&notice, Instant::now()) {
            return Ok(());
        }
        self.turns -= 1;
        let (about, reason) = (&notice.about, notice.reason);
        match self.publish(&notice).await {
            Err(ApiError::Away(_)) => return Err(Away),
            Err(ApiError::Missing) => {
                debug!(?about, reason, "nobody is there to be told");
                self.told.keep(&notice, Instant::now(), events::AGAIN);
            }
            answered => {
                let told = self.settled(EVENTS, answered)?.is_some();
                if told {
                    warn!(?about, reason, note = notice.note, "told in Kubernetes");
                }
                // What is refused keeps nothing else from being told.
                let again = if told { events::AGAIN } else { REFUSED };
                self.told.keep(&notice, Instant::now(), again);
            }
        }
        Ok(())
    }

    async fn publish(&self, notice: &Notice) -> Result<(), ApiError> {
        let reference = notice.about.reference(Some(self.uid(&notice.about).await?));
        let event = Event {
            type_: EventType::Warning,
            reason: notice.reason.into(),
            note: Some(events::cut(notice.note.clone())),
            action: "Watching".into(),
            secondary: None,
        };
        self.server.ask("Event create", self.recorder.publish(&event, &reference)).await
    }

    /// The uid of an object: Events are found by it. A claim of the name that is another one is none.
    async fn uid(&self, about: &About) -> Result<String, ApiError> {
        let client = self.server.client.clone();
        let (uid, expected) = match about {
            About::Node { uid, .. } => (Some(uid.clone()), None),
            About::Volume(name) => {
                let api: Api<PersistentVolume> = Api::all(client);
                (self.server.ask("PersistentVolume get", api.get_metadata(name)).await?.metadata.uid, None)
            }
            About::Claim { namespace, name, uid } => {
                let api: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
                let found = self.server.ask("PersistentVolumeClaim get", api.get_metadata(name)).await?;
                (found.metadata.uid, uid.clone())
            }
        };
        uid.filter(|uid| expected.is_none_or(|expected| expected == *uid)).ok_or(ApiError::Missing)
    }
}
