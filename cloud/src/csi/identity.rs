//! What the front answers by itself: who the driver is and what it can do, as last learned from an edge.
//!
//! A sidecar exits when one of these fails and keeps for ever what it is told, so they are answered at once
//! whatever the edges do, and never with a guess.

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::error::Error;
use proto::names::DriverName;

use crate::state::driver_info::Unknown;

/// The (unframed) answer to a method, out of what was learned.
///
/// # Errors
/// [`Error::NotLearned`] before any edge told of the driver; [`Error::NotImplemented`] if the driver does not
/// implement the method.
pub fn answer(
    method: &'static str,
    driver: &DriverName,
    learned: Result<Option<Bytes>, Unknown>,
) -> Result<Bytes, Error> {
    match (method, learned) {
        // Sidecars ask again until it is true; an error would end them.
        ("Probe", learned) => Ok(csi::ProbeResponse { ready: Some(learned.is_ok()) }.encode_to_vec().into()),
        (_, Ok(Some(message))) => Ok(message),
        // Asked before Probe by some sidecars, with a second to answer. The name is ours to say.
        ("GetPluginInfo", _) => {
            let (name, vendor_version) = (driver.to_string(), "unknown".to_owned());
            let info = csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() };
            Ok(info.encode_to_vec().into())
        }
        (_, Ok(None)) => Err(Error::NotImplemented { driver: driver.clone(), method }),
        (_, Err(Unknown)) => Err(Error::NotLearned(driver.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn ask(method: &'static str, learned: Result<Option<Bytes>, Unknown>) -> Result<Bytes, Error> {
        answer(method, &"d.example".parse().unwrap(), learned)
    }

    #[test]
    fn probe_is_never_an_error() {
        let ready = |learned| csi::ProbeResponse::decode(ask("Probe", learned).unwrap()).unwrap().ready;
        assert_eq!(ready(Err(Unknown)), Some(false));
        assert_eq!(ready(Ok(None)), Some(true));
    }

    #[test]
    fn the_name_is_known_before_anything_else() {
        let info = csi::GetPluginInfoResponse::decode(ask("GetPluginInfo", Err(Unknown)).unwrap()).unwrap();
        assert_eq!(info.name, "d.example");
        assert!(!info.vendor_version.is_empty());
    }

    #[test]
    fn what_was_learned_is_answered_byte_for_byte() {
        let bytes = Bytes::from_static(b"\x0a\x03new\xf2\x01\x00");
        assert_eq!(ask("GetPluginCapabilities", Ok(Some(bytes.clone()))).unwrap(), bytes);
    }

    #[test]
    fn capabilities_are_never_guessed() {
        assert_eq!(ask("ControllerGetCapabilities", Err(Unknown)).unwrap_err().code(), Code::Unavailable);
        let not_there = ask("GroupControllerGetCapabilities", Ok(None)).unwrap_err();
        assert_eq!(not_there.code(), Code::Unimplemented);
    }
}
