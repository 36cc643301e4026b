//! Volumes that are handed to a VM runtime instead of being mounted on this host: `docs/direct-volumes.md`.
//!
//! The driver is asked for a block device, at a path of ours; it is formatted if it is blank, and never mounted here;
//! the runtime finds it by the contract's file. One thing at a time is done with a volume, and it is done to its end
//! whether or not its caller waits.

use std::collections::HashSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use proto::csi;
use proto::csi::frame;
use proto::csi::rpc;
use proto::csi::rpc::Rpc;
use proto::error::{BadRequest, Error};
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, CALL_ID, Call};
use proto::names::DriverName;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use crate::calls::{Calls, Came};
use crate::share::Outcome;

pub mod alone;
mod asked;
mod block;
pub mod cdi;
pub mod cli;
pub mod device;
pub mod format;
pub mod journal;
pub mod look;
pub mod mount_info;
pub mod nri;
mod options;
pub mod own;
mod place;
pub mod probe;
mod publish;
pub mod published;
mod reconcile;
pub mod runtime;
mod spdk;
pub mod staged;
mod standing;
mod tool;
mod unpublish;
mod vfio;

pub(crate) use asked::may_be_deleted;
use asked::{Direction, Work};
use device::Host;
use mount_info::Root;
use runtime::{Roots, Runtimes};

/// Where direct volumes are kept and handed over.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The directory of what may not be forgotten; without one no volume is handed over.
    pub state: Option<PathBuf>,
    /// The kernel's files.
    pub host: Host,
    /// Where runtimes look for volumes, and have their sandboxes.
    pub roots: Roots,
}

/// The node's calls, of which those for direct volumes are carried out here and all others are passed on.
pub struct Direct {
    calls: Arc<Calls>,
    state: Option<PathBuf>,
    root: Root,
    host: Host,
    runtimes: Runtimes,
    busy: Arc<Mutex<HashSet<(DriverName, String)>>>,
    /// The volume of which the cloud is being told.
    stating: watch::Sender<Option<(DriverName, String)>>,
    /// Held while it is settled whose a device is.
    claims: Mutex<()>,
    known: own::known::Known,
    tasks: Tasks,
}

/// A call, and what is kept of it for the driver's.
struct Asking<'a> {
    driver: &'a DriverName,
    rpc: &'static Rpc,
    headers: &'a HeaderMap,
}

