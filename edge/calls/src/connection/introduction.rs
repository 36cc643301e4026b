//! What a driver says of itself at one of its sockets: each answer is known, not served there, or
//! not known yet. It uses `questions`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use prost::Message;
use proto::control::hello::Protobuf;
use proto::csi;
use proto::csi::frame;
use proto::csi::plugin_capability::{self, service::Type};
use proto::csi::{Capabilities, Local, Method};
use proto::host::chain;
use proto::http2::forward::Upstream;
use tokio::time::timeout;
use tonic::Code;

use super::questions::{BoxError, answers_with, ask};
use crate::introductions::may_stand_for;

/// What decides which controllers a plugin is asked for.
const PLUGIN: Local = Local::Capabilities(Capabilities::Plugin);
/// How long a driver may take for each answer about itself: as long as a kubelet waits.
pub(super) const ANSWER: Duration = Duration::from_secs(120);

/// A driver's answers, by RPC.
pub(crate) type Answers = BTreeMap<String, Protobuf>;

/// The services that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// All of them.
    All,
    /// Identity and Node.
    Node,
    /// Identity, Controller, GroupController and SnapshotMetadata.
    Controller,
}

impl Serves {
    /// True if its answer counts for the driver.
    fn answers(self, local: Local) -> bool {
        let of_node = match local {
            Local::Info => return true,
            Local::Probe => return false,
            Local::NodeInfo | Local::Capabilities(Capabilities::Node) => true,
            Local::Capabilities(
                Capabilities::Plugin | Capabilities::Controller | Capabilities::Group,
            ) => false,
        };
        match self {
            Self::All => true,
            Self::Node => of_node,
            Self::Controller => !of_node,
        }
    }
}

/// What a driver has said of itself at one of its sockets, and what it has yet to say.
#[derive(Clone)]
pub(crate) struct Introduction {
    /// Its answers. What it does not implement, or does not serve at this socket, is left out.
    pub(crate) answers: Answers,
    missing: Vec<OpenQuestion>,
}

/// An RPC to which this process has given no answer yet.
#[derive(Clone)]
struct OpenQuestion {
    method: Method,
    local: Local,
    why: String,
    /// An earlier process's answer may stand for it.
    is_passing: bool,
}

impl Introduction {
    /// Nothing but the answer to GetPluginInfo.
    pub(super) fn begun(serves: Serves, info: Option<&Bytes>) -> Self {
        let name = Method::answering(Local::Info).name();
        let answers = info.map(|info| (name.to_owned(), Protobuf(info.clone())));
        let answers: Answers = answers.into_iter().collect();
        let missing = Method::ALL.iter().filter_map(|method| {
            let local = method.local().filter(|local| serves.answers(*local))?;
            let why = "it was not asked yet".to_owned();
            Some(OpenQuestion { method: *method, local, why, is_passing: false })
        });
        let missing = missing.filter(|missing| !answers.contains_key(missing.method.name()));
        Self { missing: missing.collect(), answers }
    }

    /// Asks the driver for what is missing, and reports after each answer. Each may take as long as
    /// a kubelet would wait. They are asked for at the same time, except the controllers'
    /// capabilities: a plugin that has no controller is not asked for them.
    pub(super) async fn complete(
        &mut self,
        upstream: &Upstream,
        mut on_answer: impl FnMut(&mut Self),
    ) {
        let ask = |method| async move { (method, said(upstream, method).await) };
        let (now, mut later): (Vec<_>, Vec<_>) =
            self.missing.iter().map(|of| of.method).partition(|method| !is_controllers(*method));
        let mut asked: FuturesUnordered<_> = now.into_iter().map(ask).collect();
        loop {
            let is_plugin_known = !self.missing.iter().any(|of| of.local == PLUGIN);
            if is_plugin_known || asked.is_empty() {
                for method in later.drain(..) {
                    match says_that_it_has(&self.answers, method) {
                        true => asked.push(ask(method)),
                        false => self.missing.retain(|of| of.method != method),
                    }
                }
            }
            let Some((method, said)) = asked.next().await else { return };
            self.take(method, said);
            on_answer(self);
        }
    }

    fn take(&mut self, method: Method, said: Result<Option<Bytes>, Unsaid>) {
        let name = method.name();
        match said {
            Ok(answer) => {
                self.missing.retain(|of| of.method != method);
                match answer {
                    Some(answer) => drop(self.answers.insert(name.into(), Protobuf(answer))),
                    None => drop(self.answers.remove(name)),
                }
            }
            Err(Unsaid { why, is_passing }) => {
                if !is_passing {
                    // What an earlier process said does not stand against this word.
                    self.answers.remove(name);
                }
                if let Some(of) = self.missing.iter_mut().find(|of| of.method == method) {
                    (of.why, of.is_passing) = (why, is_passing);
                }
            }
        }
    }

