//! Parameters of a StorageClass for csi-cloud (`edge-csi.io/…`), and the claim of a volume.
//!
//! Our parameters are removed, because drivers refuse unknown ones. All other fields pass
//! unchanged.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};

use crate::state::record::Claim;

/// The prefix of parameters for csi-cloud.
pub const OURS: &str = "edge-csi.io/";

// Field numbers of CSI messages; the tests decode the edited messages with the generated code.
const VOLUME_PARAMETERS: u32 = 4;
const CAPACITY_PARAMETERS: u32 = 2;

// Added by external-provisioner with --extra-create-metadata.
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";
/// The longest name in Kubernetes, in bytes. Longer names come from somebody else and are not kept.
const LONGEST: usize = 253;

/// A CreateVolume for the driver, and our parameters.
///
/// # Errors
/// The request is malformed.
pub fn out_of_create_volume(
    request: &Bytes,
) -> Result<(Bytes, BTreeMap<String, String>), Malformed> {
    out_of(request, VOLUME_PARAMETERS)
}

/// A GetCapacity for the driver, and our parameters.
///
/// # Errors
/// The request is malformed.
pub fn out_of_capacity(request: &Bytes) -> Result<(Bytes, BTreeMap<String, String>), Malformed> {
    out_of(request, CAPACITY_PARAMETERS)
}

/// The claim of a CreateVolume, if the provisioner names it.
///
/// # Errors
/// The request is malformed.
pub fn claim(create_volume: &[u8]) -> Result<Option<Claim>, Malformed> {
    let mut name = None;
    let mut namespace = None;
    let mut volume = None;
    for field in wire::fields(create_volume) {
        let field = field?;
        let Some(entry) = field.content.filter(|_| field.number == VOLUME_PARAMETERS) else {
            continue;
        };
        let (key, value) = wire::read_entry(entry)?;
        let found = match key {
            CLAIM_NAME => &mut name,
            CLAIM_NAMESPACE => &mut namespace,
            VOLUME_NAME => &mut volume,
            _ => continue,
        };
        *found = Some(value.to_owned()).filter(|name| name.len() <= LONGEST);
    }
    Ok(name.zip(namespace).map(|(name, namespace)| Claim {
        namespace: namespace.into(),
        name: name.into(),
        volume: volume.unwrap_or_default().into(),
    }))
}

fn out_of(
    request: &Bytes,
    parameters: u32,
) -> Result<(Bytes, BTreeMap<String, String>), Malformed> {
    let mut ours = BTreeMap::new();
    let edited = wire::edit(request, &[parameters], |entry| {
        let (key, value) = wire::read_entry(entry)?;
        if !key.starts_with(OURS) {
            return Ok(Edit::Keep);
        }
        ours.insert(key.to_owned(), value.to_owned());
        Ok(Edit::Drop)
    })?;
    Ok((edited.map_or_else(|| request.clone(), Bytes::from), ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use proto::csi;

    fn map(entries: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn with_unknown(message: &impl Message) -> Bytes {
        [message.encode_to_vec(), b"\xa2\x06\x03new".to_vec()].concat().into()
    }

    #[test]
    fn ours_are_taken_out_and_given_back() {
        let parameters = map(&[
            ("edge-csi.io/direct", "true"),
            ("type", "ssd"),
            ("topology.edge-csi.io/node", "n"),
        ]);
        let secrets = map(&[("edge-csi.io/direct", "not a parameter")]);
        let mut request = csi::CreateVolumeRequest {
            parameters,
            secrets,
            name: "v".into(),
            ..Default::default()
        };
        let (sent, ours) = out_of_create_volume(&with_unknown(&request)).unwrap();
        assert_eq!(ours, BTreeMap::from([("edge-csi.io/direct".to_owned(), "true".to_owned())]));
        request.parameters.remove("edge-csi.io/direct");
        assert!(csi::CreateVolumeRequest::decode(sent.clone()).unwrap() == request);
        assert!(sent.ends_with(b"\xa2\x06\x03new"));

        let parameters = map(&[("edge-csi.io/a", "1"), ("edge-csi.io/b", "2")]);
        let request = csi::GetCapacityRequest { parameters, ..Default::default() };
        let (sent, ours) = out_of_capacity(&with_unknown(&request)).unwrap();
        assert_eq!((&*sent, ours.len()), (b"\xa2\x06\x03new".as_slice(), 2));
    }

    #[test]
    fn a_request_without_ours_is_not_even_copied() {
        let parameters = map(&[("edge-csi.io", "1"), ("type", "ssd")]);
        let request = with_unknown(&csi::CreateVolumeRequest {
            parameters,
            name: "v".into(),
            ..Default::default()
        });
        let (sent, ours) = out_of_create_volume(&request).unwrap();
        assert_eq!((sent.as_ptr(), ours.len()), (request.as_ptr(), 0));
        assert!(out_of_create_volume(&Bytes::from_static(b"\x22\x04\x0a\x02\xff\xfe")).is_err());
    }

    #[test]
    fn the_claim_is_known_if_the_provisioner_says_it() {
        let of = |entries: &[(&str, &str)]| {
            let request =
                csi::CreateVolumeRequest { parameters: map(entries), ..Default::default() };
            claim(&request.encode_to_vec()).unwrap()
        };
        let name = (CLAIM_NAME, "data");
        let namespace = (CLAIM_NAMESPACE, "shop");
        let mut expected =
            Claim { namespace: "shop".into(), name: "data".into(), volume: "".into() };
        assert_eq!(of(&[name, namespace, ("type", "ssd")]), Some(expected.clone()));
        expected.volume = "pvc-1".into();
        assert_eq!(of(&[name, namespace, (VOLUME_NAME, "pvc-1")]), Some(expected));
        assert_eq!(of(&[name]), None);
        assert_eq!(of(&[name, (CLAIM_NAMESPACE, &"n".repeat(LONGEST + 1))]), None);
        assert!(claim(b"\x22\xff").is_err());
    }
}
