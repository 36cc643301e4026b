//! Expands volumes on this node in the place of a kubelet that cannot (`node_expansion = "edge"`).
//!
//! The node's half follows the controller's in the same run, if the volume is staged here; else it
//! is owed, and the next NodeStageVolume does it. An owed growth is durable before the cloud is
//! answered, and is forgotten after the driver's OK only. Secrets are not known here. It may use
//! `scopes`, `node_volumes`, `error`, `validity` and `drivers`.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use proto::control::base64::Base64;
use proto::csi;
use proto::csi::status::{BadRequest, ToStatus, is_nothing_done};
use proto::csi::topology::Scope;
use proto::csi::wire;
use proto::csi::{DirectCall, Method, NodeStep, frame};
use proto::http2::call_id::CallId;
use proto::http2::forward::{Answer, Call};
use proto::names::DriverName;
use tonic::Code;
use tracing::{Instrument, info, info_span, warn};

use crate::drivers;
use crate::drivers::Driver;
use crate::error::{Error, GuardRefusal};
use crate::node_volumes::{Growth, NodeVolume, NodeVolumes, Places};
use crate::scopes::Scopes;
use crate::validity::Validity;

/// The caller of NodeExpandVolume after ControllerExpandVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeExpansion {
    /// The kubelet.
    #[default]
    Kubelet,
    /// csi-edge, for a kubelet that cannot.
    Edge,
}

/// Whether a volume is a direct one, which its runtime grows.
pub type IsDirect = Box<dyn Fn(&DriverName, &str) -> Result<bool, GuardRefusal> + Send + Sync>;

/// The expansions of volumes on this node.
pub struct Expansions {
    by: NodeExpansion,
    volumes: NodeVolumes,
    scopes: Arc<Scopes>,
    is_direct: IsDirect,
}

/// The sender of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The cloud, over a link.
    Cloud,
    /// A caller of the node's own front.
    Node,
    /// csi-edge itself, for a direct volume.
    Own,
}

/// The effect of a call on growth.
enum Step {
    /// It begins one, to this many bytes.
    Grow(i64),
    /// It stages or publishes the volume there.
    Put(Places),
    /// The same for a direct volume, whose places are kept elsewhere.
    PutDirect(Places),
    /// It unpublishes the volume there.
    Unpublish(String),
    /// It unstages the volume.
    Unstage,
    /// It is the node's half of an expansion to this many bytes.
    Expand(i64),
    /// It deletes the volume.
    Delete,
}

/// A call that changes the record of a volume here.
pub(crate) struct Tracked {
    /// The id of the call, for the log.
    id: Option<CallId>,
    expansions: Arc<Expansions>,
    volume_id: String,
    step: Step,
}

/// The result of a driver's NodeExpandVolume, if it ended.
enum Outcome {
    Done,
    /// The driver can never do it, or not as long as the volume is used.
    Refused(String),
    /// It may do it the next time.
    Open(String),
}

impl Expansions {
    /// The expansions of a node with this state directory; none if there is nothing to do. `boot`
    /// is the id of this boot, and empty if it is not known.
    pub fn open(
        by: NodeExpansion,
        state: &Path,
        boot: &str,
        scopes: Arc<Scopes>,
        is_direct: IsDirect,
    ) -> Option<Self> {
        let volumes = NodeVolumes::open(state, boot);
        // What was owed before the setting was changed is still done.
        if by == NodeExpansion::Kubelet && volumes.is_empty() {
            return None;
        }
        volumes.growing().iter().for_each(NodeVolume::log_growth);
        Some(Self { by, volumes, scopes, is_direct })
    }

    /// The volumes whose expansion has begun, and has not ended on this node.
    pub fn growing(&self) -> Vec<NodeVolume> {
        self.volumes.growing()
    }

