//! What a driver says of itself at one of its sockets. It uses `questions`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use proto::control::hello::Protobuf;
use proto::csi;
use proto::csi::frame;
use proto::csi::plugin_capability::{self, service::Type};
use proto::csi::{Capabilities, Local, Method};
use proto::http2::forward::Upstream;
use tokio::time::timeout;
use tonic::Code;

use super::questions::{BoxError, answers_with, ask};

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

/// Collects the driver's answers to the RPCs with a value in column `local`, except Probe, for
/// this socket's services. Each may take as long as a kubelet would wait. `info` is its answer to
/// GetPluginInfo, which it has given already.
///
/// # Errors
/// It does not answer, or with an error other than UNIMPLEMENTED.
pub(super) async fn ask_all(
    upstream: &Upstream,
    serves: Serves,
    info: Option<&Bytes>,
) -> Result<Answers, BoxError> {
    let known = Method::answering(Local::Info).name();
    let known = info.map(|info| (known.to_owned(), Protobuf(info.clone())));
    let mut answers: Answers = known.into_iter().collect();
    for method in Method::ALL.iter().copied() {
        let asks = |local| serves.answers(local) && says_that_it_has(&answers, local);
        if answers.contains_key(method.name()) || !method.local().is_some_and(asks) {
            continue;
        }
        let late = |_| format!("it does not answer {method} within {ANSWER:?}");
        let answer = timeout(ANSWER, ask(upstream, method)).await.map_err(late)??;
        match (answer.ok(), answer.failure()) {
            (Some(body), _) => {
                answers.insert(method.name().into(), Protobuf(frame::message(body)?));
            }
            (None, Some(status)) if status.code() != Code::Unimplemented => {
                // The driver may be just starting. The cloud keeps answers for good, so an
                // error is not taken for one.
                let said = answers_with(method, &status);
                return Err(format!("{said}, so what it can do is not known").into());
            }
            // It does not have the method.
            (None, _) => {}
        }
    }
    Ok(answers)
}

/// False if a plugin says that it has no service of this kind. Some end at a call of one.
fn says_that_it_has(answers: &Answers, local: Local) -> bool {
    let service = match local {
        Local::Capabilities(Capabilities::Controller) => Type::ControllerService,
        Local::Capabilities(Capabilities::Group) => Type::GroupControllerService,
        Local::Capabilities(Capabilities::Plugin | Capabilities::Node)
        | Local::Info
        | Local::Probe
        | Local::NodeInfo => return true,
    };
    let method = Method::answering(Local::Capabilities(Capabilities::Plugin));
    let said = answers.get(method.name()).map(|Protobuf(said)| said.clone());
    let said = said.and_then(|said| csi::GetPluginCapabilitiesResponse::decode(said).ok());
    // Who does not say it may have any.
    let Some(said) = said else { return true };
    let has = |capability: csi::PluginCapability| match capability.r#type {
        Some(plugin_capability::Type::Service(said)) => said.r#type == i32::from(service),
        Some(plugin_capability::Type::VolumeExpansion(_)) | None => false,
    };
    said.capabilities.into_iter().any(has)
}
