//! Lists over all nodes of a driver whose volumes live at their nodes. The nodes are asked for what they have, what
//! is new is kept, and then the page is answered from the store: so a node that is away or slow is in it with what
//! was last known of it, and a page that follows is right whatever happened in between.
//!
//! A list is whole or an error: an entry that is left out is taken for gone, and its volume attached once more.

use crate::error::Error;
use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::forward::{Answer, Body};
use proto::names::NodeName;
use tonic::Code;
use tracing::warn;

use super::faults::{negative, unreadable};
use super::health::{self, HealthList};
use super::kind::{Kind, Page, Secrets, Wanted};
use super::refresh::{Asked, Outcome, Refresher};
use super::whole::Whole;
use super::{page, token};
use crate::csi::questions::{Answer as Pending, Questions, end, wait};
use crate::csi::request::IncomingCall;
use crate::nodes::query::NodeQueries;
use crate::state::node_names::names;
use crate::state::store::writer::Store;

/// The lists of one driver.
pub struct Lists {
    pub(super) refresher: Refresher,
    pub(super) questions: Questions<Asked, Outcome>,
}

/// A list that the driver's only node answers by itself, as it comes.
pub(crate) struct Only {
    /// The node.
    pub(crate) node: NodeName,
    whole: Option<(Kind, u64)>,
}

impl Lists {
    /// The lists of the driver that this asks. Nodes are asked by tasks of this group.
    pub fn new(asker: NodeQueries, store: Store, tasks: Tasks) -> Self {
        Self { refresher: Refresher::new(asker, store), questions: Questions::new(tasks) }
    }

    /// Answers a list of all nodes.
    ///
    /// # Errors
    /// The request is none, or a node that must be asked could not be.
    pub(crate) async fn list(&self, call: &IncomingCall) -> Result<Response<Body>, Error> {
        let answer = match call.method.lists().and_then(Kind::of) {
            Some(kind) => self.things(kind, call).await?,
            None => {
                let asker = &self.refresher.asker;
                HealthList { asker, nodes: self.nodes() }.page(call).await?
            }
        };
        Ok(Answer::of(frame::frame(&answer)).response())
    }

    async fn things(&self, kind: Kind, call: &IncomingCall) -> Result<Vec<u8>, Error> {
        let method = kind.method();
        let wanted =
            Wanted::read(kind, &call.message).map_err(|error| unreadable(method, error))?;
        let most = usize::try_from(wanted.most).map_err(|_| negative(method))?;
        let after = match wanted.token.as_str() {
            "" => None,
            token => Some(token::read(kind.letter(), token).ok_or(Error::BadToken)?),
        };
        if after.is_none() {
            self.refresh(kind, wanted.secrets, call).await?;
        }
        let Refresher { asker, store, .. } = &self.refresher;
        Ok(store
            .read(|state| page::page(state.driver(&asker.driver), kind, after.as_deref(), most)))
    }

    /// Asks all linked nodes, and waits a little. Slow ones are asked on, for the next time.
    async fn refresh(
        &self,
        kind: Kind,
        secrets: Secrets,
        call: &IncomingCall,
    ) -> Result<(), Error> {
        let links = self.refresher.asker.links();
        let (linked, away): (Vec<_>, Vec<_>) =
            self.nodes().into_iter().partition(|node| links.now(node).is_some());
        let (end, mut unanswered, mut why) = (end(call.deadline), away, None);
        let asked: Vec<_> =
            linked.into_iter().map(|node| (self.ask(&node, kind, &secrets), node)).collect();
        for (answer, node) in asked {
            match wait(answer, end).await {
                Some(Ok(_)) => {}
                Some(Err(error)) if error.code() == Code::Unimplemented => {
                    let driver = self.refresher.asker.driver.clone();
                    return Err(Error::NotImplemented { driver, method: kind.method().name() });
                }
                Some(Err(error)) => {
                    why.get_or_insert_with(|| chain(&*error));
                    unanswered.push(node);
                }
                None => {
                    call.running.was_slow();
                    unanswered.push(node);
                }
            }
        }
        self.all_known(kind, unanswered, why)
    }