/// The right to do something with a volume.
struct Busy {
    of: Arc<Mutex<HashSet<(DriverName, String)>>>,
    key: (DriverName, String),
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Direct {
    /// The calls of a node; what is begun runs in `tasks`.
    pub fn new(calls: Arc<Calls>, places: Places, tasks: Tasks) -> Self {
        let Places { state, host, roots } = places;
        let root = Root::new(roots.entries.clone());
        let runtimes = Runtimes::new(roots, runtime::PATIENCE);
        let (busy, stating, claims) = Default::default();
        let known = own::known::Known::default();
        Self { calls, state, root, host, runtimes, busy, stating, claims, known, tasks }
    }

    /// Answers a request that came in by this node's front of a driver.
    pub async fn answer(
        self: Arc<Self>,
        driver: DriverName,
        came: Came,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let row = rpc::find(request.uri().path()).filter(|rpc| asked::concerns(rpc.method));
        let Some(rpc) = row else { return self.calls.answer(driver.as_str(), came, request).await };
        let (parts, body) = request.into_parts();
        match self.clone().begin(&driver, rpc, &parts.headers, body).await {
            Ok(Direction::Pass(body)) => {
                let request = Request::from_parts(parts, Full::new(body));
                self.calls.answer(driver.as_str(), came, request).await
            }
            Ok(Direction::Done(answer)) => Ok(answer.response()),
            Err(error) => {
                let (rpc, code) = (rpc.path, error.code());
                warn!(rpc, %driver, ?code, error = error.chain(), "not carried out");
                Ok(error.response())
            }
        }
    }

    /// Carries a call out if it is for a direct volume.
    async fn begin(
        self: Arc<Self>,
        driver: &DriverName,
        rpc: &'static Rpc,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<Direction, Arc<Error>> {
        let bad = |source: BadRequest| Error::BadRequest { method: rpc.method, source };
        let deadline = forward::deadline(headers).map_err(bad)?;
        let work = async {
            let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            let message = frame::message(&body).map_err(|e| bad(e.into()))?;
            let settled = self.settled(driver, rpc.method, &message).await;
            let Some(work) = settled? else { return Ok(Direction::Pass(body)) };
            self.clone().detached(driver.clone(), rpc, headers.clone(), work).await.map(Direction::Done)
        };
        forward::until(deadline, std::pin::pin!(work)).await
    }

    /// What is to be done, and the right to do it; none if it is for the driver alone. It waits while the cloud is told of
    /// the volume, which nobody asked for.
    async fn settled(
        &self,
        driver: &DriverName,
        method: &'static str,
        message: &Bytes,
    ) -> Result<Option<(Busy, Work)>, Error> {
        let key = Some((driver.clone(), asked::volume(method, message)?));
        let mut stating = self.stating.subscribe();
        loop {
            let is_stated = *stating.borrow_and_update() == key;
            match self.settle(driver, method, message) {
                Err(Error::Pending { .. }) if is_stated => {}
                other => return other,
            }
            // Its sender is ours.
            let _ = stating.changed().await;
        }
    }

    fn settle(
        &self,
        driver: &DriverName,
        method: &'static str,
        message: &Bytes,
    ) -> Result<Option<(Busy, Work)>, Error> {
        let volume = asked::volume(method, message)?;
        let look = || asked::work(self.state.as_deref(), driver, method, message);
        // Whoever is about to write the volume's first record is busy with it.
        if look()?.is_none() && !self.is_busy(driver, &volume) {
            return Ok(None);
        }
        let busy = self.take(driver, &volume).ok_or(Error::Pending { method })?;
        // Again, since a call that has ended meanwhile may have changed what is known.
        Ok(look()?.map(|(_, work)| (busy, work)))
    }

    /// Does the work in a task of its own, which goes on when the caller leaves.
    async fn detached(
        self: Arc<Self>,
        driver: DriverName,
        rpc: &'static Rpc,
        mut headers: HeaderMap,
        (busy, work): (Busy, Work),
    ) -> Outcome {
        headers.remove(CALL_ID);
        let (told, outcome) = oneshot::channel();
        let tasks = self.tasks.clone();
        tasks.spawn("direct", async move {
            let asking = Asking { driver: &driver, rpc, headers: &headers };
            let outcome = self.carry_out(&asking, work).await;
            self.let_go(&driver, &busy.key.1).await;
            drop(busy);
            // Who left asks again.
            let _ = told.send(outcome);
        });
        outcome.await.unwrap_or_else(|_| Err(Error::Stopping("csi-edge").into()))
    }

    fn take(&self, driver: &DriverName, volume: &str) -> Option<Busy> {
        let key = (driver.clone(), volume.to_owned());
        let taken = self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        taken.then(|| Busy { of: self.busy.clone(), key })
    }

    fn is_busy(&self, driver: &DriverName, volume: &str) -> bool {
        let key = (driver.clone(), volume.to_owned());
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    async fn carry_out(&self, asking: &Asking<'_>, work: Work) -> Outcome {
        match work {
            Work::Stage(volume, message) => {
                let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
                let noted = staged::note(state, asking.driver.as_str(), &volume);
                noted.map_err(not_yet(&volume, "staged"))?;
                self.ask(asking, asking.rpc, &message).await
            }
            Work::Publish(publish) => {
                let (driver, volume) = (asking.driver, publish.volume_id.clone());
                let outcome = self.publish(asking, *publish).await;
                if outcome.as_ref().is_ok_and(|answer| answer.ok().is_some()) {
                    info!(%driver, volume, "handed over directly");
                }
                outcome
            }
            Work::Unpublish(record) => self.unpublish(asking, &record).await,
            Work::Unstage(volume, records, message) => self.unstage(asking, &volume, records, &message).await,
            Work::GrowStaged(message) => self.grow_staged(asking, &message).await,
            Work::Health(message) => self.ask(asking, asking.rpc, &message).await,
            Work::Runtime(record, message) => self.of_runtime(asking, &record, &message).await,
        }
    }

    /// Asks the driver.
    async fn ask(&self, asking: &Asking<'_>, rpc: &'static Rpc, message: &[u8]) -> Outcome {
        let path = PathAndQuery::from_static(rpc.path);
        let call = Call { headers: asking.headers.clone(), path, body: frame::frame(message) };
        self.calls.ask(asking.driver.as_str(), call).await
    }

    /// Asks the driver to take back what it has published at our path.
    async fn ask_to_unpublish(&self, asking: &Asking<'_>, record: &published::Published) -> Outcome {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: record.volume_id.clone(),
            target_path: record.private_path.display().to_string(),
        };
        let rpc = rpc::find("/csi.v1.Node/NodeUnpublishVolume");
        let rpc = rpc.ok_or_else(|| Error::UnknownMethod("NodeUnpublishVolume".into()))?;
        self.ask(asking, rpc, &prost::Message::encode_to_vec(&request)).await
    }
}

/// An answer of OK without content, as most of a node's answers are.
fn done() -> Answer {
    Answer::of(frame::frame(&Bytes::new()))
}

/// What a direct volume has not become, because of an error.
fn not_yet<E>(volume: &str, wanted: &'static str) -> impl Fn(E) -> Arc<Error>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let volume = volume.to_owned();
    move |source| Error::DirectNotYet { volume: volume.clone(), wanted, source: source.into() }.into()
}

/// A file's name for what these bytes name together: 32 hexadecimal digits that no other has.
pub(crate) fn name(parts: &[&[u8]]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        // With their lengths, so that no two lists of parts are one text.
        hash.update(&part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use prost::Message;
    use tonic::Code;

    fn direct(dir: &tempfile::TempDir) -> Direct {
        let places = Places { state: Some(dir.path().to_owned()), ..Places::default() };
        Direct::new(Arc::new(Calls::new(&[], Tasks::default())), places, Tasks::default())
    }

    fn unstaging() -> Bytes {
        let (volume_id, staging_target_path) = ("v".to_owned(), "/s".to_owned());
        csi::NodeUnstageVolumeRequest { volume_id, staging_target_path }.encode_to_vec().into()
    }

    #[tokio::test]
    async fn a_call_waits_while_the_cloud_is_told_of_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        let (direct, driver) = (direct(&dir), "d.example".parse().unwrap());
        published::tests::record("v").keep(dir.path()).unwrap();
        let unstaging = unstaging();
        let settled = || direct.settled(&driver, "NodeUnstageVolume", &unstaging);
        direct.stating.send_replace(Some((driver.clone(), "v".into())));
        let told = direct.take(&driver, "v").unwrap();
        let mut waiting = std::pin::pin!(settled());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(told);
        direct.stating.send_replace(None);
        let (_busy, _) = waiting.await.unwrap().unwrap();
        // It is another call now that has it.
        assert_eq!(settled().await.err().unwrap().code(), Code::Aborted);
    }

    #[test]
    fn a_call_while_another_is_at_the_volume_waits_and_knows_what_that_has_done() {
        let dir = tempfile::tempdir().unwrap();
        let (direct, driver) = (direct(&dir), "d.example".parse().unwrap());
        let message = unstaging();
        let settle = || direct.settle(&driver, "NodeUnstageVolume", &message);
        assert!(settle().unwrap().is_none(), "an ordinary volume is the driver's");
        let publishing = direct.take(&driver, "v").unwrap();
        // It has no record yet, and would have been unstaged under the one that publishes it.
        assert_eq!(settle().err().unwrap().code(), Code::Aborted);
        published::tests::record("v").keep(dir.path()).unwrap();
        assert_eq!(settle().err().unwrap().code(), Code::Aborted);
        drop(publishing);
        let Some((_busy, Work::Unstage(_, records, _))) = settle().unwrap() else { panic!("not ours") };
        assert_eq!(records.len(), 1);
        assert_eq!(settle().err().unwrap().code(), Code::Aborted);
    }
}
