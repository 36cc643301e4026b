//! Lists all volumes page by page while they come and go, as external-attacher's reconciler and
//! external-health-monitor do. Each whole list is compared with Kubernetes' objects.
//!
//! It continues with the next page after failures, link changes and restarts of the cloud, because
//! the token must stay valid.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::csi::list_volumes_response::Entry;
use proto::csi::{Id, ListVolumesRequest, ListVolumesResponse};
use tokio::time::Instant;
use tonic::Code;

use super::api::{Attachment, Claim, Objects};
use super::caller::Caller;
use super::world::World;
use crate::dice::Dice;
use crate::homes::Homes;
use crate::keys::{LIAR, NODES};
use crate::life::BEFORE;

/// Failures in a row after which a list is given up.
const FAILURES: usize = 20;

/// How long a leader may answer lists after etcd ended its lease before its time, while it cannot
/// hear of that: the time of a lease, less the margin.
const UNAWARE: Duration = Duration::from_secs(9);

/// Lists for ever.
pub async fn keep(world: World) {
    let dice = Dice::new(world.seed, "lister");
    let lease_ends = LeaseEnds::default();
    let watching = lease_ends.clone().watch(world.clone());
    let caller = Caller::new("lister", &world);
    let mut lister = Lister { dice, world, caller, lease_ends };
    let listing = async {
        loop {
            let wait = lister.dice.time(500, 40_000);
            tokio::time::sleep(wait).await;
            lister.list().await;
        }
    };
    tokio::join!(listing, watching);
}

/// The objects at each end of a leader's lease before its time. A clone is the same.
#[derive(Clone, Default)]
struct LeaseEnds(Arc<Mutex<Vec<(Instant, Picture)>>>);

impl LeaseEnds {
    async fn watch(self, world: World) {
        let Some(replicas) = world.fleet.replicas.as_ref() else { return };
        let mut ends = replicas.lease_ends();
        while ends.changed().await.is_ok() {
            self.0.lock().push((Instant::now(), world.api.read(picture)));
        }
    }

    /// The first one of which a leader may be unaware at this moment.
    fn unaware(&self, now: Instant) -> Option<(Instant, Picture)> {
        let ends = self.0.lock();
        ends.iter().find(|(at, _)| (*at..=*at + UNAWARE).contains(&now)).cloned()
    }
}

struct Lister {
    world: World,
    dice: Dice,
    caller: Caller,
    lease_ends: LeaseEnds,
}

impl Lister {
    /// Makes one list, and compares it.
    async fn list(&mut self) {
        let begin = (Instant::now(), self.world.api.read(picture));
        // The cloud cannot know volumes from before it at a node that has never linked.
        let fleet = &self.world.fleet;
        let all = self.world.fleet.drivers.len();
        let is_known = fleet.known() == all;
        // A driver's only node answers for itself, and that may be the liar.
        let is_liars_own = fleet.known() == 0 && fleet.shape().is_liar_a_place();
        let most = self.dice.pick(&[0, 1, 1, 2, 3, 7]);
        let mut entries = Vec::new();
        let mut token = String::new();
        let mut failures = 0;
        loop {
            let request = ListVolumesRequest { max_entries: most, starting_token: token.clone() };
            match self.page(&request).await {
                Ok(page) => {
                    let longest = usize::try_from(most).ok().filter(|most| *most > 0);
                    if longest.is_some_and(|most| page.entries.len() > most) && !is_liars_own {
                        self.world.found.add([format!("a page has more than {most} entries")]);
                    }
                    (failures, token) = (0, page.next_token);
                    entries.extend(page.entries);
                    if token.is_empty() {
                        break;
                    }
                }
                // CSI: the token is not good any more, "the caller SHOULD start over".
                Err(Code::Aborted) => return,
                Err(_) if failures >= FAILURES => return,
                Err(_) => failures += 1,
            }
            let wait = self.dice.time(0, 6_000);
            tokio::time::sleep(wait).await;
        }
        if is_liars_own {
            return;
        }
        let (since, mut before) = self.unaware_since(begin.0).unwrap_or(begin);
        before.retain(|(claim, _)| !claim.name.starts_with(BEFORE) || is_known);
        before.retain(|(claim, _)| !claim.at_liar);
        let after = self.world.api.read(picture);
        // A node may have what another one has deleted, and the liar says so.
        let homes = self.world.fleet.read_noted(Homes::of);
        let is_liars = |id: &str| homes.was_ever(&Id::Volume(id.to_owned()), LIAR);
        before.retain(|(claim, _)| has_home(claim, &homes, since));
        let wrong = compare(&before, &after, &entries, is_liars);
        self.world.trace.say(format_args!(
            "lister: {} volumes listed: {}",
            entries.len(),
            ids(&entries)
        ));
        let at = self.world.trace.at(Instant::now());
        self.world
            .found
            .add(wrong.into_iter().map(|text| format!("in a list by {most}, at {at}: {text}")));
    }

    /// The end of a lease of which the leader that answered a page was unaware. It knows what was
    /// before that.
    fn unaware_since(&self, began: Instant) -> Option<(Instant, Picture)> {
        let replicas = self.world.fleet.replicas.as_ref()?;
        let end = self.lease_ends.unaware(began)?;
        replicas.was_listed_late(began).then_some(end)
    }

