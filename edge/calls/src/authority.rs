//! What a csi-cloud may ask of this node.
//!
//! A link carries the calls that csi-cloud sends, and no others: Node calls come from the kubelet,
//! by the node's own front. The node's operator may deny some of the rest. It may use `error`.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use proto::csi::Method;
use tokio::time::Instant;

use crate::error::Error;

/// How long a run of an earlier csi-edge, which may not have denied the call, may be open.
const EARLIER: Duration = Duration::from_secs(600);

/// A method that csi-cloud sends, and that an operator may deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deniable(Method);

/// Why a method cannot be denied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no method that csi-cloud sends, such as \"ControllerExpandVolume\"")]
pub struct NotDeniable(String);

impl FromStr for Deniable {
    type Err = NotDeniable;

    fn from_str(name: &str) -> Result<Self, NotDeniable> {
        let method = Method::of_name(name).filter(|method| method.sent());
        method.map(Self).ok_or_else(|| NotDeniable(name.to_owned()))
    }
}

/// The authority of calls that come over a link.
pub(crate) struct Authority {
    denied: BTreeSet<Deniable>,
    begun: Instant,
}

impl Authority {
    pub(crate) fn new(denied: BTreeSet<Deniable>) -> Self {
        Self { denied, begun: Instant::now() }
    }

    /// The method of a path, if csi-cloud sends it.
    ///
    /// # Errors
    /// [`Error::NotSent`].
    pub(crate) fn sent(path: &str) -> Result<Method, Error> {
        let method = Method::of_path(path).filter(|method| method.sent());
        method.ok_or_else(|| Error::NotSent(path.to_owned()))
    }

    /// Refuses a denied call, finally only if no run of it may be open. Whether one is running is
    /// asked only for denied calls.
    ///
    /// # Errors
    /// [`Error::Denied`] and [`Error::DeniedInDoubt`].
    pub(crate) fn allow(
        &self,
        method: Method,
        is_running: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        if !self.denied.contains(&Deniable(method)) {
            return Ok(());
        }
        let method_name = method.name();
        let why = if is_running() {
            "another operation is running for what it is about"
        } else if method.creates().is_some() {
            // After a final code the caller forgets what an earlier attempt may have made.
            "an earlier attempt may have made something"
        } else if self.begun.elapsed() < EARLIER {
            "it may have been begun before csi-edge was started, less than 10 minutes ago"
        } else {
            return Err(Error::Denied { method: method_name });
        };
        Err(Error::DeniedInDoubt { method: method_name, why })
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;

    #[test]
    fn only_what_csi_cloud_sends_can_be_denied() {
        assert!("ControllerExpandVolume".parse::<Deniable>().is_ok());
        for name in ["NodeExpandVolume", "GetPluginInfo", "Expand", ""] {
            let error = name.parse::<Deniable>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn a_link_carries_what_csi_cloud_sends() {
        let sent = Authority::sent("/csi.v1.Controller/CreateVolume");
        assert_eq!(sent.ok(), Some(Method::CreateVolume));
        for path in ["/csi.v1.Node/NodePublishVolume", "/csi.v1.Controller/New", "/x", ""] {
            let error = Authority::sent(path).unwrap_err();
            assert_eq!(error.code(), Code::Unimplemented, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_final_only_if_no_run_may_be_open() {
        let denied = ["ControllerExpandVolume", "CreateVolume"].map(|name| name.parse().unwrap());
        let authority = Authority::new(denied.into());
        let code = |method, is_running| {
            authority.allow(method, || is_running).err().map(|error| error.code())
        };
        let expand = Method::ControllerExpandVolume;
        assert_eq!(code(expand, false), Some(Code::Unavailable), "a run of an earlier csi-edge");
        tokio::time::advance(EARLIER).await;
        assert_eq!(code(expand, false), Some(Code::PermissionDenied));
        assert_eq!(code(expand, true), Some(Code::Unavailable), "a run is open");
        assert_eq!(code(Method::CreateVolume, false), Some(Code::Unavailable));
        assert_eq!(code(Method::DeleteVolume, true), None, "it is not denied");
    }
}
