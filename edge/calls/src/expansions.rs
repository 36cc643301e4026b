//! Expands volumes on this node in the place of a kubelet that cannot (`node_expansion = "edge"`).
//!
//! The node's half follows the controller's, if the volume is staged here; else it is owed, and the
//! next NodeStageVolume does it. An owed growth is durable before the cloud is answered, and is
//! forgotten after the driver's OK only. `driver_calls` calls the driver. It may use `scopes`,
//! `node_volumes`, `error`, `operation`, `runs` and `drivers`.

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
use proto::csi::{DirectCall, Id, Key, Method, NodeStep, frame};
use proto::http2::call_id::CallId;
use proto::http2::forward::{Answer, Call};
use proto::names::DriverName;
use tonic::Code;
use tracing::{info, warn};

use crate::drivers;
use crate::drivers::Driver;
use crate::error::{Error, GuardRefusal};
use crate::node_volumes::{Growth, NodeVolume, NodeVolumes, Places};
use crate::operation::Operation;
use crate::runs::CallResult;
use crate::scopes::Scopes;

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
    /// The call begins a growth that was not noted before.
    is_first: bool,
}

/// The node's half of an expansion, which is due after a call.
pub(crate) struct NodeHalf {
    volume: Id,
    path: String,
    bytes: i64,
    message: Bytes,
}

/// The result of the node's half.
enum Outcome {
    Done,
    /// The driver can never do it, or not as long as the volume is used.
    Refused(String),
    /// The volume is busy at this node.
    Busy(String),
    /// It may be done the next time.
    Open(String),
}

impl NodeHalf {
    /// The operation of its NodeExpandVolume.
    pub(crate) fn operation(&self) -> Operation {
        let key = Key::Node(Some(self.volume.clone()));
        let body = frame::frame(&self.message);
        Operation::new(Method::NodeExpandVolume, &key, &self.message, body)
    }

    /// The call of its NodeExpandVolume.
    pub(crate) fn call(&self) -> Call {
        let path = PathAndQuery::from_static(Method::NodeExpandVolume.path());
        Call { headers: drivers::headers(), path, body: frame::frame(&self.message) }
    }
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
        let expansions = self.clone();
        let tracked = Tracked { id: None, expansions, volume_id, step, is_first: false };
        Ok(concerned.then_some(tracked))
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

    /// The id of its call, for the log.
    pub(crate) fn id(&self) -> Option<&CallId> {
        self.id.as_ref()
    }

    /// True if the call is the controller's half of an expansion.
    pub(crate) fn is_growth(&self) -> bool {
        matches!(self.step, Step::Grow(_))
    }

    /// True if the volume is still at the path of its node's half.
    pub(crate) fn is_at(&self, driver: &Driver, half: &NodeHalf) -> bool {
        // Those of a direct volume are known elsewhere.
        let is_direct = matches!(self.step, Step::PutDirect(_));
        is_direct || self.volumes().of(&driver.name, &self.volume_id).places.have(&half.path)
    }

    fn volumes(&self) -> &NodeVolumes {
        &self.expansions.volumes
    }

    /// Notes that the call goes to its driver.
    ///
    /// # Errors
    /// [`Error::NotNoted`]; the call may not go then.
    pub(crate) async fn begin(&mut self, driver: &Driver) -> Result<(), Error> {
        if !self.is_growth() {
            return Ok(());
        }
        let mut is_first = false;
        let begin = |volume: &mut NodeVolume| {
            is_first = volume.growth.is_none();
            volume.growth.get_or_insert(Growth::Begun);
        };
        self.owe(driver, begin).await?;
        self.is_first = is_first;
        Ok(())
    }

    /// Notes the driver's answer. Returns the caller's, and the node's half that is due after it.
    ///
    /// # Errors
    /// The call's own; or it cannot be noted.
    pub(crate) async fn note(
        &self,
        driver: &Driver,
        answered: Result<Answer, Error>,
    ) -> Result<(Answer, Option<NodeHalf>), Error> {
        if let Step::Grow(bytes) = self.step {
            return self.note_growth(driver, answered, bytes).await;
        }
        let answer = answered?;
        let half = match answer.ok() {
            Some(_) => self.note_step(driver).await,
            None => None,
        };
        Ok((answer, half))
    }

    /// Notes the answer to the controller's half.
    async fn note_growth(
        &self,
        driver: &Driver,
        answered: Result<Answer, Error>,
        requested: i64,
    ) -> Result<(Answer, Option<NodeHalf>), Error> {
        if self.is_first && was_not_begun(&answered) {
            self.forget_begin(driver).await;
            return answered.map(|answer| (answer, None));
        }
        let answer = answered?;
        let Some(message) = answer.message() else { return Ok((answer, None)) };
        let unreadable = || self.not_grown(driver, "the driver's answer cannot be read".into());
        let said = csi::ControllerExpandVolumeResponse::decode(message.clone());
        let said = said.map_err(|_| unreadable())?;
        // An attempt whose answer was lost may have had the driver's only word for it.
        if !said.node_expansion_required && self.is_first {
            self.forget_begin(driver).await;
            return Ok((answer, None));
        }
        let said_bytes = said.capacity_bytes.max(requested);
        let mut known = None;
        let due = |volume: &mut NodeVolume| {
            let bytes = said_bytes.max(volume.due().unwrap_or_default());
            volume.growth = Some(Growth::Due { bytes });
            known = Some((volume.places.clone(), bytes));
        };
        self.owe(driver, due).await?;
        let half = known.and_then(|(places, bytes)| self.half(driver, &places, bytes));
        let edited = without_node_half(&message).map_err(|_| unreadable())?;
        Ok((answer.with(frame::frame(&edited)), half))
    }

