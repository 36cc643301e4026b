//! csi-cloud's last answers about each driver, given while no csi-cloud is there.
//!
//! Sidecars ask at their start, some with one second to answer, and exit at any error.

use std::collections::HashMap;

use parking_lot::Mutex;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Local, Method};
use proto::http2::forward::Answer;
use proto::names::DriverName;
use tonic::Code;

/// The last answers, by driver and method: a handful for each driver.
#[derive(Default)]
pub(super) struct LastAnswers(Mutex<HashMap<(DriverName, Method), Answer>>);

/// The methods that csi-cloud answers without a node.
pub(super) fn local_methods() -> impl Iterator<Item = Method> {
    Method::ALL.iter().copied().filter(|method| is_local(*method))
}

/// True if csi-cloud answers the call without a node.
pub(super) fn is_local(method: Method) -> bool {
    method.local().is_some()
}

impl LastAnswers {
    /// Keeps an answer that may be repeated: OK, or UNIMPLEMENTED.
    pub(super) fn keep(&self, driver: &DriverName, method: Method, answer: &Answer) {
        let may_repeat = answer.failure().is_none_or(|status| status.code() == Code::Unimplemented);
        if may_repeat {
            let mut answers = self.0.lock();
            answers.insert((driver.clone(), method), answer.clone());
        }
    }

    /// The last answer. `Probe` always has one: sidecars repeat it after "not ready", and exit at
    /// an error.
    pub(super) fn of(&self, driver: &DriverName, method: Method) -> Option<Answer> {
        let answers = self.0.lock();
        let last = answers.get(&(driver.clone(), method)).cloned();
        last.or_else(|| (method.local() == Some(Local::Probe)).then(not_ready))
    }
}

fn not_ready() -> Answer {
    let probe = csi::ProbeResponse { ready: Some(false) };
    Answer::of(frame::frame(&probe.encode_to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_last_is_answered_again_and_probe_is_never_an_error() {
        let answers = LastAnswers::default();
        let driver = "d.example".parse().unwrap();
        let probe = Method::Probe;
        let info = Method::GetPluginInfo;
        let ready = |answer: Option<Answer>| {
            let message = frame::message(answer.unwrap().ok().unwrap()).unwrap();
            csi::ProbeResponse::decode(message).unwrap().ready
        };
        assert_eq!(ready(answers.of(&driver, probe)), Some(false));
        assert!(answers.of(&driver, info).is_none());
        let message = csi::ProbeResponse { ready: Some(true) }.encode_to_vec();
        answers.keep(&driver, probe, &Answer::of(frame::frame(&message)));
        assert_eq!(ready(answers.of(&driver, probe)), Some(true));
        assert!(answers.of(&"e.example".parse().unwrap(), info).is_none());
        assert_eq!(local_methods().count(), 7);
    }
}
