//! The contract byte for byte, as the runtimes' own code has it, and how others' entries are
//! treated.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

fn info(device: &str) -> MountInfo {
    MountInfo {
        volume_type: "directvol".into(),
        device: device.into(),
        fstype: "ext4".into(),
        metadata: [(DRIVER, "d"), (VOLUME, "v")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        options: vec!["noatime".into()],
    }
}

fn root() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::new(dir.path().join("shared/direct-volumes"));
    (dir, root)
}

fn read(root: &Root, source: &Path) -> Option<MountInfo> {
    match root.content(source).unwrap() {
        Content::Whole(info) => Some(info),
        _ => None,
    }
}

fn is_taken(refused: &MountInfoError, why: &str) -> bool {
    matches!(refused, MountInfoError::Taken { by, .. } if by.contains(why))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn names_are_those_of_the_runtimes() {
    let name = |source: &str| entry_name(Path::new(source)).unwrap();
    assert_eq!(name("/a"), "L2E=");
    // The kubelet's `~` is where the standard alphabet would have a `+` or `/`.
    assert_eq!(
        name("/var/lib/kubelet/pods/9b5/volumes/kubernetes.io~csi/pvc-1/mount"),
        "L3Zhci9saWIva3ViZWxldC9wb2RzLzliNS92b2x1bWVzL2t1YmVybmV0ZXMuaW9-Y3NpL3B2Yy0xL21vdW50"
    );
    assert_eq!(name("/x~?"), "L3h-Pw==");
    let longest = format!("/{}", "x".repeat(LONGEST - 1));
    assert_eq!(name(&longest).len(), 252);
    let longer = format!("/{}", "x".repeat(LONGEST));
    assert!(matches!(entry_name(Path::new(&longer)), Err(MountInfoError::TooLong(190))));
}

#[test]
fn the_file_is_written_as_both_runtimes_read_it() {
    let (_dir, root) = root();
    root.publish(Path::new("/a"), &info("/dev/loop3")).unwrap();
    let entry = root.0.join("L2E=");
    let text = std::fs::read_to_string(entry.join("mountInfo.json")).unwrap();
    assert_eq!(
        text,
        "{\"volume-type\":\"directvol\",\"device\":\"/dev/loop3\",\"fstype\":\"ext4\",\
         \"metadata\":{\"edge-csi.io/driver\":\"d\",\"edge-csi.io/volume-id\":\"v\"},\
         \"options\":[\"noatime\"]}"
    );
    assert_eq!((mode(&root.0), mode(&entry), mode(&entry.join(FILE))), (0o700, 0o700, 0o600));
    let files: Vec<_> =
        std::fs::read_dir(&entry).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, [FILE], "anything else is taken for a sandbox");
    assert_eq!(std::fs::read_dir(&root.0).unwrap().count(), 1);
}

