//! Questions to all nodes, each asked once for all callers.
//!
//! A provisioner gives up after 10 s and calls again. Among thousands of nodes that would begin
//! everything anew each time. So an inquiry outlives its callers, and the next one finds the nodes'
//! answers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use proto::http2::forward::Answer;
use proto::names::NodeName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::nodes::handle::Handle;
use crate::nodes::links::Links;
use crate::nodes::question::{InquirySubject, NodeQuestion, Said};

/// The time for which an inquiry goes on after its last caller came.
const LIFE: Duration = Duration::from_secs(300);
/// The time for which the answers of an inquiry that has ended are kept.
const KEPT: Duration = Duration::from_secs(60);
/// Inquiries of one driver that run at once.
const MAX_RUNNING: usize = 256;
/// Nodes that are asked at once: at the start, and while they answer within [`QUICK`].
const NARROW: usize = 64;
const WIDE: usize = 1024;
const QUICK: Duration = Duration::from_secs(1);

type InquiryEnd = watch::Receiver<Option<Instant>>;

/// The inquiries of one driver. A clone has the same.
#[derive(Clone)]
pub struct Inquiries {
    by_subject: Arc<Mutex<HashMap<InquirySubject, Inquiry>>>,
    tasks: Tasks,
}

/// An inquiry that runs, or has ended lately.
struct Inquiry {
    round: Arc<Mutex<Round>>,
    /// The time of its end without further callers.
    life: Arc<Mutex<Instant>>,
    /// The time of its end; its sender is gone if it was stopped.
    ended: InquiryEnd,
}

/// The nodes' answers.
#[derive(Default)]
pub(super) struct Round {
    said: HashMap<NodeName, Said>,
    /// The nodes that were asked and did not say, and over which link; `None` without one.
    silent: HashMap<NodeName, Option<Weak<Handle>>>,
    /// The answer of the first node that deleted it.
    pub(super) deleted: Option<Answer>,
}

impl Inquiries {
    /// Inquiries run as tasks of this group.
    pub fn new(tasks: Tasks) -> Self {
        Self { by_subject: Arc::default(), tasks }
    }

    /// Asks all nodes that may have the id, or joins whoever does. Nodes that answered lately are
    /// not asked again.
    ///
    /// # Errors
    /// Too many inquiries run.
    pub(super) async fn run(&self, question: NodeQuestion) -> Result<Arc<Mutex<Round>>, Error> {
        let (round, mut ended) = self.join(question)?;
        // An error says that it was stopped: then the nodes that are left were not asked.
        let _ = ended.wait_for(Option::is_some).await;
        Ok(round)
    }

    fn join(&self, question: NodeQuestion) -> Result<(Arc<Mutex<Round>>, InquiryEnd), Error> {
        let subject = question.subject();
        let now = Instant::now();
        let mut all = self.lock();
        all.retain(|_, inquiry| inquiry.is_running() || inquiry.is_kept(now));
        if let Some(inquiry) = all.get(&subject).filter(|inquiry| inquiry.is_running()) {
            *inquiry.life.lock() = now + LIFE;
            return Ok((inquiry.round.clone(), inquiry.ended.clone()));
        }
        if all.values().filter(|inquiry| inquiry.is_running()).count() >= MAX_RUNNING {
            return Err(Error::Full(MAX_RUNNING));
        }
        let round = all.remove(&subject).map(|inquiry| inquiry.round).unwrap_or_default();
        round.lock().begin_again();
        let life = Arc::new(Mutex::new(now + LIFE));
        let (end, ended) = watch::channel(None);
        let inquiry = Inquiry { round: round.clone(), life: life.clone(), ended: ended.clone() };
        all.insert(subject, inquiry);
        drop(all);
        let asked = round.clone();
        self.tasks.spawn_until_stop("inquiry", async move {
            tokio::select! {
                biased;
                () = ask_all(&question, &asked) => {}
                () = over(&life) => {}
            }
            end.send_replace(Some(Instant::now()));
        });
        Ok((round, ended))
    }

