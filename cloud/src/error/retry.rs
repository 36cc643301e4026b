//! Decides if a new link or another csi-cloud may still carry out a call that failed.

use proto::csi::status::ToStatus;
use tonic::Code;

use super::Error;

impl Error {
    /// True if a new link may end the failure: nothing was begun, because a link was missing.
    pub fn awaits_link(&self) -> bool {
        matches!(
            self,
            Self::NotLinked { .. }
                | Self::NoRoute { .. }
                | Self::Reschedule { .. }
                | Self::NotLearned(_)
                | Self::NotAsked { .. }
                | Self::Unconfirmed { .. }
                | Self::NotListed { .. }
                | Self::NoCapacity { .. }
        )
    }

    /// True if the next csi-cloud may carry out the call: this one stops, or does not lead.
    pub(crate) fn is_for_the_next(&self, is_stopping: bool) -> bool {
        let may_pass = self.code() == Code::Unavailable || self.awaits_link();
        matches!(self, Self::NotLeading(_)) || (is_stopping && may_pass)
    }
}

#[cfg(test)]
mod tests {
    use proto::names::DriverName;

    use super::*;
    use crate::error::NotLeading;

    #[test]
    fn what_the_next_csi_cloud_may_do_is_left_to_it_whatever_its_code() {
        let node = "n1".parse().unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let reschedule = Error::Reschedule { node };
        assert!(reschedule.is_for_the_next(true), "a claim is given back because a link is gone");
        let no_route = Error::NoRoute { driver, why: String::new() };
        assert!(no_route.is_for_the_next(true));
        assert!(!no_route.is_for_the_next(false), "it stays, and edges link to it");
        assert!(!Error::UnknownMethod("/x".into()).is_for_the_next(true));
        for why in [NotLeading::Follows("b".into()), NotLeading::NoLeader, NotLeading::Deposed] {
            assert!(Error::NotLeading(why).is_for_the_next(false));
        }
    }
}
