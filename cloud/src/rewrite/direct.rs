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
use proto::csi::wire;
use proto::csi::wire::Malformed;
use proto::csi::{DirectCall, Method, Resource};
use proto::host::chain;

use crate::error::Error;
use crate::rewrite::parameters::OURS;

// Field numbers of CSI messages; the tests decode the edited messages with the generated code.
const CREATED_WITH: u32 = 8;
const MODIFIED_TO: u32 = 3;

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
    let contradiction = |source| Error::DirectAsked { method, source };
    none_is_ours(method, request, CREATED_WITH)?;
    let Some(direct) = Direct::read(parameters).map_err(contradiction)? else { return Ok(()) };
    let bad = |source| Error::BadRequest { method, source: BadRequest::Protobuf(source) };
    let request = csi::CreateVolumeRequest::decode(request.clone()).map_err(bad)?;
    check(&direct, &request.volume_capabilities).map_err(contradiction)
}

/// Refuses our keys among the mutable parameters: they would reach the driver and mean nothing.
fn none_is_ours(method: &'static str, request: &[u8], mutable: u32) -> Result<(), Error> {
    let malformed = |source: Malformed| Error::BadRequest { method, source: source.into() };
    for field in wire::fields(request) {
        let field = field.map_err(malformed)?;
        let Some(entry) = field.content.filter(|_| field.number == mutable) else { continue };
        let (key, _) = wire::read_entry(entry).map_err(malformed)?;
        if key.starts_with(OURS) {
            return Err(Error::DirectAsked {
                method,
                source: Contradiction::Mutable(key.to_owned()),
            });
        }
    }
    Ok(())
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
    match method.places().filter(|_| parameters.contains_key(direct::KEY)) {
        Some(places) => direct::for_driver(&request, places).map(Bytes::from),
        None => Ok(request),
    }
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
) -> Result<Option<Bytes>, Error> {
    let method = rpc.name();
    let is_attach = match rpc.direct() {
        Some(DirectCall::Modify) => {
            return none_is_ours(method, request, MODIFIED_TO).map(|()| None);
        }
        Some(DirectCall::Attach) => true,
        Some(DirectCall::Validate | DirectCall::Expand) => false,
        Some(
            DirectCall::Create | DirectCall::Capacity | DirectCall::Delete | DirectCall::Node(_),
        )
        | None => {
            return Ok(None);
        }
    };
    let malformed = |source: Malformed| Error::BadRequest { method, source: source.into() };
    let Some(places) = rpc.places() else { return Ok(None) };
    let parameters = match places.context {
        [] => class(),
        _ => direct::settings(request, places).map_err(malformed)?,
    };
    let contradiction = |source| Error::DirectAsked { method, source };
    let Some(direct) = Direct::read(&parameters).map_err(contradiction)? else { return Ok(None) };
    if is_attach {
        let bad = |source| Error::BadRequest { method, source: BadRequest::Protobuf(source) };
        let request = csi::ControllerPublishVolumeRequest::decode(request.clone()).map_err(bad)?;
        check(&direct, request.volume_capability.as_slice()).map_err(contradiction)?;
    }
    direct::for_driver(request, places).map(|request| Some(request.into())).map_err(malformed)
}

/// The answer to ValidateVolumeCapabilities about a direct volume. Capabilities that we would
/// refuse later are not confirmed, even if the driver supports them. CSI: "confirmed" is set only
/// if all that was asked for is supported.
///
/// # Errors
/// The request or the answer is malformed.
pub(crate) fn validated(method: Method, request: &Bytes, answer: &Bytes) -> Result<Vec<u8>, Error> {
    let method = method.name();
    let bad = |source| Error::BadRequest { method, source: BadRequest::Protobuf(source) };
    let malformed = |source: Malformed| Error::BadRequest { method, source: source.into() };
    let shown = direct::into_validated(answer, request).map_err(malformed)?;
    let asked = csi::ValidateVolumeCapabilitiesRequest::decode(request.clone()).map_err(bad)?;
    let parameters = asked.volume_context.into_iter().chain(asked.parameters).collect();
    let checked = Direct::read(&parameters).and_then(|direct| {
        direct.map_or(Ok(()), |direct| check(&direct, &asked.volume_capabilities))
    });
    let Err(contradiction) = checked else { return Ok(shown) };
    let mut refused =
        csi::ValidateVolumeCapabilitiesResponse::decode(shown.as_slice()).map_err(bad)?;
    if refused.confirmed.take().is_none() {
        return Ok(shown);
    }
    refused.message = chain(&contradiction);
    Ok(refused.encode_to_vec())
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
    fn our_keys_reach_no_driver_as_mutable_parameters() {
        let parameters = |key: &str| [(key.to_owned(), "kata".to_owned())].into();
        let create = |key| csi::CreateVolumeRequest {
            mutable_parameters: parameters(key),
            ..Default::default()
        };
        let modify = |key| csi::ControllerModifyVolumeRequest {
            volume_id: "v".into(),
            mutable_parameters: parameters(key),
            ..Default::default()
        };
        let asked = |key| {
            let modify = modify(key).encode_to_vec().into();
            let modified = of_volume(Method::ControllerModifyVolume, &modify, BTreeMap::new);
            (check_create(&create(key).encode_to_vec().into(), &BTreeMap::new()), modified)
        };
        for key in [direct::KEY, "edge-csi.io/direct-fsck", "edge-csi.io/new"] {
            let (created, modified) = asked(key);
            assert_eq!(created.unwrap_err().code(), Code::InvalidArgument);
            assert_eq!(modified.unwrap_err().code(), Code::InvalidArgument);
        }
        let (created, modified) = asked("iops");
        created.unwrap();
        assert_eq!(modified.unwrap(), None);
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
        let sent = of(class(&[(direct::KEY, "kata")])).unwrap();
        let sent = csi::ControllerExpandVolumeRequest::decode(sent).unwrap();
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
