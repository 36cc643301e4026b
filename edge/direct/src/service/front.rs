//! Answers a request that came by the node's front. One about a direct volume is carried out here,
//! and every other one is passed on.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use edge_calls::ended_calls::OngoingCall;
use edge_calls::executor::{LOCK_WAIT, Origin};
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use proto::csi::column::Locks;
use proto::csi::frame;
use proto::csi::status::{BadRequest, ToStatus};
use proto::csi::{DirectCall, Method, NodeStep};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward;
use proto::http2::forward::{Answer, CALL_ID};
use proto::http2::serve::Stopping;
use proto::names::DriverName;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tonic::Code;
use tracing::{Instrument, debug, info};

use super::driver_call::{CallResult, DriverCall};
use super::locks::VolumeLock;
use super::names;
use super::publish;
use super::request;
use super::request::{Request as CsiRequest, Work};
use super::runtime;
use super::runtime_class;
use super::stage;
use super::state::Service;
use super::unpublish;
use crate::error::Error;
use crate::lease::exclusive::pod_in;

/// The destination of a request.
enum Direction {
    /// To the driver, as it came.
    Pass(Bytes),
    /// It was carried out.
    Done(Answer),
}

/// Answers a request that came by this node's front of a driver.
///
/// # Errors
/// None: a call that fails is answered with its status.
pub(super) async fn answer(
    service: Arc<Service>,
    driver: DriverName,
    origin: Origin,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    // Only our own programs set them. Here the id is for the log, and nothing is for the driver.
    request.headers_mut().remove(&CALL_ID);
    forward::remove_csi_clouds(request.headers_mut());
    let id = CallId::arriving(request.headers_mut());
    let method = Method::of_path(request.uri().path());
    let Some(method) = method.filter(|method| request::concerns(*method)) else {
        return service.executor.answer(driver.as_str(), origin, request).await;
    };
    let mut ongoing = service.executor.ended().begin(id, method, driver.clone());
    let call = node_call(service, driver, method, origin, request, &mut ongoing);
    let response = call.instrument(names::span(id)).await;
    ongoing.ended(forward::status(&response));
    Ok(response)
}

/// Answers a call that may be about a direct volume.
async fn node_call(
    service: Arc<Service>,
    driver: DriverName,
    method: Method,
    origin: Origin,
    request: Request<Incoming>,
    ongoing: &mut OngoingCall,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match begin(service.clone(), &driver, method, &parts.headers, body, ongoing).await {
        Ok(Direction::Pass(body)) => {
            let request = Request::from_parts(parts, Full::new(body));
            let answered = service.executor.answer(driver.as_str(), origin, request).await;
            answered.unwrap_or_else(|never| match never {})
        }
        Ok(Direction::Done(answer)) => answer.response(),
        Err(error) => {
            let rpc = method.path();
            let code = error.code();
            // A kubelet asks for statistics every minute, also while no container runs.
            let is_stats = method.direct() == Some(DirectCall::Node(NodeStep::Stats));
            if is_stats && code == Code::Unavailable {
                debug!(rpc, %driver, ?code, error = error.chain(), "not carried out");
            } else {
                peer_warn!(
                    LogPeer::Caller, rpc, %driver, ?code, error = error.chain(), "not carried out"
                );
            }
            forward::failure(&error)
        }
    }
}

/// Carries a call out if it is about a direct volume.
async fn begin(
    service: Arc<Service>,
    driver: &DriverName,
    method: Method,
    headers: &HeaderMap,
    body: Incoming,
    ongoing: &mut OngoingCall,
) -> Result<Direction, Error> {
    let bad = |source: BadRequest| Error::BadRequest { method: method.name(), source };
    let deadline = forward::deadline(headers).map_err(bad)?;
    let work = async {
        let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
        let message = frame::message(&body).map_err(|e| bad(e.into()))?;
        let state = service.node.state.as_deref();
        let request = CsiRequest { state, driver, method, message: &message };
        names::record(&request, &service.metadata);
        ongoing.is_about(&request.volume()?);
        if let Some(decided) = request.decided()? {
            runtime_class::check(&service.metadata, &decided).await?;
        }
        let Some((lock, work)) = wait_for_work(&service, driver, method, &message).await? else {
            let edited = request.without_decision()?.map(|message| frame::frame(&message));
            return Ok(Direction::Pass(edited.unwrap_or(body)));
        };
        let asked = Asked { method, headers: headers.clone(), deadline };
        let detached = detach(service.clone(), driver.clone(), asked, lock, work);
        detached.await.map(Direction::Done)
    };
    forward::until(deadline, std::pin::pin!(work)).await
}

