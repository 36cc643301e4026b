//! Lease requests of nodes: which node may ask for which volume, and the outcome.
//!
//! A request is decided in a transaction of the store, so its outcome is durable when it is sent.

use prost::Message;
use proto::control::lease::{LeaseAction, MAX_ID, Outcome, Request};
use proto::csi;
use proto::csi::{Id, Segments};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

use crate::lease::decide::{LeaseReport, LeaseVerdict, Step};
use crate::lease::holder_link::explain;
use crate::lease::mac::Granted;
use crate::lease::step::step;
use crate::nodes::links::Links;
use crate::state::older_store;
use crate::state::policy::Scope;
use crate::state::quotas::{OverQuota, Quota, Quotas};
use crate::state::record::{Holder, Home, LeaseRecord, NodeDriver};
use crate::state::txn::Txn;

/// The most leases of one node. No machine has as many guests, and faulty nodes cannot fill the
/// store with so few.
pub(crate) const MOST: usize = 10_000;

/// The highest epoch that a node may report. It leaves 10¹² for later leases.
pub(super) const LAST: u64 = u64::MAX - (1 << 40);

/// The reason why a request changes nothing.
#[derive(Debug, PartialEq, Eq)]
enum LeaseRefusal {
    /// Its link is not the node's any more.
    Late,
    /// The node can never hold the volume.
    Never(String),
    /// The volume lives at another node, and only that node can hold it.
    Elsewhere(String),
    /// The node holds as many leases as it may.
    Full,
}

/// The result of a step.
struct Applied {
    verdict: LeaseVerdict,
    /// The MAC of a lease that csi-cloud granted.
    mac: Option<String>,
    /// The holder before, if the record has changed.
    before: Option<Holder>,
    /// True if the record has changed.
    changed: bool,
    /// True if it is the first to show that the store is an older copy.
    shows_older: bool,
}

/// Handles a lease request of a node. Returns none if `is_current` is false in the transaction: the
/// link was replaced or the edge is leaving, so later messages count. Calls `on_full` if the node
/// holds as many leases as it may.
pub(crate) async fn handle(
    links: &Links,
    node: &NodeName,
    request: Request,
    is_current: impl Fn() -> bool + Send + 'static,
    on_full: impl FnOnce(),
) -> Option<Outcome> {
    let driver = request.driver;
    let id = Id::Volume(request.volume);
    if id.text().is_empty() || id.text().len() > MAX_ID {
        let why = format!("the id of a volume has 1 to {MAX_ID} bytes");
        return Some(Outcome::NotNow { why });
    }
    if let Err(over) = check_pod(links.store().quotas(), &request.step) {
        links.store().refuse_over_quota(node, None, &over);
        return Some(Outcome::NotNow { why: chain(&over) });
    }
    if let Some(why) = why_not_new(links, &request.step) {
        return Some(Outcome::NotNow { why });
    }
    let scope = links.scope(&driver);
    let volume = (driver.clone(), id.clone());
    let at = node.clone();
    let asked = request.step.clone();
    let written = links.store().write(move |txn| {
        if !is_current() {
            return Err(LeaseRefusal::Late);
        }
        let (driver, id) = &volume;
        if asked != LeaseAction::Release {
            may_hold(txn, scope, (driver, id), &at, &asked)?;
        }
        Ok(apply(txn, (driver, id), &at, &asked))
    });
    match written.await {
        Err(error) => Some(Outcome::NotNow { why: chain(&error) }),
        Ok(Ok(applied)) => Some(outcome(links, node, (&driver, &id), applied)),
        Ok(Err(LeaseRefusal::Late)) => None,
        Ok(Err(LeaseRefusal::Full)) => {
            on_full();
            let why = format!("node {node} has {MOST} volumes, and no more can be its own");
            Some(Outcome::NotNow { why })
        }
        Ok(Err(LeaseRefusal::Elsewhere(why)))
            if !matches!(request.step, LeaseAction::Hold { .. }) =>
        {
            Some(Outcome::HeldElsewhere { why })
        }
        Ok(Err(LeaseRefusal::Never(why) | LeaseRefusal::Elsewhere(why))) => {
            if matches!(request.step, LeaseAction::Hold { .. }) {
                let volume = id.text();
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, volume, why,
                    "node claims a lease that it cannot hold"
                );
            }
            Some(Outcome::NotNow { why })
        }
    }
}

