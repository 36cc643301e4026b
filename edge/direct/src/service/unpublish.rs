//! Takes a volume back from its runtime and its driver.
//!
//! The order: the runtime finds it no more, and nobody uses it any more. The record says that the
//! driver is asked, the driver unpublishes it, and its record goes. The next call continues an
//! interrupted attempt.

use proto::csi::frame;
use proto::http2::forward::Answer;
use tracing::{error, warn};

use super::driver_call::{CallResult, DriverCall};
use crate::error::{TAKEN_BACK, not_yet};
use crate::records::published::Published;
use crate::volume::hold;
use crate::volume::node::Node;
use crate::volume::release;
use crate::volume::release::Absent;
use crate::volume::target;

pub(super) async fn unpublish(
    node: &Node,
    call: &DriverCall<'_>,
    record: &Published,
) -> CallResult {
    let volume = &record.volume_id;
    let state = node.state(volume)?;
    let not_yet = not_yet::<std::io::Error>(volume, TAKEN_BACK);
    let begun = Published { custody: hold::withdrawing(node, record), ..record.clone() };
    if begun != *record
        && let Err(error) = begun.keep(state)
    {
        // On a full disk, too, a pod can end. A restart hands the volume over again then.
        warn!(volume, %error, "not noted that it is taken back");
    }
    // A volume in use is refused, as the unmount of a busy mount fails.
    release::withdraw(node, record, Absent::of(record)).await?;
    let asked = Published { unpublishing: true, ..begun };
    if let Err(error) = asked.keep(state) {
        // On a full disk, too, a pod can end. The next attempt looks for the device's users again.
        warn!(volume, %error, "not noted that the driver is asked to take it back");
    }
    let answer = call.unpublish(record).await?;
    if answer.failure().is_some() {
        return Ok(answer);
    }
    // CSI: "The SP MUST delete the file or directory it created at this path." Never its content.
    target::remove_empty(&record.private_path).map_err(&not_yet)?;
    if let Some(kept) = target::remove(&record.target, &record.private_path).map_err(&not_yet)? {
        let target = record.target.display();
        let kept = kept.display();
        error!(
            volume, %target, %kept,
            "a pod wrote to the node's disk instead of its volume; what it wrote is kept"
        );
    }
    record.forget(state).map_err(&not_yet)?;
    Ok(done())
}

/// An answer of OK without content, as most of a node's answers are.
pub(super) fn done() -> Answer {
    Answer::of(frame::frame(&[]))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use proto::csi::Method;
    use proto::csi::status::ToStatus;

    use super::*;
    use crate::device::host;
    use crate::device::host::tests::{block_device, with_open};
    use crate::records::published;
    use crate::records::published::tests::record;
    use crate::runtimes::Roots;
    use crate::service::direct::tests::service_of;
    use crate::service::direct::{Cloud, Settings};
    use crate::volume::attach;

    #[tokio::test(start_paused = true)]
    async fn a_missing_path_proves_nothing_until_the_driver_was_asked() {
        let Some(device) = block_device() else { return };
        let dir = tempfile::tempdir().unwrap();
        let (proc, host) = with_open(&device);
        let state = dir.path().join("state");
        let roots = Roots { entries: dir.path().join("entries"), ..Roots::default() };
        let settings = Settings { state: Some(state.clone()), host, roots, ..Settings::default() };
        let service = service_of(settings, Cloud::default());
        let number = host::number(&device).unwrap();
        let target = dir.path().join("mount");
        let private_path = dir.path().join("gone");
        let volume = Published { target, private_path, device, number, ..record("v") };
        volume.keep(&state).unwrap();
        let kept = || published::all(&state).unwrap().pop().unwrap();
        let headers = HeaderMap::new();
        let driver = "d.example".parse().unwrap();
        let method = Method::NodeUnpublishVolume;
        let executor = &service.executor;
        let call =
            DriverCall { executor, driver: &driver, method, headers: &headers, deadline: None };
        let refused = async || {
            let record = kept();
            let refused = unpublish(&service.node, &call, &record).await.err().unwrap();
            assert_eq!(refused.code(), tonic::Code::Unavailable);
            refused.chain()
        };
        let held = "is open in process 12";
        assert!(refused().await.contains(held));
        assert!(!kept().unpublishing && kept().custody.withdrawing);
        let open = proc.path().join("12/fd/3");
        let closed = proc.path().join("closed");
        std::fs::rename(&open, &closed).unwrap();
        // The node has no such driver.
        assert!(refused().await.contains("d.example"));
        assert!(kept().unpublishing);
        // The driver may have given the number to another volume since.
        std::fs::rename(&closed, &open).unwrap();
        assert!(!refused().await.contains(held));
        // Only the driver's answer ends that, whether the target can be covered or not.
        let _ = attach::show_again(&service.node, &kept());
        assert!(kept().unpublishing);
    }
}
