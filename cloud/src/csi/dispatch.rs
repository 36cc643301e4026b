//! Carries a plan out: sends the call to its node, and keeps what came of it before the caller is told.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Response;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::rpc::{Id, Key, Learn, Rpc};
use proto::csi::wire::Malformed;
use proto::error::Error;
use proto::http2::forward::{Answer, Body};
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tracing::warn;

use crate::csi::capacity::Capacities;
use crate::csi::front::Came;
use crate::csi::lists::Lists;
use crate::csi::route::Plan;
use crate::lease::step;
use crate::nodes::discover::Finder;
use crate::nodes::in_doubt::Unsettled;
use crate::nodes::node_call::{HOLD, Passage};
use crate::nodes::query::Asker;
use crate::rewrite::direct;
use crate::rewrite::message;
use crate::state::clock;
use crate::state::create_journal::{Asked, Create, Creates};
use crate::state::ingest;
use crate::state::list_entry;
use crate::state::policy::Scope;
use crate::state::record::text;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;

/// What a plan is carried out with.
pub(crate) struct Carrier<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) asker: &'a Asker,
    pub(crate) store: &'a Store,
    pub(crate) creates: &'a Creates,
    pub(crate) lists: &'a Lists,
    pub(crate) capacities: &'a Capacities,
    pub(crate) unsettled: &'a Unsettled,
    pub(crate) scope: Scope,
}