    async fn page(&mut self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Code> {
        let reply = self.caller.call("ListVolumes", "", request).await?;
        reply.decode().ok_or(reply.code)
    }
}

/// Whether lists must tell the truth of a claim's volume from this moment on. After a minute they
/// go on without volumes from before csi-cloud that have no home.
fn has_home(claim: &Claim, homes: &Homes, since: Instant) -> bool {
    let before = claim.name.starts_with(BEFORE);
    let Some(volume) = claim.volume.as_ref().filter(|_| before) else { return true };
    volume.gone || homes.at(&Id::Volume(volume.id.clone()), since).is_some()
}

/// A claim with its attachments at one moment.
type Seen = (Claim, Vec<Attachment>);
/// All of them.
type Picture = Vec<Seen>;

fn picture(objects: &Objects) -> Picture {
    let attachments =
        |at: usize| objects.attachments.iter().filter(move |of| of.claim == at).cloned().collect();
    objects.claims.iter().enumerate().map(|(at, claim)| (claim.clone(), attachments(at))).collect()
}

fn id(entry: &Entry) -> &str {
    entry.volume.as_ref().map_or("", |volume| &volume.volume_id)
}

fn ids(entries: &[Entry]) -> String {
    entries.iter().map(id).collect::<Vec<_>>().join(" ")
}

/// The faults of a list that was made between two moments.
fn compare(
    before: &Picture,
    after: &Picture,
    entries: &[Entry],
    is_liars: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in entries {
        if !seen.insert(id(entry)) {
            wrong.push(format!("{:?} is listed twice", id(entry)));
        }
        if id(entry).is_empty() {
            wrong.push("an entry has no volume".into());
        }
    }
    for now in before {
        let Some(volume) = &now.0.volume else { continue };
        let Some(then) = after.iter().find(|then| then.0.name == now.0.name) else { continue };
        let entry = entries.iter().find(|entry| id(entry) == volume.id);
        match entry {
            Some(_) if volume.gone && is_liars(&volume.id) => {}
            Some(_) if volume.gone => {
                wrong.push(format!("{} was deleted before and is listed", volume.id))
            }
            None if !then.0.deleted => {
                wrong.push(format!("{} was there all the time and is not listed", volume.id));
            }
            Some(entry) if !then.0.deleted => {
                wrong.extend(published(&volume.id, entry, (now, then)))
            }
            _ => {}
        }
    }
    wrong
}

/// CSI: "a list of all node IDs to which the volume is currently published". The reconciler
/// attaches again what is not in it, so it must be right where nothing changes.
fn published(id: &str, entry: &Entry, (now, then): (&Seen, &Seen)) -> Option<String> {
    let versions = |of: &[Attachment]| of.iter().map(|of| of.version).collect::<Vec<_>>();
    let at_rest = |of: &Attachment| of.gone || (of.attached && !of.deleting);
    if versions(&now.1) != versions(&then.1) || !now.1.iter().all(at_rest) {
        return None;
    }
    let node = now.0.volume.as_ref().and_then(|volume| NODES.get(volume.node));
    let wanted: Vec<_> = node
        .filter(|_| now.1.iter().any(|of| !of.gone))
        .map(ToString::to_string)
        .into_iter()
        .collect();
    let listed = entry.status.clone().unwrap_or_default().published_node_ids;
    (wanted != listed)
        .then(|| format!("{id} is published to {wanted:?} and listed as at {listed:?}"))
}

#[cfg(test)]
mod tests {
    use proto::csi::Volume as Listed;

    use super::*;
    use crate::model::api::ApiVolume;

    fn claim(id: &str, gone: bool, deleted: bool) -> (Claim, Vec<Attachment>) {
        let volume = Some(ApiVolume { id: id.into(), gone, ..ApiVolume::default() });
        (Claim { volume, deleted, ..Claim::default() }, Vec::new())
    }

    fn found(before: &Picture, after: &Picture, entries: &[Entry]) -> Vec<String> {
        compare(before, after, entries, |_| false)
    }

    fn entry(id: &str) -> Entry {
        Entry { volume: Some(Listed { volume_id: id.into(), ..Listed::default() }), status: None }
    }

    #[test]
    fn what_stayed_is_listed_once_and_what_was_gone_is_not() {
        let stays = vec![claim("a", false, false)];
        assert!(found(&stays, &stays, &[entry("a")]).is_empty());
        assert_eq!(found(&stays, &stays, &[]).len(), 1, "it is missing");
        assert_eq!(found(&stays, &stays, &[entry("a"), entry("a")]).len(), 1, "it is there twice");
        let leaves = vec![claim("a", false, true)];
        assert!(found(&stays, &leaves, &[]).is_empty(), "it may be there or not");
        let gone = vec![claim("a", true, true)];
        assert_eq!(found(&gone, &gone, &[entry("a")]).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_is_unaware_for_the_time_of_its_lease_at_most() {
        let ends = LeaseEnds::default();
        let first = Instant::now();
        let second = first + Duration::from_secs(5);
        ends.0.lock().extend([(first, Picture::new()), (second, Picture::new())]);
        let known = |after: Duration| ends.unaware(first + after).map(|(at, _)| at);
        assert_eq!(known(Duration::ZERO), Some(first));
        assert_eq!(known(UNAWARE), Some(first), "the oldest memory counts");
        assert_eq!(known(UNAWARE + Duration::from_secs(1)), Some(second));
        assert_eq!(known(UNAWARE + Duration::from_secs(6)), None);
    }

    #[test]
    fn nodes_are_compared_only_where_nothing_changes() {
        let attached = Attachment { attached: true, ..Attachment::default() };
        let with = |of: &Attachment| vec![(claim("a", false, false).0, vec![of.clone()])];
        assert_eq!(
            found(&with(&attached), &with(&attached), &[entry("a")]).len(),
            1,
            "n1 is missing"
        );
        let leaving = Attachment { deleting: true, version: 1, ..attached.clone() };
        assert!(found(&with(&attached), &with(&leaving), &[entry("a")]).is_empty());
        assert!(found(&with(&leaving), &with(&leaving), &[entry("a")]).is_empty());
    }
}
