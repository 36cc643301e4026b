use crate::csi::direct::*;
use crate::csi::method::Method;
use crate::csi::types as csi;
use proptest::prelude::*;
use prost::Message;

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn read(entries: &[(&str, &str)]) -> Result<Option<Direct>, Contradiction> {
    Direct::read(&map(entries))
}

fn capability(mode: Mode, fs_type: &str) -> VolumeCapability {
    let mount = csi::volume_capability::MountVolume {
        fs_type: fs_type.into(),
        mount_flags: vec!["noatime".into()],
        volume_mount_group: "7".into(),
    };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(csi::volume_capability::AccessMode { mode: mode as i32 }),
    }
}

#[test]
fn a_volume_is_direct_only_if_asked_for() {
    assert_eq!(read(&[]), Ok(None));
    assert_eq!(
        read(&[("type", "ssd"), ("edge-csi.io/directory", "x"), ("edge-csi.io", "kata")]),
        Ok(None)
    );
    assert_eq!(read(&[(KEY, "kata")]), Ok(Some(Direct::default())));
}

#[test]
fn unknown_or_contradictory_settings_are_refused_with_the_known_ones() {
    let text = |entries: &[(&str, &str)]| read(entries).unwrap_err().to_string();
    assert!(text(&[(KEY, "true")]).contains("it can be: kata"));
    assert!(text(&[(KEY, "")]).contains("kata"));
    assert!(
        text(&[("edge-csi.io/direct-fsck", "preen")]).contains("edge-csi.io/direct: kata as well")
    );
    assert!(
        text(&[(KEY, "kata"), ("edge-csi.io/direct-fsk", "preen")])
            .contains("direct-fsk is no key")
    );
    assert!(
        text(&[(KEY, "kata"), ("edge-csi.io/direct-access", "RWO")]).contains("ReadWriteOncePod, ")
    );
    for key in ["kind", "blank", "fsck", "fs-group-change"] {
        assert!(
            text(&[(KEY, "kata"), (&format!("edge-csi.io/direct-{key}"), "x")])
                .contains("it can be")
        );
    }
}

#[test]
fn the_table_of_keys_has_what_a_class_can_have() {
    for key in OF_A_CLASS {
        let read = read(&[(KEY, "kata"), (key, "kata")]);
        assert!(!matches!(read, Err(Contradiction::UnknownKey(_))), "{key}: {read:?}");
    }
    // What csi-cloud adds itself is not among them.
    assert!(!OF_A_CLASS.contains(&"edge-csi.io/direct-by"));
}

#[test]
fn an_access_mode_for_several_pods_is_refused() {
    let pod = Direct::default();
    let once = Direct { access: Access::ReadWriteOnce, ..Direct::default() };
    for (mode, by_pod, by_once) in [
        (Mode::SingleNodeSingleWriter, true, true),
        (Mode::SingleNodeWriter, false, true),
        (Mode::SingleNodeMultiWriter, false, true),
        (Mode::SingleNodeReaderOnly, false, false),
        (Mode::MultiNodeReaderOnly, false, false),
        (Mode::MultiNodeSingleWriter, false, false),
        (Mode::MultiNodeMultiWriter, false, false),
        (Mode::Unknown, false, false),
    ] {
        let name = mode.as_str_name();
        let capability = capability(mode, "xfs");
        assert_eq!(pod.mount(&capability).is_ok(), by_pod, "{name}");
        assert_eq!(once.mount(&capability).is_ok(), by_once, "{name}");
    }
    let refused = pod.mount(&capability(Mode::SingleNodeMultiWriter, "")).unwrap_err().to_string();
    assert!(refused.contains("ReadWriteOncePod") && refused.contains("edge-csi.io/direct-access"));
}

