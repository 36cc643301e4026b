//! What csi-cloud last said of each driver: sidecars ask it at their start, some with a second to answer, and exit at
//! any error. So it is answered from here while no csi-cloud is there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Local, Method};
use proto::http2::forward::Answer;
use proto::names::DriverName;
use tonic::Code;

/// The last answers, by driver and method. There are a handful for each driver.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<(DriverName, Method), Answer>>);

/// The calls that csi-cloud answers by itself, about the driver.
pub(super) fn methods() -> impl Iterator<Item = Method> {
    Method::ALL.iter().copied().filter(|method| is_local(*method))
}

/// Whether csi-cloud answers the call by itself.
pub(super) fn is_local(method: Method) -> bool {
    method.local().is_some()
}

impl Known {
    /// Keeps an answer, if it is one to be given again: OK, or that the driver does not have the method.
    pub(super) fn keep(&self, driver: &DriverName, method: Method, answer: &Answer) {
        let stays = answer.failure().is_none_or(|status| status.code() == Code::Unimplemented);
        if stays {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert((driver.clone(), method), answer.clone());
        }
    }

    /// The last answer. `Probe` always has one: not ready is asked again by sidecars, and an error ends them.
    pub(super) fn answer(&self, driver: &DriverName, method: Method) -> Option<Answer> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known.get(&(driver.clone(), method)).cloned();
        let not_ready = || {
            let probe = csi::ProbeResponse { ready: Some(false) };
            Answer::of(frame::frame(&probe.encode_to_vec()))
        };
        last.or_else(|| (method.local() == Some(Local::Probe)).then(not_ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_last_is_answered_again_and_probe_is_never_an_error() {
        let (known, driver) = (Known::default(), "d.example".parse().unwrap());
        let probe = Method::Probe;
        let info = Method::GetPluginInfo;
        let ready = |answer: Option<Answer>| {
            let message = frame::message(answer.unwrap().ok().unwrap()).unwrap();
            csi::ProbeResponse::decode(message).unwrap().ready
        };
        assert_eq!(ready(known.answer(&driver, probe)), Some(false));
        assert!(known.answer(&driver, info).is_none());
        let message = csi::ProbeResponse { ready: Some(true) }.encode_to_vec();
        known.keep(&driver, probe, &Answer::of(frame::frame(&message)));
        assert_eq!(ready(known.answer(&driver, probe)), Some(true));
        assert!(known.answer(&"e.example".parse().unwrap(), info).is_none());
        assert_eq!(methods().count(), 7);
    }
}