/// The reason why no new lease is granted, if this asks for one.
fn why_not_new(links: &Links, asked: &LeaseAction) -> Option<String> {
    if !matches!(asked, LeaseAction::Ask { .. }) {
        return None;
    }
    let lack = links.store().may_lack_creates()?;
    Some(format!("csi-cloud gives no new leases, and confirms those that nodes hold: {lack}"))
}

/// A pod's UID is stored with the lease, so its size is bounded like that of all strings.
fn check_pod(quotas: &Quotas, step: &LeaseAction) -> Result<(), OverQuota> {
    match step {
        LeaseAction::Ask { pod } | LeaseAction::Hold { pod, .. } => {
            quotas.check(Quota::StringBytes, pod.len(), || "bytes in the UID of a pod".into())
        }
        LeaseAction::Release => Ok(()),
    }
}

fn apply(
    txn: &mut Txn<'_>,
    (driver, id): (&DriverName, &Id),
    node: &NodeName,
    asked: &LeaseAction,
) -> Applied {
    // A store that csi-cloud serves has its keys.
    let key = txn.secrets().map(|secrets| secrets.leases.clone());
    let granted = |epoch| Granted { node, driver, id, epoch };
    let proven = is_proven(txn, (driver, id), node, asked);
    let shows_older = match asked {
        LeaseAction::Hold { epoch, .. } if proven => older_store::note_lease(txn, node, *epoch),
        LeaseAction::Ask { .. } | LeaseAction::Hold { .. } | LeaseAction::Release => false,
    };
    let asked = match asked {
        LeaseAction::Ask { pod } => Step::Ask(pod),
        LeaseAction::Hold { epoch, pod, .. } => {
            Step::Hold(LeaseReport { epoch: *epoch, pod, proven })
        }
        LeaseAction::Release => Step::Release,
    };
    let before = txn.lease(driver, id).cloned();
    // A holder is confirmed by the one that leads only, although nothing changes.
    txn.confirm();
    let verdict = step(txn, driver, id, node, asked);
    let mac = match verdict {
        LeaseVerdict::Held(epoch) => key.as_ref().map(|key| granted(epoch).mac(key)),
        LeaseVerdict::HeldByWord(_)
        | LeaseVerdict::Contested(_)
        | LeaseVerdict::Done
        | LeaseVerdict::HeldElsewhere(_)
        | LeaseVerdict::Fenced(_) => None,
    };
    let changed = txn.lease(driver, id) != before.as_ref();
    let before = before.and_then(|record| record.holder).filter(|_| changed);
    Applied { verdict, mac, before, changed, shows_older }
}

/// True if a node shows our MAC of the lease that it states.
fn is_proven(
    txn: &Txn<'_>,
    (driver, id): (&DriverName, &Id),
    node: &NodeName,
    asked: &LeaseAction,
) -> bool {
    let LeaseAction::Hold { epoch, mac: Some(mac), .. } = asked else { return false };
    let key = txn.secrets().map(|secrets| secrets.leases.clone());
    let granted = Granted { node, driver, id, epoch: *epoch };
    key.is_some_and(|key| granted.is_proven_by(mac, &key))
}

/// Checks that a node may hold a volume at all.
fn may_hold(
    txn: &Txn<'_>,
    scope: Option<Scope>,
    (driver, id): (&DriverName, &Id),
    node: &NodeName,
    asked: &LeaseAction,
) -> Result<(), LeaseRefusal> {
    let Some(at) = txn.at(driver, node) else {
        return Err(LeaseRefusal::Never(format!("node {node} never had driver {driver}")));
    };
    if let LeaseAction::Hold { epoch, .. } = asked
        && *epoch > txn.epoch().max(LAST)
    {
        return Err(LeaseRefusal::Never(format!("{epoch} was never given to anybody")));
    }
    // A granted lease stays valid, whatever was learned since. Everybody may ask for the holder.
    let holder = txn.lease(driver, id).and_then(|record| record.holder.as_ref());
    if holder.is_some_and(|holder| holder.node == *node || matches!(asked, LeaseAction::Ask { .. }))
    {
        return Ok(());
    }
    if let Some(home) = txn.home(driver, id).filter(|home| !home.lost) {
        fits_home(home, at, scope, driver, node)?;
        // What a node says of its own topology does not make its word count for another's volume.
        let is_word = matches!(asked, LeaseAction::Hold { .. });
        let is_others = scope == Some(Scope::Node) && home.node != *node;
        if is_word && is_others && !is_proven(txn, (driver, id), node, asked) {
            return Err(elsewhere(home, driver));
        }
    }
    if txn.state().held_by(node) >= MOST { Err(LeaseRefusal::Full) } else { Ok(()) }
}