    /// The effect of a call on growth, if there is one.
    ///
    /// # Errors
    /// The call is not carried out, because a record cannot be read or written.
    pub(crate) fn track(
        self: &Arc<Self>,
        driver: &Driver,
        caller: Caller,
        method: Method,
        message: &Bytes,
    ) -> Result<Option<Tracked>, Error> {
        let scope = self.scopes.of(&driver.name);
        if scope == Some(Scope::Shared) {
            return Ok(None);
        }
        let read = step(caller, method, message);
        let read = read.map_err(|source| Error::BadRequest { method: method.name(), source })?;
        let Some((volume_id, step)) = read else { return Ok(None) };
        let concerned = match &step {
            Step::Grow(_) => self.grows(driver, &volume_id, scope)?,
            Step::Put(_)
            | Step::PutDirect(_)
            | Step::Unpublish(_)
            | Step::Unstage
            | Step::Expand(_)
            | Step::Delete => {
                self.by == NodeExpansion::Edge
                    || self.volumes.of(&driver.name, &volume_id).growth.is_some()
            }
        };
        Ok(concerned.then(|| Tracked { id: None, expansions: self.clone(), volume_id, step }))
    }

    /// Whether the node's half of an expansion is done here.
    fn grows(&self, driver: &Driver, volume: &str, scope: Option<Scope>) -> Result<bool, Error> {
        if self.by == NodeExpansion::Kubelet || driver.expands_on_node() == Some(false) {
            return Ok(false);
        }
        if scope.is_none() {
            return Err(Error::ScopeUnknown { at: driver.at() });
        }
        if (self.is_direct)(&driver.name, volume)? {
            return Ok(false);
        }
        let unknown = |why| Error::NotNoted { volume: volume.to_owned(), why };
        self.volumes.check().map_err(unknown)?;
        Ok(true)
    }
}

impl Tracked {
    /// The same with the id of its call.
    pub(crate) fn of_call(self, id: Option<CallId>) -> Self {
        Self { id, ..self }
    }

    /// True if the call waits for an expansion of its volume that runs already.
    pub(crate) fn joins(&self) -> bool {
        matches!(self.step, Step::Expand(_))
    }

    /// Sends the call to its driver, and carries out its effect.
    ///
    /// # Errors
    /// The driver's, or the effect fails.
    pub(crate) async fn carry_out(
        self,
        driver: &Driver,
        call: &Call,
        validity: &Validity,
    ) -> Result<Answer, Error> {
        let span = info_span!("call", call = self.id.map(display));
        self.do_both(driver, call, validity).instrument(span).await
    }

    async fn do_both(
        &self,
        driver: &Driver,
        call: &Call,
        validity: &Validity,
    ) -> Result<Answer, Error> {
        if let Step::Grow(bytes) = self.step {
            return self.grow(driver, call, validity, bytes).await;
        }
        let answer = driver.connection(call.path.path()).exchange(call, validity).await?;
        if answer.ok().is_some() {
            self.follow(driver).await?;
        }
        Ok(answer)
    }

    fn volumes(&self) -> &NodeVolumes {
        &self.expansions.volumes
    }

    fn known(&self, driver: &Driver) -> NodeVolume {
        self.volumes().of(&driver.name, &self.volume_id)
    }

    /// Both halves of an expansion.
    async fn grow(
        &self,
        driver: &Driver,
        call: &Call,
        validity: &Validity,
        requested: i64,
    ) -> Result<Answer, Error> {
        let before = self.known(driver);
        if before.growth.is_none() {
            self.owe(driver, Some(Growth::Begun)).await?;
        }
        let answered = driver.connection(call.path.path()).exchange(call, validity).await;
        if before.growth.is_none() && was_not_begun(&answered) {
            self.volumes().note(before).await;
            return answered;
        }
        let answer = answered?;
        let Some(message) = answer.message() else { return Ok(answer) };
        let unreadable = || self.not_grown(driver, "the driver's answer cannot be read".into());
        let said = csi::ControllerExpandVolumeResponse::decode(message.clone());
        let said = said.map_err(|_| unreadable())?;
        // An attempt whose answer was lost may have had the driver's only word for it.
        if !said.node_expansion_required && before.growth.is_none() {
            self.volumes().note(before).await;
            return Ok(answer);
        }
        let bytes = said.capacity_bytes.max(requested).max(before.due().unwrap_or_default());
        self.owe(driver, Some(Growth::Due { bytes })).await?;
        self.grow_here(driver, bytes).await?;
        let edited = without_node_half(&message).map_err(|_| unreadable())?;
        Ok(answer.with(frame::frame(&edited)))
    }