/// The work of a call with the lock of its volume; none if the call is for the driver alone. It
/// waits for the lock for a second, and while the volume's lease is reported, which no caller asked
/// for. A call that only asks takes no lock.
async fn wait_for_work(
    service: &Service,
    driver: &DriverName,
    method: Method,
    message: &Bytes,
) -> Result<Option<(Option<VolumeLock>, Work)>, Error> {
    let state = service.node.state.as_deref();
    let request = CsiRequest { state, driver, method, message };
    if method.locks_column() == Locks::Nothing {
        return Ok(request.work()?.map(|work| (None, work)));
    }
    let volume = Some((driver.clone(), request.volume()?));
    let mut reporting = service.locks.reporting();
    let latest = Instant::now() + LOCK_WAIT;
    loop {
        let is_reported = *reporting.borrow_and_update() == volume;
        let released = service.locks.released();
        let pending = match find_work(service, &request) {
            Err(pending @ Error::Pending { .. }) => pending,
            found => return Ok(found?.map(|(lock, work)| (Some(lock), work))),
        };
        tokio::select! {
            biased;
            () = released => {}
            // The service has its sender, so it does not end.
            _ = reporting.changed() => {}
            () = sleep_until(latest), if !is_reported => return Err(pending),
        }
    }
}

fn find_work(
    service: &Service,
    request: &CsiRequest<'_>,
) -> Result<Option<(VolumeLock, Work)>, Error> {
    let driver = request.driver;
    let method = request.method.name();
    let volume = request.volume()?;
    let is_locked = || service.locks.is_locked(driver, &volume);
    if !is_ours(is_locked, || Ok(request.work()?.is_some()))? {
        return Ok(None);
    }
    let lock = service
        .locks
        .try_lock(driver, &volume, method)
        .map_err(|(running, since)| Error::Pending { method, running, age: since.elapsed() })?;
    // Again, since an operation that has ended meanwhile may have changed the records.
    Ok(request.work()?.map(|work| (lock, work)))
}

/// False if a call is for the driver alone. The lock is looked at before the records: an operation
/// that ends in between has written its volume's first record by then.
fn is_ours(
    is_locked: impl FnOnce() -> bool,
    has_work: impl FnOnce() -> Result<bool, Error>,
) -> Result<bool, Error> {
    Ok(is_locked() || has_work()?)
}

/// What a call of the front asks for, beside its message.
struct Asked {
    method: Method,
    headers: HeaderMap,
    deadline: Option<Instant>,
}

/// Does the work in a task of its own, which goes on when the caller leaves. The driver's calls in
/// it end at the caller's deadline; what csi-edge does itself is never cut off.
async fn detach(
    service: Arc<Service>,
    driver: DriverName,
    asked: Asked,
    lock: Option<VolumeLock>,
    work: Work,
) -> CallResult {
    let Asked { method, mut headers, deadline } = asked;
    headers.remove(&CALL_ID);
    let (sender, outcome) = oneshot::channel();
    let tasks = service.tasks.clone();
    tasks.spawn("direct", async move {
        let executor = &service.executor;
        let call = DriverCall { executor, driver: &driver, method, headers: &headers, deadline };
        let outcome = carry_out(&service, &call, work).await;
        if let Some(lock) = &lock {
            service.leases.settle_and_report(&driver, lock.volume_id()).await;
        }
        drop(lock);
        // A caller that left sends the call again.
        let _ = sender.send(outcome);
    });
    outcome.await.unwrap_or_else(|_| Err(Stopping("csi-edge").into()))
}

