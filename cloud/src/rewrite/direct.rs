//! Direct volumes in the cloud: validates the class before anything is recorded, and asks the
//! driver for a block volume.
//!
//! The StorageClass alone decides whether a pod gets its volume directly, so that a node knows it
//! while it is cut off. Another source of that decision, for example a RuntimeClass, would set the
//! same keys in the volume's context.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::VolumeCapability;
use proto::csi::direct;
use proto::csi::direct::{Contradiction, Direct};
use proto::csi::status::BadRequest;
use proto::csi::wire::Malformed;
use proto::csi::{DirectCall, Method, Resource};
use proto::host::chain;

use crate::error::Error;

/// Refuses a CreateVolume that asks for something a direct volume cannot do. `parameters` are the
/// ones with our prefix.
///
/// # Errors
/// The contradiction in the request.
pub(crate) fn check_create(
    request: &Bytes,
    parameters: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let method = Method::creating(Resource::Volume).name();
    if direct::is_auto(parameters) {
        // The words are checked now, and the rest after the decision.
        let direct = direct::decided(parameters, true);
        return Direct::read(&direct).map(drop).map_err(asked_too_much(method));
    }
    let Some(direct) = Direct::read(parameters).map_err(asked_too_much(method))? else {
        return Ok(());
    };
    let request = csi::CreateVolumeRequest::decode(request.clone()).map_err(bad(method))?;
    check(&direct, &request.volume_capabilities).map_err(asked_too_much(method))
}

/// Refuses a class that asks for the outcome of a decision.
///
/// # Errors
/// It does.
pub(crate) fn check_class(parameters: &BTreeMap<String, String>) -> Result<(), Error> {
    match parameters.get(direct::KEY).filter(|value| *value == direct::NONE) {
        None => Ok(()),
        Some(value) => Err(Error::DirectAsked {
            method: Method::creating(Resource::Volume).name(),
            source: Contradiction::Value {
                key: direct::KEY.into(),
                value: value.clone(),
                can: "kata, auto",
            },
        }),
    }
}

fn check(direct: &Direct, capabilities: &[VolumeCapability]) -> Result<(), Contradiction> {
    capabilities.iter().try_for_each(|capability| direct.mount(capability).map(drop))
}

/// A CreateVolume or GetCapacity for the driver, edited if the class asks for direct volumes.
///
/// # Errors
/// The request is malformed.
pub(crate) fn out_of(
    method: Method,
    request: Bytes,
    parameters: &BTreeMap<String, String>,
) -> Result<Bytes, Malformed> {
    match method.places().filter(|_| direct::is_on(parameters)) {
        Some(places) => direct::for_driver(&request, places).map(Bytes::from),
        None => Ok(request),
    }
}

/// A call on a volume that has our settings, as its driver gets it.
#[derive(Debug, PartialEq)]
pub(crate) struct VolumeRequest {
    /// The message.
    pub(crate) message: Bytes,
    /// True if the volume is direct, or was made by a decision and the call is validated here.
    pub(crate) is_direct: bool,
}

/// The call on a direct volume as its driver gets it; none if the call passes unchanged. `class`
/// gives the parameters of the volume's creation, for requests without a context.
///
/// # Errors
/// The request is malformed, or asks for something a direct volume cannot do.
pub(crate) fn of_volume(
    rpc: Method,
    request: &Bytes,
    class: impl FnOnce() -> BTreeMap<String, String>,
) -> Result<Option<VolumeRequest>, Error> {
    let method = rpc.name();
    let is_attach = match rpc.direct() {
        Some(DirectCall::Attach) => true,
        Some(DirectCall::Validate | DirectCall::Expand) => false,
        Some(
            DirectCall::Create | DirectCall::Capacity | DirectCall::Delete | DirectCall::Node(_),
        )
        | None => {
            return Ok(None);
        }
    };
    let Some(places) = rpc.places() else { return Ok(None) };
    let parameters = match places.context {
        [] => class(),
        _ => direct::settings(request, places).map_err(bad(method))?,
    };
    let Some(direct) = Direct::read(&parameters).map_err(asked_too_much(method))? else {
        let message = direct::without_settings(request, places).map_err(bad(method))?;
        // Its answer gets the keys back that the driver did not see.
        let is_direct = rpc.direct() == Some(DirectCall::Validate);
        return Ok(message.map(|message| VolumeRequest { message: message.into(), is_direct }));
    };
    if is_attach {
        let request =
            csi::ControllerPublishVolumeRequest::decode(request.clone()).map_err(bad(method))?;
        check(&direct, request.volume_capability.as_slice()).map_err(asked_too_much(method))?;
    }
    let message = direct::for_driver(request, places).map_err(bad(method))?;
    Ok(Some(VolumeRequest { message: message.into(), is_direct: true }))
}