    /// The node's half, if the volume is staged here; else it stays owed.
    async fn grow_here(&self, driver: &Driver, bytes: i64) -> Result<(), Error> {
        let known = self.known(driver);
        let volume = &self.volume_id;
        if known.places.path().is_none() {
            info!(
                driver = %driver.name, volume, bytes,
                "has grown, and is not staged here; it grows on this node when it is"
            );
            return Ok(());
        }
        match self.expand(driver, &known.places, bytes).await {
            Outcome::Done => {
                self.forget_growth(driver).await;
                Ok(())
            }
            // The controller's half is done, so no code may say that nothing was.
            Outcome::Refused(why) | Outcome::Open(why) => Err(self.not_grown(driver, why)),
        }
    }

    /// Carries out the effect of a call that was answered OK.
    async fn follow(&self, driver: &Driver) -> Result<(), Error> {
        let mut known = self.known(driver);
        match &self.step {
            // It has its own way.
            Step::Grow(_) => {}
            Step::Put(places) => {
                known.places.targets.extend(places.targets.iter().cloned());
                known.places.capability.clone_from(&places.capability);
                if !places.staging.is_empty() {
                    known.places.staging.clone_from(&places.staging);
                }
                let places = known.places.clone();
                self.volumes().note(known).await;
                self.catch_up(driver, &places).await?;
            }
            Step::PutDirect(places) => self.catch_up(driver, places).await?,
            Step::Unpublish(target) => {
                known.places.targets.remove(target);
                self.volumes().note(known).await;
            }
            Step::Unstage => {
                known.places = Places::default();
                self.volumes().note(known).await;
            }
            Step::Expand(bytes) => {
                if known.due().is_some_and(|due| due <= *bytes) {
                    self.forget_growth(driver).await;
                }
            }
            Step::Delete => {
                let places = Places::default();
                self.volumes().note(NodeVolume { places, growth: None, ..known }).await;
            }
        }
        Ok(())
    }

    /// Does the owed growth of a volume that was just staged or published. A driver that cannot
    /// does not keep a pod from its data.
    async fn catch_up(&self, driver: &Driver, places: &Places) -> Result<(), Error> {
        let Some(bytes) = self.known(driver).due() else { return Ok(()) };
        match self.expand(driver, places, bytes).await {
            Outcome::Done => self.forget_growth(driver).await,
            Outcome::Refused(why) => {
                let volume = &self.volume_id;
                warn!(
                    driver = %driver.name, volume, why,
                    "has grown, but not on this node; it is used with its old size"
                );
            }
            Outcome::Open(why) => return Err(self.not_grown(driver, why)),
        }
        Ok(())
    }

    async fn forget_growth(&self, driver: &Driver) {
        let volume = &self.volume_id;
        info!(driver = %driver.name, volume, "has grown on this node");
        self.volumes().note(NodeVolume { growth: None, ..self.known(driver) }).await;
    }

    async fn owe(&self, driver: &Driver, growth: Option<Growth>) -> Result<(), Error> {
        let kept = self.volumes().change(NodeVolume { growth, ..self.known(driver) }).await;
        let volume = self.volume_id.clone();
        kept.map_err(|error| Error::NotNoted { volume, why: error.to_string() })
    }

    fn not_grown(&self, driver: &Driver, why: String) -> Error {
        let volume = self.volume_id.clone();
        Error::NotGrownHere { at: driver.at(), volume, why }
    }

    /// Has the driver do the node's half.
    async fn expand(&self, driver: &Driver, places: &Places, bytes: i64) -> Outcome {
        let range = csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
        let request = csi::NodeExpandVolumeRequest {
            volume_id: self.volume_id.clone(),
            volume_path: places.path().unwrap_or_default().to_owned(),
            // CSI: without a range the plugin takes the size that the volume has.
            capacity_range: (bytes > 0).then_some(range),
            staging_target_path: places.staging.clone(),
            ..Default::default()
        };
        let mut message = request.encode_to_vec();
        if let Some(Base64(capability)) = &places.capability {
            wire::append(&mut message, &[EXPANDED_CAPABILITY], capability);
        }
        let path = PathAndQuery::from_static(Method::NodeExpandVolume.path());
        let call = Call { headers: drivers::headers(), path, body: frame::frame(&message) };
        let answer =
            match driver.connection(call.path.path()).exchange(&call, &Validity::default()).await {
                Ok(answer) => answer,
                Err(error) => return Outcome::Open(error.chain()),
            };
        let Some(status) = answer.failure() else { return Outcome::Done };
        let why = format!("{:?}, {}", status.code(), status.message());
        match status.code() {
            // It has nothing to do on a node.
            Code::Unimplemented => Outcome::Done,
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::NotFound
            | Code::FailedPrecondition => Outcome::Refused(why),
            _ => Outcome::Open(why),
        }
    }
}