#[test]
fn what_others_write_is_read() {
    let parsed = |text: &str| serde_json::from_str::<MountInfo>(text);
    let theirs =
        parsed(r#"{"volume-type":"blk","device":"/dev/sda","fstype":"xfs","newer":[1]}"#).unwrap();
    assert_eq!((&*theirs.volume_type, theirs.options.len(), theirs.metadata.len()), ("blk", 0, 0));
    // runtime-rs: "missing field `volume-type`".
    let named = parsed(r#"{"volume_type":"blk","device":"x","fs_type":"xfs"}"#).unwrap_err();
    assert!(named.to_string().contains("missing field `volume-type`"), "{named}");
    let typed = parsed(r#"{"volume-type":"x","device":"","fstype":"","metadata":"{}"}"#);
    let typed = typed.unwrap_err().to_string();
    assert!(typed.contains("expected a map"), "{typed}");
}

#[test]
fn the_same_again_leaves_the_sandboxes_id_alone_and_another_device_is_refused() {
    let (_dir, root) = root();
    let source = Path::new("/a");
    root.publish(source, &info("/dev/loop3")).unwrap();
    let sandbox = root.entry(source).unwrap().join("sandbox1");
    publish(&sandbox, b"", 0o600, Existing::Keep).unwrap();
    root.publish(source, &info("/dev/loop3")).unwrap();
    assert!(sandbox.exists());
    let refused = root.publish(source, &info("/dev/loop4")).unwrap_err().to_string();
    assert!(refused.contains("is for volume v of driver d"), "{refused}");
    assert_eq!(read(&root, source), Some(info("/dev/loop3")));
    root.remove(source, "d", "v").unwrap();
    assert!(!root.entry(source).unwrap().exists());
    root.remove(source, "d", "v").unwrap();
    root.publish(source, &info("/dev/loop4")).unwrap();
    let beside = root.0.parent().unwrap().join(".edge-csi");
    assert_eq!(std::fs::read_dir(beside).unwrap().count(), 0, "something was left behind");
}

#[test]
fn what_others_have_written_is_neither_replaced_nor_removed() {
    let (_dir, root) = root();
    let source = Path::new("/a");
    let entry = root.entry(source).unwrap();
    std::fs::create_dir_all(&entry).unwrap();
    let theirs = br#"{"volume-type":"blk","device":"/dev/sda","fstype":"xfs"}"#;
    publish(&entry.join(FILE), theirs, 0o600, Existing::Keep).unwrap();
    let refused = [
        root.is_open(source, ("d", "v"), false).unwrap_err(),
        root.publish(source, &info("/dev/loop3")).unwrap_err(),
    ];
    for refused in refused {
        assert!(is_taken(&refused, "somebody else, for device /dev/sda"), "{refused}");
    }
    root.remove(source, "d", "v").unwrap();
    assert_eq!(std::fs::read(entry.join(FILE)).unwrap(), theirs);
    // Another of our volumes counts as another's too.
    let other = Path::new("/b");
    root.publish(other, &info("/dev/loop3")).unwrap();
    let refused = root.is_open(other, ("d", "w"), false).unwrap_err();
    assert!(is_taken(&refused, "is for volume v of driver d"), "{refused}");
    root.is_open(other, ("d", "v"), false).unwrap();
    root.remove(other, "d", "w").unwrap();
    assert!(read(&root, other).is_some());
}

#[test]
fn what_somebody_left_half_done_is_not_run_over_unless_it_is_empty() {
    let (_dir, root) = root();
    let free = Path::new("/a");
    std::fs::create_dir_all(root.entry(free).unwrap()).unwrap();
    root.is_open(free, ("d", "v"), false).unwrap();
    root.publish(free, &info("/dev/loop3")).unwrap();
    for (name, file, by) in
        [("/b", "sandbox1", "has no mountInfo.json"), ("/c", FILE, "cannot be read")]
    {
        let source = Path::new(name);
        let entry = root.entry(source).unwrap();
        std::fs::create_dir_all(&entry).unwrap();
        publish(&entry.join(file), b"", 0o600, Existing::Keep).unwrap();
        let refused = root.is_open(source, ("d", "v"), false).unwrap_err();
        assert!(is_taken(&refused, by), "{name}: {refused}");
        let refused = root.publish(source, &info("/dev/loop3")).unwrap_err();
        assert!(is_taken(&refused, by), "{name}: {refused}");
    }
}

#[test]
fn what_was_on_its_way_when_it_was_killed_is_removed_and_nothing_else() {
    let (_dir, root) = root();
    root.publish(Path::new("/a"), &info("/dev/loop3")).unwrap();
    let another = root.beside().unwrap();
    let half = root.neighbour().join("half");
    for entry in [half.join("entry"), another.entry()] {
        std::fs::create_dir_all(&entry).unwrap();
        publish(&entry.join(FILE), b"{", 0o600, Existing::Keep).unwrap();
    }
    root.tidy();
    assert!(!half.exists());
    assert!(another.entry().join(FILE).exists(), "another csi-edge builds it");
    drop(another);
    assert_eq!(std::fs::read_dir(root.neighbour()).unwrap().count(), 0);
    assert_eq!(read(&root, Path::new("/a")), Some(info("/dev/loop3")));
}

proptest! {
    #[test]
    fn any_file_is_read_or_an_error(text in ".*") {
        let _ = serde_json::from_str::<MountInfo>(&text);
    }

    #[test]
    fn a_name_leads_back_to_its_source_and_out_of_no_directory(source in "/.{0,180}") {
        if let Ok(name) = entry_name(Path::new(&source)) {
            prop_assert!(name.len() <= 255 && !name.contains('/') && name != "..");
            prop_assert_eq!(URL_SAFE.decode(name).unwrap(), source.as_bytes());
        }
    }
}
