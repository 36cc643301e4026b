//! Keeps a link to the cloud by the best endpoint there is.
//!
//! A certificate that is replaced is shown on a new link, which replaces the one in use. While the
//! endpoint in use is not the preferred one, that is tried again. A cloud that is going
//! away is left for another.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge_calls::executor::Replaced;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::program;
use proto::host::tasks::Tasks;
use proto::link::LinkError;
use proto::link::tls::Credentials;
use rand::RngExt;
use rand::rngs::StdRng;
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backoff::STABLE;
use super::dial::{Dial, Linked};
use super::endpoints::{Aim, Endpoints, Found};
use super::serve;
use super::serve::{LinkEvent, Use};

/// The delay between two attempts at a preferred endpoint grows to this many times the first.
const RETURN_GROWTH: u32 = 10;

/// The link in use.
struct Current {
    endpoint: usize,
    since: Instant,
    events: mpsc::Receiver<LinkEvent>,
    /// Told to stop, the link says goodbye, finishes its calls and ends.
    tasks: Tasks,
    /// Set when a newer link replaces this one: later messages on it are out of date.
    replaced: Replaced,
    /// The cloud said that it goes away.
    leaving: bool,
    /// The certificate that the link was dialed with, or an older one.
    shown: Option<CertificateDer<'static>>,
    /// There is a newer certificate.
    outdated: bool,
    return_after: Duration,
}

impl Dial {
    /// Keeps a link until told to stop. The link then ends in a task of `tasks`, its calls
    /// finished. Delays are drawn with `dice`, which differ from edge to edge.
    pub async fn keep(self, mut dice: StdRng, tasks: Tasks) {
        let dial = Arc::new(self);
        let mut endpoints = Endpoints::new(&dial.cloud, &mut dice);
        let mut current: Option<Current> = None;
        loop {
            let aim = current.as_ref().map_or(Aim::Any, |current| current.aim(&mut dice));
            let shown = dial.credentials.certificate();
            let in_use = current.as_ref().filter(|current| !current.outdated);
            let in_use = in_use.map(|current| current.shown.clone());
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                event = next(&mut current) => match event {
                    LinkEvent::Leave => {
                        current.iter_mut().for_each(|current| current.leaving = true);
                    }
                    LinkEvent::BackoffCap(cap) => endpoints.cap(cap),
                    LinkEvent::Ended(reason) => {
                        dial.linked.send_replace(None);
                        ended(current.take(), &reason, &mut endpoints);
                    }
                },
                () = outdated(&dial.credentials, in_use) => {
                    current.iter_mut().for_each(|current| current.outdated = true);
                }
                found = endpoints.find(&dial, &aim) => match found {
                    Some(found) => {
                        let newer = begin(&dial, found, shown, &mut endpoints, &tasks);
                        if let Some(older) = current.replace(newer) {
                            older.let_go();
                        }
                    }
                    None => {
                        let first = dial.return_after;
                        current.iter_mut().for_each(|current| current.wait_longer(first));
                    }
                },
            }
        }
    }
}

fn begin(
    dial: &Arc<Dial>,
    found: Found,
    shown: Option<CertificateDer<'static>>,
    endpoints: &mut Endpoints,
    tasks: &Tasks,
) -> Current {
    let Found { endpoint, greeted } = found;
    endpoints.cap(greeted.backoff_cap);
    let name = endpoints.name(endpoint);
    peer_info!(LogPeer::Cloud, cloud = %name, node = %dial.node, "linked");
    program::tell(format_args!("linked {name} as {}", dial.node));
    dial.linked.send_replace(Some(Linked { cloud: name.clone(), since: Instant::now() }));
    let (sender, events) = mpsc::channel(8);
    let link_tasks = tasks.child();
    let replaced = Replaced::default();
    let link = Use { events: sender, tasks: link_tasks.clone(), replaced: replaced.clone() };
    tasks.spawn("link", serve::run(dial.clone(), greeted, link));
    Current {
        endpoint,
        since: Instant::now(),
        events,
        tasks: link_tasks,
        replaced,
        leaving: false,
        shown,
        outdated: false,
        return_after: dial.return_after,
    }
}

fn ended(current: Option<Current>, reason: &LinkError, endpoints: &mut Endpoints) {
    let Some(ended) = current else { return };
    // A cloud that goes away in order has not failed.
    let stable = ended.leaving || ended.since.elapsed() >= STABLE;
    let delay = endpoints.ended(ended.endpoint, stable);
    let cloud = endpoints.name(ended.endpoint);
    peer_warn!(LogPeer::Cloud, %cloud, reason = %chain(reason), ?delay, "no link; dialing again");
}

/// Ends when there is a newer certificate than the one that the link in use has shown; never
/// without such a link.
async fn outdated(credentials: &Credentials, shown: Option<Option<CertificateDer<'static>>>) {
    match shown {
        Some(shown) => credentials.renewed(shown.as_ref()).await,
        None => std::future::pending().await,
    }
}

/// The next event of the link in use; never one without a link.
async fn next(current: &mut Option<Current>) -> LinkEvent {
    match current {
        Some(current) => current.events.recv().await.unwrap_or_else(|| {
            // The task tells how it ended before it goes, so this is for a task that crashed.
            LinkEvent::Ended(LinkError::Closed("its task is gone".into()))
        }),
        None => std::future::pending().await,
    }
}

impl Current {
    fn aim(&self, dice: &mut StdRng) -> Aim {
        match self.endpoint {
            endpoint if self.leaving => Aim::Elsewhere { than: endpoint },
            _ if self.outdated => Aim::Any,
            0 => Aim::Nothing,
            endpoint => {
                let after = self.return_after.mul_f64(dice.random_range(0.5..1.5));
                Aim::Better { than: endpoint, after }
            }
        }
    }

    fn wait_longer(&mut self, first: Duration) {
        self.return_after = (self.return_after * 2).min(first * RETURN_GROWTH);
    }

    /// Lets a replaced link go. A cloud that goes away closes it itself, after its last calls; any
    /// other cloud is told to send no more.
    fn let_go(self) {
        if !self.leaving {
            self.replaced.store(true, Ordering::Relaxed);
            self.tasks.stop();
        }
    }
}