    /// Whether each of these nodes was listed before, so that what it has is known.
    fn all_known(
        &self,
        kind: Kind,
        nodes: Vec<NodeName>,
        why: Option<String>,
    ) -> Result<(), Error> {
        let Refresher { asker, store, .. } = &self.refresher;
        let is_unknown = |node: &NodeName| {
            let at = store.read(|state| state.driver(&asker.driver)?.at(node).cloned());
            let at = at.unwrap_or_default();
            let lists =
                || kind.is_listed(&at) || !at.has_spoken() || asker.links().now(node).is_some();
            !self.refresher.is_known(node, kind, &at) && lists()
        };
        let mut unknown: Vec<_> = nodes.into_iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        unknown.sort();
        let why =
            why.unwrap_or_else(|| "they are away, or slow, and were never listed before".into());
        Err(Error::NotListed { driver: asker.driver.clone(), nodes: names(&unknown), why })
    }

    pub(super) fn ask(&self, node: &NodeName, kind: Kind, secrets: &Secrets) -> Pending<Outcome> {
        let asked = Asked { node: node.clone(), kind, secrets: secrets.clone() };
        let (refresher, question) = (self.refresher.clone(), asked.clone());
        self.questions.ask(asked, move || refresher.refresh(question))
    }

    /// The nodes that have the driver and were not removed, by name.
    pub(crate) fn nodes(&self) -> Vec<NodeName> {
        let Refresher { asker, store, .. } = &self.refresher;
        store.read(|state| {
            let nodes = state.driver(&asker.driver).map(|driver| driver.nodes().keys());
            nodes.into_iter().flatten().filter(|node| !state.is_removed(node)).cloned().collect()
        })
    }

    /// The driver's only node, if it has a link and there is nothing to merge or to add: the call is passed on then,
    /// and every byte is the driver's. Not if the caller is in the middle of a list of ours.
    pub(crate) fn only(&self, call: &IncomingCall) -> Option<Only> {
        let Refresher { asker, store, .. } = &self.refresher;
        let node = store.read(|state| {
            let driver = state.driver(&asker.driver).filter(|driver| !driver.has_our_topology())?;
            let mut nodes = driver.nodes().keys();
            nodes.next().filter(|_| nodes.next().is_none()).cloned()
        })?;
        asker.links().now(&node)?;
        let Some(kind) = call.method.lists().and_then(Kind::of) else {
            return (!health::is_continued(&call.message)).then_some(Only { node, whole: None });
        };
        let wanted = Wanted::read(kind, &call.message).ok();
        let token = wanted.as_ref().map_or("", |wanted| &wanted.token);
        if token::read(kind.letter(), token).is_some() {
            return None;
        }
        let whole = wanted
            .filter(|wanted| wanted.token.is_empty())
            .map(|_| (kind, self.refresher.changes()));
        Some(Only { node, whole })
    }

    /// Learns of an (unframed) answer that the only node gave. One of several pages is asked for again, whole, and so is
    /// one that is older than a call about what it names.
    pub(crate) async fn heard(&self, only: Only, answer: &Bytes) {
        let (Some((kind, since)), Some(page)) = (only.whole, Page::read(answer)) else { return };
        let node = &only.node;
        if !page.next.is_empty() {
            return drop(self.ask(node, kind, &Secrets::new()));
        }
        let kept = match self.refresher.things(node, kind, &page) {
            Ok(things) => self.refresher.keep(node, Whole { kind, since, things }).await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(true) => {}
            Ok(false) => drop(self.ask(node, kind, &Secrets::new())),
            Err(error) => {
                let driver = &self.refresher.asker.driver;
                warn!(%node, %driver, error = chain(&error), "what a node listed is not kept");
            }
        }
    }
}