    /// Uses an earlier process's answer to NodeGetInfo where that of this one may be expected
    /// later. Returns whether it does so from now on.
    pub(super) fn stand_in(&mut self, earlier: impl FnOnce() -> Option<Bytes>) -> bool {
        let name = Method::answering(Local::NodeInfo).name();
        let mut missing = self.missing.iter();
        let is_needed = missing.any(|of| of.local == Local::NodeInfo && of.is_passing)
            && !self.answers.contains_key(name);
        let earlier = is_needed.then(earlier).flatten();
        let stands_in = earlier.is_some();
        self.answers.extend(earlier.map(|answer| (name.to_owned(), Protobuf(answer))));
        stands_in
    }

    /// Asks for NodeGetInfo once more, and returns whether the answer is another one. A failure
    /// changes nothing.
    pub(super) async fn renew_node_info(&mut self, upstream: &Upstream) -> bool {
        let method = Method::answering(Local::NodeInfo);
        let Ok(Some(answer)) = said(upstream, method).await else { return false };
        let before = self.answers.insert(method.name().to_owned(), Protobuf(answer.clone()));
        before.is_none_or(|before| before.0 != answer)
    }

    /// True if this process need not be asked again.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// True if all of it is known, be it from an earlier process.
    pub(crate) fn is_whole(&self) -> bool {
        self.why_unknown().is_none()
    }

    /// Why something is not known yet.
    pub(super) fn why_unknown(&self) -> Option<&str> {
        let mut unknown = self.missing.iter();
        let unknown = unknown.find(|of| !self.answers.contains_key(of.method.name()));
        unknown.map(|of| of.why.as_str())
    }

    /// The answer to this RPC, empty if the driver does not have it; none if that is not known yet.
    pub(crate) fn known(&self, local: Local) -> Option<&[u8]> {
        match self.answers.get(Method::answering(local).name()) {
            Some(Protobuf(answer)) => Some(answer),
            None if self.missing.iter().any(|of| of.local == local) => None,
            None => Some(&[]),
        }
    }
}

/// Why a driver has not said something.
struct Unsaid {
    why: String,
    is_passing: bool,
}

impl Unsaid {
    fn other(error: impl Into<BoxError>) -> Self {
        Self { why: chain(error.into().as_ref()), is_passing: false }
    }
}

/// The driver's answer to this RPC; none if it does not implement it. The cloud keeps answers for
/// good, so no other error is taken for one: the driver may be just starting.
async fn said(upstream: &Upstream, method: Method) -> Result<Option<Bytes>, Unsaid> {
    let Ok(answer) = timeout(ANSWER, ask(upstream, method)).await else {
        let why = format!("it does not answer {method} within {ANSWER:?}");
        return Err(Unsaid { why, is_passing: may_stand_for(Code::DeadlineExceeded) });
    };
    let answer = answer.map_err(Unsaid::other)?;
    if let Some(body) = answer.ok() {
        return frame::message(body).map(Some).map_err(Unsaid::other);
    }
    match answer.failure() {
        Some(status) if status.code() != Code::Unimplemented => {
            let said = answers_with(method, &status);
            let why = format!("{said}, so what it can do is not known");
            Err(Unsaid { why, is_passing: may_stand_for(status.code()) })
        }
        Some(_) | None => Ok(None),
    }
}

/// True for the capabilities of a controller, for which not each plugin is asked.
fn is_controllers(method: Method) -> bool {
    service_of(method).is_some()
}

/// The service whose capabilities an RPC asks for.
fn service_of(method: Method) -> Option<Type> {
    match method.local()? {
        Local::Capabilities(Capabilities::Controller) => Some(Type::ControllerService),
        Local::Capabilities(Capabilities::Group) => Some(Type::GroupControllerService),
        Local::Capabilities(Capabilities::Plugin | Capabilities::Node)
        | Local::Info
        | Local::Probe
        | Local::NodeInfo => None,
    }
}

/// False if a plugin says that it has no service of this kind. Some end at a call of one.
fn says_that_it_has(answers: &Answers, method: Method) -> bool {
    let Some(service) = service_of(method) else { return true };
    let said = answers.get(Method::answering(PLUGIN).name()).map(|Protobuf(said)| said.clone());
    let said = said.and_then(|said| csi::GetPluginCapabilitiesResponse::decode(said).ok());
    // Who does not say it may have any.
    let Some(said) = said else { return true };
    let has = |capability: csi::PluginCapability| match capability.r#type {
        Some(plugin_capability::Type::Service(said)) => said.r#type == i32::from(service),
        Some(plugin_capability::Type::VolumeExpansion(_)) | None => false,
    };
    said.capabilities.into_iter().any(has)
}