#[test]
fn a_file_system_is_ext4_xfs_or_unset() {
    let of = |fs_type| Direct::default().mount(&capability(Mode::SingleNodeSingleWriter, fs_type));
    assert_eq!(of("").unwrap().file_system, None);
    assert_eq!(of("xfs").unwrap().file_system, Some(FileSystem::Xfs));
    assert_eq!(of("btrfs").unwrap_err(), Contradiction::FileSystem("btrfs".into()));
    let mut block = capability(Mode::SingleNodeSingleWriter, "");
    block.access_type = Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
    assert_eq!(Direct::default().mount(&block).unwrap_err(), Contradiction::Block);
}

#[test]
fn mkfs_gets_options_for_the_layout_only() {
    let of = |words: &str, fs_type: &str| {
        let direct =
            read(&[(KEY, "kata"), ("edge-csi.io/direct-mkfs-options", words)]).unwrap().unwrap();
        direct.mount(&capability(Mode::SingleNodeSingleWriter, fs_type)).map(|_| direct.mkfs)
    };
    assert_eq!(of(" -m0  -O ^has_journal ", "ext4").unwrap(), ["-m0", "-O", "^has_journal"]);
    assert_eq!(of("-K -d agcount=4", "xfs").unwrap().len(), 3);
    for (words, fs_type) in [
        ("/dev/sda", "ext4"),
        ("sda", "ext4"),
        ("-F", "ext4"),
        ("-O", "ext4"),
        ("-L mine", "ext4"),
        ("-U random", "ext4"),
        ("-J device=UUID=x", "ext4"),
        ("-E offset=4096", "ext4"),
        ("-O -F", "ext4"),
        ("-", "ext4"),
        ("-é", "ext4"),
        ("-f", "xfs"),
        ("-m uuid=x", "xfs"),
        ("-l logdev=sdb", "xfs"),
        ("-d file,name=x", "xfs"),
        ("-p proto", "xfs"),
        ("-K", "ext4"),
    ] {
        let refused = of(words, fs_type).unwrap_err();
        let is_named = matches!(&refused, Contradiction::MkfsOption(word) if words.contains(word));
        assert!(is_named, "{words} for {fs_type}: {refused}");
    }
}

fn publish() -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "v".into(),
        volume_capability: Some(capability(Mode::SingleNodeSingleWriter, "ext4")),
        volume_context: [(KEY, "kata"), ("edge-csi.io/direct-fsck", "never"), ("own", "1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        secrets: [(KEY.to_owned(), "a secret of that name".to_owned())].into(),
        ..Default::default()
    }
}

proptest! {
    #[test]
    fn the_driver_sees_a_block_volume_and_all_but_our_keys(
        unknown in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut request = publish();
        let places = Method::NodePublishVolume.places().unwrap();
        let mut message = request.encode_to_vec();
        wire::append(&mut message, &[100], &unknown);
        // Also in the capability; protobuf merges its parts.
        wire::append(&mut message, &[5, 100], &unknown);
        prop_assert_eq!(settings(&message, places).unwrap().len(), 2);
        let sent = for_driver(&message, places).unwrap();
        request.volume_context.retain(|key, _| key == "own");
        let capability = request.volume_capability.as_mut().unwrap();
        capability.access_type = Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
        prop_assert!(csi::NodePublishVolumeRequest::decode(&*sent).unwrap() == request);
        let mut newer = Vec::new();
        wire::append(&mut newer, &[100], &unknown);
        prop_assert_eq!(sent.windows(newer.len()).filter(|part| *part == newer).count(), 2);
    }

    #[test]
    fn any_bytes_are_edited_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        for places in Method::ALL.iter().filter_map(|method| method.places()) {
            let _ = for_driver(&bytes, places);
            let _ = settings(&bytes, places);
        }
    }
}