/// Checks a volume's home: it must be accessible from the node, and created as a direct volume.
fn fits_home(
    home: &Home,
    at: &NodeDriver,
    scope: Option<Scope>,
    driver: &DriverName,
    node: &NodeName,
) -> Result<(), LeaseRefusal> {
    if scope == Some(Scope::Node) && home.node != *node && !reaches(home, at) {
        return Err(elsewhere(home, driver));
    }
    let direct = home.parameters.as_ref().is_some_and(|ours| csi::direct::is_on(ours));
    // At its home a PersistentVolume's attributes may make it direct: no other node could use it.
    if home.name.is_some() && !direct && scope != Some(Scope::Node) {
        return Err(LeaseRefusal::Never(format!(
            "it was made as an ordinary volume, which other nodes may have mounted: \
             its class has no {}",
            csi::direct::KEY
        )));
    }
    Ok(())
}

fn elsewhere(home: &Home, driver: &DriverName) -> LeaseRefusal {
    LeaseRefusal::Elsewhere(format!(
        "it lives at node {}, and driver {driver} is of scope \"node\"; \
         if other nodes can have its volumes too, give it scope \"shared\" \
         in csi-cloud's configuration",
        home.node
    ))
}

/// True if the driver says that a volume is accessible from another node than its home, for example
/// in the same zone.
fn reaches(home: &Home, at: &NodeDriver) -> bool {
    let entry = csi::list_volumes_response::Entry::decode(home.entry.clone()).unwrap_or_default();
    let topologies = entry.volume.unwrap_or_default().accessible_topology;
    topologies
        .into_iter()
        .map(|topology| topology.segments.into_iter().collect::<Segments>())
        .any(|segments| !segments.is_empty() && at.is_at(&segments))
}

/// Logs that a lease has moved to another node, and ends the former holder's link.
fn moved(links: &Links, node: &NodeName, (driver, id): (&DriverName, &Id), before: &Holder) {
    let Holder { node: from, pod, .. } = before;
    warn!(
        %node, %driver, volume = id.text(), %from, pod,
        "lease moved to another node: it proved a later grant, or the former holder had no proof"
    );
    // That node reports all its leases on its next link, and learns the outcome there.
    links.end(from, "a volume was given to another node; the next link tells which");
}

fn outcome(
    links: &Links,
    node: &NodeName,
    (driver, id): (&DriverName, &Id),
    applied: Applied,
) -> Outcome {
    let Applied { verdict, mac, before, changed, shows_older } = applied;
    if shows_older {
        older_store::tell(node);
    }
    let volume = id.text();
    let is_now = matches!(verdict, LeaseVerdict::Held(_));
    if let Some(before) = before.filter(|before| is_now && before.node != *node) {
        moved(links, node, (driver, id), &before);
    }
    let explain = |record: &LeaseRecord| explain(driver, id, record, links.store(), links);
    match verdict {
        LeaseVerdict::Held(epoch) => {
            if changed {
                info!(%node, %driver, volume, epoch, "a volume is the node's");
            }
            Outcome::Held { epoch, mac }
        }
        LeaseVerdict::HeldByWord(epoch) => {
            if changed {
                warn!(
                    %node, %driver, volume, epoch,
                    "a volume is the node's by its own word, which nothing contradicts"
                );
            }
            Outcome::Held { epoch, mac: None }
        }
        LeaseVerdict::Contested(record) => {
            let why = format!(
                "node {node} cannot prove that this volume is its own; {}",
                explain(&record)
            );
            if changed {
                warn!(
                    %node, %driver, volume, why,
                    "node claims a lease without proof, and the volume is held, attached or \
                     claimed elsewhere"
                );
            }
            Outcome::NotNow { why }
        }
        LeaseVerdict::Done => Outcome::Released,
        LeaseVerdict::HeldElsewhere(record) => Outcome::HeldElsewhere { why: explain(&record) },
        LeaseVerdict::Fenced(holder) => {
            peer_warn!(
                LogPeer::Node(node), %node, %driver, volume,
                "a node says that it has what was taken from it"
            );
            let why = match holder {
                None => "it was taken from this node, and is nobody's now".into(),
                holder => {
                    let record = LeaseRecord { holder, ..LeaseRecord::default() };
                    format!("it was taken from this node; now {}", explain(&record))
                }
            };
            Outcome::Fenced { why }
        }
    }
}
