//! What nodes say of volumes that one guest owns: who may speak of which, and what is answered.

use prost::Message;
use proto::control::lease::{MAX_ID, Outcome, Request, Step as Said};
use proto::csi;
use proto::csi::{Id, Segments};
use proto::host::chain;
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

use crate::lease::decide::{Step, Verdict};
use crate::lease::standing::whose;
use crate::lease::step::step;
use crate::nodes::links::Links;
use crate::state::policy::Scope;
use crate::state::record::{Home, LeaseRecord, NodeDriver};
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The volumes that one node may have: more than any machine runs guests for, and few enough that nodes which go mad
/// leave room for others in the store.
pub(crate) const MOST: usize = 10_000;

/// No node was given a later epoch than this, which leaves room for 10¹² more whatever a node says.
pub(super) const LAST: u64 = u64::MAX - (1 << 40);

/// Why nothing is done about what a node says.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// Its link is not the node's any more.
    Late,
    /// The volume cannot be the node's.
    Never(String),
    /// It lives at another node, where alone it can be had.
    Elsewhere(String),
    /// The node has as many as it may.
    Full,
}

/// What a node said of a volume, on its link; none if that is not the node's any more when it is the message's turn, or
/// has said goodbye: whatever came after it counts. `full` is told when the node has as many as it may.
pub(crate) async fn said(
    store: &Store,
    links: &Links,
    node: &NodeName,
    own: Request,
    (counts, full): (impl Fn() -> bool + Send + 'static, impl FnOnce()),
) -> Option<Outcome> {
    let (driver, id, said) = (own.driver, Id::Volume(own.volume), own.step);
    if id.text().is_empty() || id.text().len() > MAX_ID {
        return Some(Outcome::NotNow {
            why: format!("the id of a volume has 1 to {MAX_ID} bytes"),
        });
    }
    let scope = links.scope(&driver);
    let (at, volume, of, what) = (node.clone(), id.clone(), driver.clone(), said.clone());
    let written = store.write(move |txn| {
        if !counts() {
            return Err(Refusal::Late);
        }
        if what != Said::Release {
            may_be(txn, scope, (&of, &volume), &at, &what)?;
        }
        let said = match &what {
            Said::Ask { pod } => Step::Ask(pod),
            Said::Hold { epoch, pod } => Step::Hold(*epoch, pod),
            Said::Release => Step::Release,
        };
        let before = txn.lease(&of, &volume).cloned();
        let verdict = step(txn, &of, &volume, &at, said);
        let news = txn.lease(&of, &volume) != before.as_ref();
        Ok((verdict, before.and_then(|before| before.holder).filter(|_| news), news))
    });
    let heard = match written.await {
        Ok(heard) => heard,
        Err(error) => return Some(Outcome::NotNow { why: chain(&error) }),
    };
    let holds = matches!(said, Said::Hold { .. });
    match heard {
        Ok((verdict, before, news)) => {
            if let Some(before) = before.filter(|before| before.node != *node) {
                let (volume, from, pod) = (id.text(), before.node, before.pod);
                warn!(%node, %driver, volume, %from, pod, "a volume is another node's than was thought: it was given it later");
                // It states all on its next link, and is told there.
                links.end(&from);
            }
            Some(answer((store, links), node, (&driver, &id), verdict, news))
        }
        Err(Refusal::Late) => None,
        Err(Refusal::Elsewhere(why)) if !holds => Some(Outcome::HeldElsewhere { why }),
        Err(Refusal::Never(why) | Refusal::Elsewhere(why)) => {
            if holds {
                warn!(%node, %driver, volume = id.text(), why, "a node says that it has what cannot be its own");
            }
            Some(Outcome::NotNow { why })
        }
        Err(Refusal::Full) => {
            full();
            Some(Outcome::NotNow {
                why: format!("node {node} has {MOST} volumes, and no more can be its own"),
            })
        }
    }
}

/// Whether a volume can be a node's at all.
fn may_be(
    txn: &Txn<'_>,
    scope: Option<Scope>,
    (driver, id): (&DriverName, &Id),
    node: &NodeName,
    said: &Said,
) -> Result<(), Refusal> {
    let never = |why: String| Err(Refusal::Never(why));
    let Some(at) = txn.at(driver, node) else {
        return never(format!("node {node} never had driver {driver}"));
    };
    if let Said::Hold { epoch, .. } = said
        && *epoch > txn.epoch().max(LAST)
    {
        return never(format!("{epoch} was never given to anybody"));
    }
    // What was given to it stays so, whatever has been learned since; and who has it is told to whoever asks.
    let owner = txn.lease(driver, id).and_then(|own| own.holder.as_ref());
    if owner.is_some_and(|owner| owner.node == *node || matches!(said, Said::Ask { .. })) {
        return Ok(());
    }
    if let Some(home) = txn.home(driver, id).filter(|home| !home.lost) {
        if scope == Some(Scope::Node) && home.node != *node && !reaches(home, at) {
            return Err(Refusal::Elsewhere(format!(
                "it lives at node {}, and driver {driver} is of scope \"node\"; if other nodes can have its volumes too, \
                 give it scope \"shared\" in csi-cloud's configuration",
                home.node
            )));
        }
        let direct =
            home.parameters.as_ref().is_some_and(|ours| ours.contains_key(csi::direct::KEY));
        // At home it may be made direct by its PersistentVolume's attributes: nobody else could want it.
        if home.name.is_some() && !direct && scope != Some(Scope::Node) {
            return never(format!(
                "it was made as an ordinary volume, which other nodes may have mounted: its class has no {}",
                csi::direct::KEY
            ));
        }
    }
    if txn.state().held_by(node) >= MOST { Err(Refusal::Full) } else { Ok(()) }
}

/// Whether a driver says that a volume can be had at a node which is not its home: in the same zone, for example.
fn reaches(home: &Home, at: &NodeDriver) -> bool {
    let entry = csi::list_volumes_response::Entry::decode(home.entry.clone()).unwrap_or_default();
    let places = entry.volume.unwrap_or_default().accessible_topology;
    let places = places.into_iter().map(|place| place.segments.into_iter().collect::<Segments>());
    places.filter(|segments| !segments.is_empty()).any(|segments| at.is_at(&segments))
}

fn answer(
    (store, links): (&Store, &Links),
    node: &NodeName,
    (driver, id): (&DriverName, &Id),
    verdict: Verdict,
    news: bool,
) -> Outcome {
    let whose = |own: &LeaseRecord| whose(driver, id, own, store, links);
    match verdict {
        Verdict::Held(epoch) => {
            if news {
                info!(%node, %driver, volume = id.text(), epoch, "a volume is the node's");
            }
            Outcome::Held { epoch }
        }
        Verdict::Done => Outcome::Released,
        Verdict::HeldElsewhere(own) => Outcome::HeldElsewhere { why: whose(&own) },
        Verdict::Fenced(owner) => {
            warn!(%node, %driver, volume = id.text(), "a node says that it has what was taken from it");
            let why = match owner {
                None => "it was taken from this node, and is nobody's now".into(),
                owner => {
                    let own = LeaseRecord { holder: owner, ..LeaseRecord::default() };
                    format!("it was taken from this node; now {}", whose(&own))
                }
            };
            Outcome::Fenced { why }
        }
    }
}