    /// The node's half of a growth to this size, if the volume is at a path here.
    fn half(&self, driver: &Driver, places: &Places, bytes: i64) -> Option<NodeHalf> {
        let volume = &self.volume_id;
        let Some(path) = places.path() else {
            info!(
                driver = %driver.name, volume, bytes,
                "has grown, and is not staged here; it grows on this node when it is"
            );
            return None;
        };
        let range = csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume.clone(),
            volume_path: path.to_owned(),
            // CSI: without a range the plugin takes the size that the volume has.
            capacity_range: (bytes > 0).then_some(range),
            staging_target_path: places.staging.clone(),
            ..Default::default()
        };
        let mut message = request.encode_to_vec();
        if let Some(Base64(capability)) = &places.capability {
            wire::append(&mut message, &[EXPANDED_CAPABILITY], capability);
        }
        let path = path.to_owned();
        let volume = Id::Volume(volume.clone());
        Some(NodeHalf { volume, path, bytes, message: message.into() })
    }

    /// Notes a call that was answered OK. Returns the owed growth of a volume that it put there.
    async fn note_step(&self, driver: &Driver) -> Option<NodeHalf> {
        match &self.step {
            // It has its own way.
            Step::Grow(_) => None,
            Step::Put(places) => {
                let put = |volume: &mut NodeVolume| volume.places.put(places);
                self.known(driver, put).await;
                self.owed_half(driver, places)
            }
            Step::PutDirect(places) => self.owed_half(driver, places),
            Step::Unpublish(target) => {
                let gone = |volume: &mut NodeVolume| {
                    volume.places.targets.remove(target);
                };
                self.known(driver, gone).await;
                None
            }
            Step::Unstage => {
                self.known(driver, |volume| volume.places = Places::default()).await;
                None
            }
            Step::Expand(bytes) => {
                self.forget_growth(driver, *bytes).await;
                None
            }
            Step::Delete => {
                let gone = |volume: &mut NodeVolume| {
                    volume.places = Places::default();
                    volume.growth = None;
                };
                self.known(driver, gone).await;
                None
            }
        }
    }

    fn owed_half(&self, driver: &Driver, places: &Places) -> Option<NodeHalf> {
        let owed = self.volumes().of(&driver.name, &self.volume_id).due()?;
        self.half(driver, places, owed)
    }

    /// Notes how the node's half ended. A volume that was just staged or published is used with its
    /// old size if its driver cannot grow it, or if it is busy; the latter stays owed.
    ///
    /// # Errors
    /// [`Error::NotGrownHere`].
    pub(crate) async fn end(
        &self,
        driver: &Driver,
        half: &NodeHalf,
        outcome: CallResult,
    ) -> Result<(), Error> {
        let why = match outcome_of(outcome) {
            Outcome::Done => {
                self.forget_growth(driver, half.bytes).await;
                return Ok(());
            }
            // The controller's half is done, so no code may say that nothing was.
            Outcome::Open(why) => return Err(self.not_grown(driver, why)),
            Outcome::Refused(why) | Outcome::Busy(why) => why,
        };
        if self.is_growth() {
            return Err(self.not_grown(driver, why));
        }
        let volume = &self.volume_id;
        warn!(
            driver = %driver.name, volume, why,
            "has grown, but not on this node; it is used with its old size"
        );
        Ok(())
    }

    /// Forgets an owed growth that is done to this size; 0 is the size that the volume has.
    async fn forget_growth(&self, driver: &Driver, bytes: i64) {
        let mut is_done = false;
        let grown = |volume: &mut NodeVolume| {
            is_done = volume.due().is_some_and(|due| due <= bytes);
            if is_done {
                volume.growth = None;
            }
        };
        self.known(driver, grown).await;
        if is_done {
            info!(driver = %driver.name, volume = self.volume_id, "has grown on this node");
        }
    }

    /// Forgets a growth that was begun, and did nothing.
    async fn forget_begin(&self, driver: &Driver) {
        let nothing = |volume: &mut NodeVolume| {
            if volume.growth == Some(Growth::Begun) {
                volume.growth = None;
            }
        };
        self.known(driver, nothing).await;
    }

    /// Changes what is known of the volume here.
    async fn known(&self, driver: &Driver, change: impl FnOnce(&mut NodeVolume)) {
        self.volumes().note(&driver.name, &self.volume_id, change).await;
    }

    /// Changes durably what the volume's node owes.
    async fn owe(
        &self,
        driver: &Driver,
        change: impl FnOnce(&mut NodeVolume),
    ) -> Result<(), Error> {
        let kept = self.volumes().change(&driver.name, &self.volume_id, change).await;
        let volume = self.volume_id.clone();
        kept.map_err(|error| Error::NotNoted { volume, why: error.to_string() })
    }

    fn not_grown(&self, driver: &Driver, why: String) -> Error {
        let volume = self.volume_id.clone();
        Error::NotGrownHere { at: driver.at(), volume, why }
    }
}

/// What the outcome of a NodeExpandVolume says.
fn outcome_of(outcome: CallResult) -> Outcome {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) if error.code() == Code::Aborted => return Outcome::Busy(error.chain()),
        Err(error) => return Outcome::Open(error.chain()),
    };
    let Some(status) = answer.failure() else { return Outcome::Done };
    let why = format!("{:?}, {}", status.code(), status.message());
    match status.code() {
        // It has nothing to do on a node.
        Code::Unimplemented => Outcome::Done,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound | Code::FailedPrecondition => {
            Outcome::Refused(why)
        }
        _ => Outcome::Open(why),
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