impl Carrier<'_> {
    pub(crate) async fn carry(&self, plan: Plan, came: &mut Came) -> Result<Response<Body>, Error> {
        let name = match &came.key {
            Key::Place { name, .. } | Key::Cut { name, .. } if !name.is_empty() => {
                Some(Id::Name(came.rpc.method, name.clone()))
            }
            _ => None,
        };
        self.is_settled(&plan, came)?;
        if let (Learn::Gone, Key::End(id @ Id::Volume(_))) = (came.rpc.learn, &came.key) {
            step::may_be_deleted(self.store, self.asker.links(), self.driver, id)?;
        }
        match (plan, name) {
            (Plan::Make(nodes), Some(name)) => self.make(&name, nodes, came).await,
            (Plan::Node(node), Some(name)) => self.make_again(&name, node, came).await,
            (Plan::Node(node), None) if came.rpc.streaming => {
                self.passage(&node, came).stream(&came.call).await
            }
            (Plan::Node(node), None) => self.at(&node, came).await,
            (Plan::Everywhere, _) => self.everywhere(came).await,
            (Plan::All, _) => self.list(came).await,
            (Plan::Capacity(nodes), _) => self.capacities.sum(nodes, came).await,
            // The others are answered without a node.
            _ => Err(Error::NodeOnly(came.rpc.method)),
        }
    }

    /// A shared driver's call waits until what was sent elsewhere, and not answered, cannot begin there any more.
    fn is_settled(&self, plan: &Plan, came: &Came) -> Result<(), Error> {
        if self.scope == Scope::Node {
            return Ok(());
        }
        let node = match plan {
            Plan::Node(node) => node,
            Plan::Make(nodes) => nodes.first().ok_or(Error::NodeOnly(came.rpc.method))?,
            _ => return Ok(()),
        };
        let elsewhere = self.unsettled.elsewhere(&came.rpc.subjects(&came.key), node);
        elsewhere.map_or(Ok(()), |(at, time)| {
            let seconds = time.as_secs() + 1;
            let why = format!(
                "another one about the same was sent to {at} and may begin there for {seconds} s more"
            );
            Err(Error::NoRoute { driver: self.driver.clone(), why })
        })
    }

    /// Sends a call and waits for its answer.
    async fn send(&self, node: &NodeName, came: &mut Came) -> Result<Answer, Error> {
        let about = if self.scope == Scope::Shared { came.rpc.subjects(&came.key) } else { Vec::new() };
        let sent = self.unsettled.send(about, node.clone(), came.deadline);
        let answer = self.passage(node, came).unary(&mut came.call).await?;
        sent.answered();
        Ok(answer)
    }

    fn passage<'a>(&'a self, node: &'a NodeName, came: &Came) -> Passage<'a> {
        let (links, driver, authority) = (&**self.asker.links(), self.driver, self.asker.authority());
        let (deadline, call) = (came.deadline, Some(came.running.clone()));
        Passage { links, driver, authority, node, rpc: came.rpc, deadline, call }
    }

    /// A create that may be sent to one of these nodes.
    async fn make(&self, name: &Id, nodes: Vec<NodeName>, came: &mut Came) -> Result<Response<Body>, Error> {
        let asked = asked(came)?;
        let create = self.creates.begin(name);
        let node = create.intend(nodes, &asked, self.scope == Scope::Shared).await?;
        self.create(create, node, asked, came).await
    }

    /// A create that was sent before.
    async fn make_again(&self, name: &Id, node: NodeName, came: &mut Came) -> Result<Response<Body>, Error> {
        let asked = asked(came)?;
        self.create(self.creates.begin(name), node, asked, came).await
    }

    async fn create(
        &self,
        create: Create<'_>,
        node: NodeName,
        asked: Asked,
        came: &mut Came,
    ) -> Result<Response<Body>, Error> {
        let rpc = came.rpc;
        // A shared driver's volumes are accessible as the driver says.
        let at = self.store.read(|state| state.driver(self.driver)?.at(&node).cloned());
        let at = at.filter(|_| self.scope == Scope::Node);
        let (request, _) =
            message::out_of(rpc.method, &came.message, at.as_ref()).map_err(|e| malformed(rpc, e))?;
        if request != came.message {
            came.call.body = frame::frame(&request);
        }
        let answer = self.send(&node, came).await?;
        if let Some(status) = answer.failure() {
            create.refused(status.code()).await;
            return Ok(answer.response());
        }
        let bad = |why| Error::BadAnswer {
            driver: self.driver.clone(),
            node: node.clone(),
            method: rpc.method,
            why,
        };
        let message = message(&answer).ok_or_else(|| bad("with what cannot be read"))?;
        let made = match rpc.learn {
            Learn::Made(read) => read(&message).ok(),
            _ => None,
        };
        let made = made.ok_or_else(|| bad("with what cannot be read"))?;
        if made.first().is_none_or(|made| text(&made.id).is_empty()) {
            return Err(bad("without an id of what it made"));
        }
        if let Some((size, asked_for)) = other_size(rpc, &came.message, &message) {
            let driver = self.driver;
            warn!(%driver, %node, size, asked_for, "the driver made a volume of another size than was asked for");
        }
        let class = asked.parameters.clone().unwrap_or_default();
        create.made(&node, made, asked, self.scope == Scope::Shared).await?;
        let shown = message::into(rpc.method, &message, &node, at.as_ref());
        let mut shown = shown.map_err(|_| bad("with what cannot be read"))?;
        if class.contains_key(csi::direct::KEY) {
            shown = csi::direct::into_created_volume(&shown, &class).into();
        }
        Ok(if shown == message { answer } else { answer.with(frame::frame(&shown)) }.response())
    }

    async fn at(&self, node: &NodeName, came: &mut Came) -> Result<Response<Body>, Error> {
        let direct = direct::of_volume(came.rpc.method, &came.message, || self.class(&came.key))?;
        self.to_one_owner(came, direct.is_some()).await?;
        if let Some(request) = &direct {
            came.call.body = frame::frame(request);
        }
        let mut answer = self.send(node, came).await?;
        if let Some(message) = message(&answer)
            && direct.is_some()
            && came.rpc.method == "ValidateVolumeCapabilities"
        {
            let shown = direct::validated(came.rpc.method, &came.message, &message)?;
            answer = answer.with(frame::frame(&shown));
        }
        if let Some(message) = message(&answer) {
            self.learn(came.rpc, &came.key, &came.message, &message).await?;
        }
        Ok(answer.response())
    }

    /// A direct volume is attached to its owner only, or to who becomes that; so is one that is not asked for as one, while
    /// it has an owner.
    async fn to_one_owner(&self, came: &Came, direct: bool) -> Result<(), Error> {
        let (Learn::Attached(node), Key::Home(id)) = (came.rpc.learn, &came.key) else { return Ok(()) };
        if !direct && !step::is_had(self.store, self.driver, id) {
            return Ok(());
        }
        let node = node(&came.message).map_err(|e| malformed(came.rpc, e.into()))?;
        step::attaching(self.store, self.asker.links(), (self.driver, id), &node, direct).await
    }

    /// What of its class is ours, if the volume was made here.
    fn class(&self, key: &Key) -> BTreeMap<String, String> {
        let Key::Home(id) = key else { return BTreeMap::new() };
        let class = self.store.read(|state| state.driver(self.driver)?.home(id)?.parameters.clone());
        class.map(|class| *class).unwrap_or_default()
    }

    async fn list(&self, came: &mut Came) -> Result<Response<Body>, Error> {
        let Some(only) = self.lists.only(came) else { return self.lists.list(came).await };
        let answer = self.passage(&only.node, came).unary(&mut came.call).await?;
        if let Some(message) = message(&answer) {
            self.lists.heard(only, &message).await;
        }
        Ok(answer.response())
    }

    async fn everywhere(&self, came: &Came) -> Result<Response<Body>, Error> {
        let Key::End(id) = &came.key else { return Err(Error::NodeOnly(came.rpc.method)) };
        let finder = Finder { asker: self.asker, store: self.store, deadline: came.deadline };
        let answer = finder.end(came.rpc, id, &came.call).await?;
        if let Some(message) = message(&answer) {
            self.learn(came.rpc, &came.key, &came.message, &message).await?;
        }
        Ok(answer.response())
    }

    /// Keeps what an answer of OK teaches.
    async fn learn(&self, rpc: &Rpc, key: &Key, request: &[u8], answer: &Bytes) -> Result<(), Error> {
        let (Key::Home(id) | Key::End(id)) = key else { return Ok(()) };
        let (store, driver) = (self.store, self.driver);
        let kept = match rpc.learn {
            Learn::Nothing | Learn::Made(_) => return Ok(()),
            Learn::Gone => ingest::gone(store, driver, id).await,
            Learn::Attached(node) => match node(request) {
                Ok(node) => {
                    ingest::changed(store, driver, id, move |old| list_entry::attach(old, &node)).await
                }
                Err(_) => return Ok(()),
            },
            Learn::Detached(node) => match node(request) {
                Ok(node) => {
                    step::detached(store, driver, id, node.clone()).await.map_err(not_durable)?;
                    ingest::changed(store, driver, id, move |old| list_entry::detach(old, &node)).await
                }
                Err(_) => return Ok(()),
            },
            Learn::Resized(size) => match size(answer) {
                Ok(size) => {
                    ingest::changed(store, driver, id, move |old| list_entry::resize(old, size)).await
                }
                Err(_) => return Ok(()),
            },
        };
        match (kept, rpc.learn) {
            (Ok(()), _) => Ok(()),
            // A home that stays costs nothing but a delete more.
            (Err(error), Learn::Gone) => {
                warn!(%driver, error = proto::error::chain(&error), "what is gone is not forgotten");
                Ok(())
            }
            (Err(source), _) => Err(not_durable(source)),
        }
    }
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}