/// The answer to ValidateVolumeCapabilities about a direct volume. Capabilities that we would
/// refuse later are not confirmed, even if the driver supports them. CSI: "confirmed" is set only
/// if all that was asked for is supported.
///
/// # Errors
/// The request or the answer is malformed.
pub(crate) fn validated(method: Method, request: &Bytes, answer: &Bytes) -> Result<Vec<u8>, Error> {
    let method = method.name();
    let shown = direct::into_validated(answer, request).map_err(bad(method))?;
    let asked =
        csi::ValidateVolumeCapabilitiesRequest::decode(request.clone()).map_err(bad(method))?;
    let parameters = asked.volume_context.into_iter().chain(asked.parameters).collect();
    let checked = Direct::read(&parameters).and_then(|direct| {
        direct.map_or(Ok(()), |direct| check(&direct, &asked.volume_capabilities))
    });
    let Err(contradiction) = checked else { return Ok(shown) };
    let mut refused =
        csi::ValidateVolumeCapabilitiesResponse::decode(shown.as_slice()).map_err(bad(method))?;
    if refused.confirmed.take().is_none() {
        return Ok(shown);
    }
    refused.message = chain(&contradiction);
    Ok(refused.encode_to_vec())
}

/// The error of a request that asks for something a direct volume cannot do.
fn asked_too_much(method: &'static str) -> impl FnOnce(Contradiction) -> Error {
    move |source| Error::DirectAsked { method, source }
}

/// The error of a message that cannot be read or edited.
fn bad<E: Into<BadRequest>>(method: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::BadRequest { method, source: source.into() }
}

#[cfg(test)]
mod tests {
    use proto::csi::status::ToStatus;

    use super::*;
    use proto::csi::volume_capability::access_mode::Mode;
    use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
    use tonic::Code;