/// Decodes the edited messages with the generated code.
#[test]
fn the_numbers_are_those_of_the_messages() {
    let capability = || capability(Mode::SingleNodeSingleWriter, "");
    let context = || [(KEY.to_owned(), "kata".to_owned())].into();
    let blocks = |capability: &VolumeCapability| {
        matches!(capability.access_type, Some(AccessType::Block(_)))
    };
    macro_rules! check {
        ($method:ident, $message:ident { $capability:ident: $value:expr $(, $context:ident)? }) => {
            let request = csi::$message {
                $capability: $value,
                $($context: context(),)?
                ..Default::default()
            };
            let places = Method::$method.places().unwrap();
            let sent = for_driver(&request.encode_to_vec(), places).unwrap();
            let sent = csi::$message::decode(&*sent).unwrap();
            assert!(sent.$capability.iter().all(blocks), stringify!($method));
            $(assert!(sent.$context.is_empty(), stringify!($method));)?
        };
    }
    macro_rules! check_one {
        ($method:ident, $message:ident $(, $context:ident)?) => {
            let one = Some(capability());
            check!($method, $message { volume_capability: one $(, $context)? });
        };
    }
    macro_rules! check_several {
        ($method:ident, $message:ident, $context:ident) => {
            let several = vec![capability(), capability()];
            check!($method, $message { volume_capabilities: several, $context });
        };
    }
    check_several!(CreateVolume, CreateVolumeRequest, parameters);
    check_several!(GetCapacity, GetCapacityRequest, parameters);
    check_several!(ValidateVolumeCapabilities, ValidateVolumeCapabilitiesRequest, volume_context);
    check_one!(ControllerPublishVolume, ControllerPublishVolumeRequest, volume_context);
    check_one!(ControllerExpandVolume, ControllerExpandVolumeRequest);
    check_one!(NodeStageVolume, NodeStageVolumeRequest, volume_context);
    check_one!(NodePublishVolume, NodePublishVolumeRequest, volume_context);
    check_one!(NodeExpandVolume, NodeExpandVolumeRequest);
    assert!(Method::DeleteVolume.places().is_none());
}

#[test]
fn the_settings_go_into_the_volumes_context() {
    let volume = csi::Volume {
        volume_id: "v".into(),
        volume_context: [("own".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    let answer = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    let asked = map(&[(KEY, "kata"), ("edge-csi.io/other", "x")]);
    let volume = csi::CreateVolumeResponse::decode(&*into_created_volume(&answer, &asked))
        .unwrap()
        .volume
        .unwrap();
    assert_eq!(volume.volume_id, "v");
    assert_eq!(
        volume.volume_context,
        [("own", "1"), (KEY, "kata")].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    );
}

#[test]
fn the_answer_confirms_the_capabilities_of_the_request() {
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: "v".into(),
        volume_capabilities: vec![capability(Mode::SingleNodeSingleWriter, "xfs")],
        volume_context: [(KEY.to_owned(), "kata".to_owned())].into(),
        ..Default::default()
    };
    let message = request.encode_to_vec();
    let sent = for_driver(&message, Method::ValidateVolumeCapabilities.places().unwrap()).unwrap();
    let sent = csi::ValidateVolumeCapabilitiesRequest::decode(&*sent).unwrap();
    let confirmed = csi::validate_volume_capabilities_response::Confirmed {
        volume_capabilities: sent.volume_capabilities,
        ..Default::default()
    };
    // With an unknown field in the confirmation.
    let mut answer = Vec::new();
    let mut newer = confirmed.encode_to_vec();
    wire::append(&mut newer, &[15], b"new");
    wire::append(&mut answer, &[1], &newer);
    let shown = into_validated(&answer, &message).unwrap();
    assert!(shown.windows(3).any(|bytes| bytes == b"new"));
    let shown =
        csi::ValidateVolumeCapabilitiesResponse::decode(&*shown).unwrap().confirmed.unwrap();
    assert!(shown.volume_capabilities == request.volume_capabilities);
    assert_eq!(shown.volume_context, request.volume_context);
    let refused = csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message: "no".into() }
        .encode_to_vec();
    assert_eq!(into_validated(&refused, &message).unwrap(), refused);
}