fn message(answer: &Answer) -> Option<Bytes> {
    frame::message(answer.ok()?).ok()
}

/// What is kept of a create's request.
fn asked(came: &Came) -> Result<Asked, Error> {
    let left = came.deadline.map_or(HOLD, |deadline| deadline.saturating_duration_since(Instant::now()));
    let (_, ours) =
        message::out_of(came.rpc.method, &came.message, None).map_err(|e| malformed(came.rpc, e))?;
    direct::check_create(&came.message, &ours.parameters)?;
    let parameters = Some(ours.parameters).filter(|ours| !ours.is_empty()).map(Box::new);
    Ok(Asked { until: clock::after(left), claim: ours.claim, parameters })
}

/// A volume's size that is not within what was asked for, and that. It is passed on: external-provisioner deletes such
/// a volume and says so.
fn other_size(rpc: &Rpc, request: &Bytes, answer: &Bytes) -> Option<(i64, String)> {
    if rpc.method != "CreateVolume" {
        return None;
    }
    let range = csi::CreateVolumeRequest::decode(request.clone()).ok()?.capacity_range?;
    // CSI: "If this field is 0, the capacity is unknown"; a limit of 0 is none.
    let size = csi::CreateVolumeResponse::decode(answer.clone()).ok()?.volume?.capacity_bytes;
    let fits = size >= range.required_bytes && (range.limit_bytes == 0 || size <= range.limit_bytes);
    (size != 0 && !fits).then(|| (size, format!("{}..{}", range.required_bytes, range.limit_bytes)))
}

fn malformed(rpc: &Rpc, source: Malformed) -> Error {
    Error::BadRequest { method: rpc.method, source: source.into() }
}