async fn carry_out(service: &Service, call: &DriverCall<'_>, work: Work) -> CallResult {
    let Service { node, runtimes, .. } = service;
    match work {
        Work::Stage(volume, message) => stage::stage(node, call, &volume, &message).await,
        Work::Publish(publish) => {
            let driver = call.driver;
            let volume = publish.volume_id.clone();
            let pod = pod_in(&publish.target);
            let outcome = publish::publish(service, call, *publish).await;
            if outcome.as_ref().is_ok_and(|answer| answer.ok().is_some()) {
                let pod = service.metadata.pod_text(&pod);
                let claim = service.metadata.claim(driver.as_str(), &volume);
                info!(%driver, volume, pod, claim, "handed over directly");
            }
            outcome
        }
        Work::Unpublish(record) => unpublish::unpublish(node, call, &record).await,
        Work::Unstage(volume, records, message) => {
            stage::unstage(node, call, &volume, records, &message).await
        }
        Work::GrowStaged(message) => runtime::grow_staged(call, &message).await,
        Work::Health(message) => call.send(&message).await,
        Work::Stats(record) => runtime::stats(node, runtimes, call, &record).await,
        Work::Grow(record, message) => runtime::grow(runtimes, call, &record, &message).await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::records::published::tests::record;
    use crate::service::direct::tests::service;
    use futures_util::FutureExt;
    use prost::Message;
    use proto::csi;

    fn unstaging() -> Bytes {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/s".into(),
        };
        request.encode_to_vec().into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_while_the_cloud_is_told_of_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir);
        let driver = "d.example".parse().unwrap();
        record("v").keep(dir.path()).unwrap();
        let unstaging = unstaging();
        let wait = || wait_for_work(&service, &driver, Method::NodeUnstageVolume, &unstaging);
        let reporting = service.locks.report(&driver, "v");
        let lock = service.locks.try_lock(&driver, "v", "a test").unwrap();
        let mut waiting = std::pin::pin!(wait());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(lock);
        drop(reporting);
        let (_lock, _) = waiting.await.unwrap().unwrap();
        // Another call has it now.
        assert_eq!(wait().await.err().unwrap().code(), Code::Aborted);
    }

    #[test]
    fn an_operation_that_ends_between_two_looks_is_not_overlooked() {
        // It is locked and has no record until the first look, and the other way round after it.
        let ended = Cell::new(false);
        let is_locked = || !ended.replace(true);
        assert!(is_ours(is_locked, || Ok(ended.replace(true))).unwrap());
        let idle = || false;
        assert!(is_ours(idle, || Ok(true)).unwrap() && !is_ours(idle, || Ok(false)).unwrap());
    }

    #[test]
    fn a_call_while_another_is_at_the_volume_waits_and_knows_what_that_has_done() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir);
        let driver = "d.example".parse().unwrap();
        let message = unstaging();
        let state = service.node.state.as_deref();
        let method = Method::NodeUnstageVolume;
        let request = CsiRequest { state, driver: &driver, method, message: &message };
        let find = || find_work(&service, &request);
        assert!(find().unwrap().is_none(), "an ordinary volume is the driver's");
        let publishing = service.locks.try_lock(&driver, "v", "a test").unwrap();
        // It has no record yet, and would have been unstaged under the one that publishes it.
        assert_eq!(find().err().unwrap().code(), Code::Aborted);
        record("v").keep(dir.path()).unwrap();
        assert_eq!(find().err().unwrap().code(), Code::Aborted);
        drop(publishing);
        let Some((_lock, Work::Unstage(_, records, _))) = find().unwrap() else {
            panic!("not ours")
        };
        assert_eq!(records.len(), 1);
        assert_eq!(find().err().unwrap().code(), Code::Aborted);
    }
}