/// The capability's field in NodeExpandVolumeRequest.
const EXPANDED_CAPABILITY: u32 = 5;
/// `node_expansion_required` in ControllerExpandVolumeResponse.
const NODE_HALF: u32 = 2;

/// The volume of a call, and the call's effect on growth.
fn step(
    caller: Caller,
    method: Method,
    message: &Bytes,
) -> Result<Option<(String, Step)>, BadRequest> {
    let Some(direct) = method.direct() else { return Ok(None) };
    let message = message.clone();
    let node = match direct {
        DirectCall::Expand if caller == Caller::Cloud => {
            let request = csi::ControllerExpandVolumeRequest::decode(message)?;
            let bytes = request.capacity_range.unwrap_or_default().required_bytes;
            return Ok(Some((request.volume_id, Step::Grow(bytes))));
        }
        DirectCall::Delete if caller != Caller::Own => {
            let request = csi::DeleteVolumeRequest::decode(message)?;
            return Ok(Some((request.volume_id, Step::Delete)));
        }
        DirectCall::Node(node) if caller != Caller::Cloud => node,
        DirectCall::Create
        | DirectCall::Capacity
        | DirectCall::Attach
        | DirectCall::Validate
        | DirectCall::Expand
        | DirectCall::Delete
        | DirectCall::Node(_) => return Ok(None),
    };
    let capability = capability(method, &message)?;
    let (volume_id, step) = match node {
        NodeStep::Stage => {
            let request = csi::NodeStageVolumeRequest::decode(message)?;
            let staging = request.staging_target_path;
            (request.volume_id, put(caller, Places { staging, capability, ..Places::default() }))
        }
        NodeStep::Publish => {
            let request = csi::NodePublishVolumeRequest::decode(message)?;
            let staging = request.staging_target_path;
            let targets = [request.target_path].into();
            (request.volume_id, put(caller, Places { staging, targets, capability }))
        }
        NodeStep::Unpublish => {
            let request = csi::NodeUnpublishVolumeRequest::decode(message)?;
            (request.volume_id, Step::Unpublish(request.target_path))
        }
        NodeStep::Unstage => {
            let request = csi::NodeUnstageVolumeRequest::decode(message)?;
            (request.volume_id, Step::Unstage)
        }
        NodeStep::Expand => {
            let request = csi::NodeExpandVolumeRequest::decode(message)?;
            let bytes = request.capacity_range.unwrap_or_default().required_bytes;
            (request.volume_id, Step::Expand(bytes))
        }
        NodeStep::Stats | NodeStep::Health => return Ok(None),
    };
    // What is done to a direct volume is known elsewhere.
    let counts = caller == Caller::Node || matches!(step, Step::PutDirect(_) | Step::Expand(_));
    Ok(counts.then_some((volume_id, step)))
}

fn put(caller: Caller, places: Places) -> Step {
    if caller == Caller::Own { Step::PutDirect(places) } else { Step::Put(places) }
}

/// The capability in a request, byte for byte.
fn capability(method: Method, message: &[u8]) -> Result<Option<Base64>, wire::Malformed> {
    let Some(places) = method.places() else { return Ok(None) };
    let mut capability = None;
    for field in wire::fields(message) {
        let field = field?;
        if field.number == places.capability {
            capability = field.content.map(|content| Base64(Bytes::copy_from_slice(content)));
        }
    }
    Ok(capability)
}

/// The answer to ControllerExpandVolume without a demand for the node's half.
fn without_node_half(message: &[u8]) -> Result<Vec<u8>, wire::Malformed> {
    let mut edited = Vec::with_capacity(message.len());
    for field in wire::fields(message) {
        let field = field?;
        if field.number != NODE_HALF {
            edited.extend_from_slice(field.raw);
        }
    }
    Ok(edited)
}

/// True if the controller's half surely did not begin, or the driver says that it did nothing.
fn was_not_begun(answered: &Result<Answer, Error>) -> bool {
    let status = match answered {
        Ok(answer) => answer.failure(),
        Err(error) => return error.is_not_dispatched(),
    };
    status.is_some_and(|status| is_nothing_done(status.code()))
}

#[cfg(test)]
mod tests;