    fn class(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn capability(mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: mode as i32 }),
        }
    }

    fn create(mode: Mode) -> Bytes {
        let volume_capabilities = vec![capability(mode)];
        csi::CreateVolumeRequest { volume_capabilities, ..Default::default() }
            .encode_to_vec()
            .into()
    }

    #[test]
    fn a_create_is_understood_or_refused() {
        let direct = class(&[(direct::KEY, "kata")]);
        check_create(&create(Mode::SingleNodeSingleWriter), &direct).unwrap();
        check_create(&create(Mode::MultiNodeMultiWriter), &class(&[("edge-csi.io/other", "x")]))
            .unwrap();
        for (mode, class) in [
            (Mode::SingleNodeMultiWriter, direct.clone()),
            (Mode::MultiNodeMultiWriter, direct),
            (Mode::SingleNodeSingleWriter, class(&[(direct::KEY, "runc")])),
            (Mode::SingleNodeSingleWriter, class(&[("edge-csi.io/direct-fsck", "never")])),
        ] {
            let refused = check_create(&create(mode), &class).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{}", refused.chain());
        }
    }

    #[test]
    fn a_create_with_an_option_that_no_guest_has_is_refused_with_its_name() {
        let asked = |flag: &str, fs_type: &str| {
            let mount = MountVolume {
                fs_type: fs_type.into(),
                mount_flags: vec!["noatime".into(), flag.into()],
                ..Default::default()
            };
            let mut capability = capability(Mode::SingleNodeSingleWriter);
            capability.access_type = Some(AccessType::Mount(mount));
            let volume_capabilities = vec![capability];
            let create = csi::CreateVolumeRequest { volume_capabilities, ..Default::default() };
            check_create(&create.encode_to_vec().into(), &class(&[(direct::KEY, "kata")]))
        };
        for (flag, fs_type) in
            [("inode64", "xfs"), ("data=ordered", ""), ("X-mount.mkdir", ""), ("user", "xfs")]
        {
            asked(flag, fs_type).unwrap();
        }
        for (flag, fs_type) in
            [("nosuch", ""), ("inode64", "ext4"), ("data=ordered", "xfs"), ("nosymfollow", "xfs")]
        {
            let refused = asked(flag, fs_type).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.chain().contains(&format!("{flag:?}")), "{}", refused.chain());
        }
    }

    #[test]
    fn what_would_be_refused_later_is_not_confirmed() {
        let request = |mode| csi::ValidateVolumeCapabilitiesRequest {
            volume_id: "v".into(),
            volume_context: [(direct::KEY.to_owned(), "kata".to_owned())].into(),
            volume_capabilities: vec![capability(mode)],
            ..Default::default()
        };
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            mutable_parameters: [("iops".to_owned(), "9".to_owned())].into(),
            ..Default::default()
        };
        let answer = csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        };
        let shown = |mode, answer: &csi::ValidateVolumeCapabilitiesResponse| {
            let request = request(mode).encode_to_vec().into();
            let answer = answer.encode_to_vec().into();
            let shown = validated(Method::ValidateVolumeCapabilities, &request, &answer).unwrap();
            csi::ValidateVolumeCapabilitiesResponse::decode(shown.as_slice()).unwrap()
        };
        let taken = shown(Mode::SingleNodeSingleWriter, &answer).confirmed.unwrap();
        assert!(taken.volume_capabilities == [capability(Mode::SingleNodeSingleWriter)]);
        assert_eq!(taken.mutable_parameters["iops"], "9");
        let refused = shown(Mode::MultiNodeMultiWriter, &answer);
        assert!(refused.confirmed.is_none());
        assert!(refused.message.contains("MULTI_NODE_MULTI_WRITER"), "{}", refused.message);
        let theirs =
            csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message: "no".into() };
        assert!(shown(Mode::MultiNodeMultiWriter, &theirs) == theirs);
    }

    #[test]
    fn a_class_may_leave_it_open_and_the_decision_makes_it_one_or_the_other() {
        let auto = class(&[(direct::KEY, "auto"), ("edge-csi.io/direct-fsck", "never")]);
        check_create(&create(Mode::MultiNodeMultiWriter), &auto).unwrap();
        let bad = class(&[(direct::KEY, "auto"), ("edge-csi.io/direct-fsck", "often")]);
        let is_refused = |outcome: Result<(), Error>, word: &str| {
            let refused = outcome.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{}", refused.chain());
            assert!(refused.chain().contains(word), "{}", refused.chain());
        };
        is_refused(check_create(&create(Mode::SingleNodeSingleWriter), &bad), "direct-fsck");
        let made = direct::decided(&auto, true);
        check_create(&create(Mode::SingleNodeSingleWriter), &made).unwrap();
        let shared = check_create(&create(Mode::MultiNodeMultiWriter), &made);
        is_refused(shared, "MULTI_NODE_MULTI_WRITER");
        assert_eq!(direct::decision(&made), Some(true));
        let ordinary = direct::decided(&auto, false);
        check_create(&create(Mode::MultiNodeMultiWriter), &ordinary).unwrap();
        let by = ("edge-csi.io/direct-by", "runtime-class");
        assert_eq!(ordinary, class(&[(direct::KEY, direct::NONE), by]));
        assert_eq!(direct::decision(&ordinary), Some(false));
        assert!(!direct::is_ordinary_since_before(&ordinary));
        assert!(direct::is_ordinary_since_before(&class(&[(direct::KEY, direct::NONE)])));
        assert_eq!(direct::decision(&class(&[(direct::KEY, "kata")])), None);
        // No class can have it.
        is_refused(check_class(&ordinary), "it can be: kata, auto");
        check_class(&auto).unwrap();
        let method = Method::CreateVolume;
        let request = create(Mode::SingleNodeSingleWriter);
        for (settings, is_edited) in [(&auto, false), (&ordinary, false), (&made, true)] {
            let sent = out_of(method, request.clone(), settings).unwrap();
            assert_eq!(sent != request, is_edited);
        }
        // What was left open elsewhere is not guessed.
        let publish = csi::ControllerPublishVolumeRequest {
            volume_context: auto.into_iter().collect(),
            ..Default::default()
        };
        let publish = publish.encode_to_vec().into();
        let refused = of_volume(Method::ControllerPublishVolume, &publish, BTreeMap::new);
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn an_ordinary_volumes_driver_does_not_see_the_decision() {
        let capability = capability(Mode::MultiNodeMultiWriter);
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: "v".into(),
            volume_capability: Some(capability.clone()),
            volume_context: [
                (direct::KEY.to_owned(), direct::NONE.to_owned()),
                ("size".to_owned(), "9".to_owned()),
            ]
            .into(),
            ..Default::default()
        };
        let message = publish.encode_to_vec().into();
        let sent = of_volume(Method::ControllerPublishVolume, &message, BTreeMap::new);
        let VolumeRequest { message, is_direct } = sent.unwrap().unwrap();
        let sent = csi::ControllerPublishVolumeRequest::decode(message).unwrap();
        assert!(!is_direct);
        assert_eq!(sent.volume_context, [("size".to_owned(), "9".to_owned())].into());
        assert!(sent.volume_capability == Some(capability));
    }

    #[test]
    fn only_direct_volumes_calls_are_edited() {
        let expand = csi::ControllerExpandVolumeRequest {
            volume_id: "v".into(),
            volume_capability: Some(capability(Mode::SingleNodeSingleWriter)),
            ..Default::default()
        };
        let message: Bytes = expand.encode_to_vec().into();
        let of = |class: BTreeMap<_, _>| {
            of_volume(Method::ControllerExpandVolume, &message, || class).unwrap()
        };
        assert_eq!(of(class(&[("edge-csi.io/other", "x")])), None);
        assert_eq!(of(class(&[(direct::KEY, direct::NONE)])), None);
        let sent = of(class(&[(direct::KEY, "kata")])).unwrap();
        let sent = csi::ControllerExpandVolumeRequest::decode(sent.message).unwrap();
        assert!(matches!(sent.volume_capability.unwrap().access_type, Some(AccessType::Block(_))));
        let publish = csi::ControllerPublishVolumeRequest {
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            volume_context: [(direct::KEY.to_owned(), "kata".to_owned())].into(),
            ..Default::default()
        };
        let refused = of_volume(
            Method::ControllerPublishVolume,
            &publish.encode_to_vec().into(),
            BTreeMap::new,
        );
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(of_volume(Method::DeleteVolume, &message, BTreeMap::new).unwrap(), None);
    }
}