    /// Forgets the answers of an inquiry that has ended: a caller has its outcome.
    pub(super) fn forget(&self, subject: &InquirySubject) {
        let mut all = self.lock();
        if all.get(subject).is_some_and(|inquiry| !inquiry.is_running()) {
            all.remove(subject);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InquirySubject, Inquiry>> {
        self.by_subject.lock()
    }
}

impl Inquiry {
    fn is_running(&self) -> bool {
        self.ended.borrow().is_none() && self.ended.has_changed().is_ok()
    }

    fn is_kept(&self, now: Instant) -> bool {
        self.ended.borrow().is_some_and(|ended| now.saturating_duration_since(ended) < KEPT)
    }
}

impl Round {
    /// Keeps only answers that a node need not give again.
    fn begin_again(&mut self) {
        self.silent.clear();
        self.said.retain(|_, said| !matches!(said, Said::Refused(_)));
    }

    /// The answer of a node; `None` if it gave none.
    pub(super) fn said(&self, node: &NodeName) -> Option<&Said> {
        self.said.get(node)
    }

    /// True if a node was asked and did not say, though it had a link.
    pub(super) fn is_mute(&self, node: &NodeName) -> bool {
        self.silent.get(node).is_some_and(Option::is_some)
    }

    /// True if a node was asked. One that was away and has a link now was not.
    pub(super) fn was_asked(&self, node: &NodeName, links: &Links) -> bool {
        if self.said.contains_key(node) {
            return true;
        }
        let Some(asked) = self.silent.get(node) else { return false };
        let asked = asked.as_ref().map_or(std::ptr::null(), Weak::as_ptr);
        links.now(node).is_none_or(|link| std::ptr::eq(Arc::as_ptr(&link), asked))
    }

    fn note(&mut self, node: NodeName, link: Option<Weak<Handle>>, said: Option<Said>) {
        match said {
            Some(Said::Deleted(answer)) => {
                self.deleted.get_or_insert(answer);
                self.said.insert(node, Said::Lacks);
            }
            Some(said) => {
                self.said.insert(node, said);
            }
            None => {
                self.silent.insert(node, link);
            }
        }
    }
}

/// Asks until each candidate was asked. Nodes that link meanwhile are candidates too.
async fn ask_all(question: &NodeQuestion, round: &Mutex<Round>) {
    let links = question.queries.links();
    let mut width = Width::default();
    loop {
        // The last step finds all asked, in one reading of the store.
        let Ok(mut nodes) = question.candidates() else { return };
        nodes.retain(|node| !round.lock().was_asked(node, links));
        if nodes.is_empty() {
            return;
        }
        let mut nodes = nodes.into_iter();
        let mut asking = FuturesUnordered::new();
        loop {
            let room = width.now.saturating_sub(asking.len());
            asking.extend(nodes.by_ref().take(room).map(|node| ask(question, round, node)));
            let Some(took) = asking.next().await else { break };
            width.note(took);
        }
    }
}

/// Asks one node. Returns how long that took; `None` if it had no link or did not say.
async fn ask(question: &NodeQuestion, round: &Mutex<Round>, node: NodeName) -> Option<Duration> {
    let begun = Instant::now();
    let link = question.queries.links().now(&node).map(|link| Arc::downgrade(&link));
    let said = match &link {
        Some(_) => question.put(&node).await,
        None => None,
    };
    let took = said.is_some().then(|| begun.elapsed());
    round.lock().note(node, link, said);
    took
}

/// Ends when nobody has come for so long.
async fn over(life: &Mutex<Instant>) {
    loop {
        let end = *life.lock();
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

/// The number of nodes that are asked at once.
struct Width {
    now: usize,
    /// Quick answers since it last changed.
    quick: usize,
}

impl Default for Width {
    fn default() -> Self {
        Self { now: NARROW, quick: 0 }
    }
}

impl Width {
    fn note(&mut self, took: Option<Duration>) {
        match took {
            Some(took) if took <= QUICK => self.quick += 1,
            Some(_) => *self = Self { now: (self.now / 2).max(NARROW), quick: 0 },
            // One that is away says nothing about the others.
            None => {}
        }
        if self.quick >= self.now {
            *self = Self { now: (self.now * 2).min(WIDE), quick: 0 };
        }
    }
}
