//! Refuses parameters with our prefix that csi-cloud does not know: a misspelt one would be dropped
//! without a word.

use proto::csi::direct::OF_A_CLASS;
use proto::csi::wire;
use proto::csi::wire::Malformed;
use proto::csi::{Class, Method};

use super::parameters::OURS;
use crate::error::Error;

/// A longer key is cut, in characters.
const LONGEST: usize = 100;

/// Refuses a request if its class has an `edge-csi.io/` parameter that such a class cannot have.
///
/// # Errors
/// It has one, or the request is malformed.
pub(crate) fn check(method: Method, request: &[u8]) -> Result<(), Error> {
    let classes = method.classes();
    if classes.is_empty() {
        return Ok(());
    }
    let method = method.name();
    let malformed = |source: Malformed| Error::BadRequest { method, source: source.into() };
    for field in wire::fields(request) {
        let field = field.map_err(malformed)?;
        let class = classes.iter().find(|(number, _)| *number == field.number);
        let Some(((_, class), entry)) = class.zip(field.content) else { continue };
        let (key, _) = wire::read_entry(entry).map_err(malformed)?;
        if let Some(why) = fault(*class, key) {
            let key: String = key.chars().take(LONGEST).collect();
            let why = format!("its {} has {key:?}, {why}", class.kind());
            return Err(Error::UnknownParameter(method, why));
        }
    }
    Ok(())
}

/// The fault of a parameter; none if it is known there, or has another prefix.
fn fault(class: Class, key: &str) -> Option<String> {
    if !key.starts_with(OURS) {
        return None;
    }
    let is_known = OF_A_CLASS.contains(&key);
    match (class, is_known) {
        (Class::Storage, true) => None,
        (_, true) => Some("which only a StorageClass can have; it cannot be changed later".into()),
        (_, false) => Some(format!(
            "which csi-cloud does not know; the nearest known one is {}, and a StorageClass can \
             have: {}",
            nearest(key),
            OF_A_CLASS.join(", ")
        )),
    }
}

/// The known key that differs least.
fn nearest(key: &str) -> &'static str {
    let key: String = key.chars().take(LONGEST).collect();
    let distance = |known: &&str| strsim::damerau_levenshtein(known, &key);
    OF_A_CLASS.into_iter().min_by_key(distance).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prost::Message;
    use proto::csi;
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;

    fn map(key: &str) -> HashMap<String, String> {
        [(key, "kata"), ("type", "ssd"), ("csi.storage.k8s.io/pv/name", "pvc-1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    /// A request of each kind with this parameter: method, kind of the class, request.
    fn requests(key: &str) -> [(Method, &'static str, Vec<u8>); 5] {
        let parameters = || map(key);
        let mutable_parameters = map(key);
        let volume = csi::CreateVolumeRequest { parameters: parameters(), ..Default::default() };
        let changeable = csi::CreateVolumeRequest { mutable_parameters, ..Default::default() };
        let mutable_parameters = map(key);
        let modify =
            csi::ControllerModifyVolumeRequest { mutable_parameters, ..Default::default() };
        let snapshot =
            csi::CreateSnapshotRequest { parameters: parameters(), ..Default::default() };
        let group = csi::CreateVolumeGroupSnapshotRequest {
            parameters: parameters(),
            ..Default::default()
        };
        [
            (Method::CreateVolume, "StorageClass", volume.encode_to_vec()),
            (Method::CreateVolume, "VolumeAttributesClass", changeable.encode_to_vec()),
            (Method::ControllerModifyVolume, "VolumeAttributesClass", modify.encode_to_vec()),
            (Method::CreateSnapshot, "VolumeSnapshotClass", snapshot.encode_to_vec()),
            (Method::CreateVolumeGroupSnapshot, "VolumeGroupSnapshotClass", group.encode_to_vec()),
        ]
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_nearest_and_all_known_ones() {
        for (method, class, request) in requests("edge-csi.io/direct-fsk") {
            let refused = check(method, &request).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            let text = refused.to_string();
            for part in [
                method.name(),
                class,
                "\"edge-csi.io/direct-fsk\"",
                "nearest known one is edge-csi.io/direct-fsck,",
                "edge-csi.io/direct-mkfs-options",
            ] {
                assert!(text.contains(part), "no {part}: {text}");
            }
        }
    }

    #[test]
    fn known_ones_are_a_storage_classs_only() {
        for key in OF_A_CLASS {
            for (method, class, request) in requests(key) {
                let checked = check(method, &request);
                if class == "StorageClass" {
                    checked.unwrap();
                } else {
                    let text = checked.unwrap_err().to_string();
                    assert!(text.contains("only a StorageClass"), "{text}");
                }
            }
        }
    }

    #[test]
    fn other_prefixes_and_other_fields_are_not_ours() {
        for key in ["edge-csi.io", "x.edge-csi.io/direct", "csi.storage.k8s.io/pvc/name"] {
            for (method, _, request) in requests(key) {
                check(method, &request).unwrap();
            }
        }
        let secrets = map("edge-csi.io/x");
        let request = csi::CreateVolumeRequest { secrets, ..Default::default() }.encode_to_vec();
        check(Method::CreateVolume, &request).unwrap();
        let parameters = map("edge-csi.io/x");
        let request = csi::GetCapacityRequest { parameters, ..Default::default() }.encode_to_vec();
        check(Method::GetCapacity, &request).unwrap();
    }

    #[test]
    fn a_long_key_is_cut_and_a_broken_request_is_an_error() {
        let key = format!("edge-csi.io/{}", "é".repeat(100_000));
        let [(method, _, request), ..] = requests(&key);
        assert!(check(method, &request).unwrap_err().to_string().len() < 1000);
        assert!(check(Method::CreateVolume, b"\x22\xff").is_err());
    }
}
