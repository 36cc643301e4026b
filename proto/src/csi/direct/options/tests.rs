//! Each option that guests get, each that stays at the host, and each that is refused.

use super::*;

fn of(flags: &[&str], read_only: bool) -> Result<Vec<String>, Contradiction> {
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    for_guest(&flags, FileSystem::Ext4, read_only).map(|found| found.options)
}

fn refused(flag: &str, file_system: FileSystem) -> String {
    for_guest(&[flag.to_owned()], file_system, false).unwrap_err().to_string()
}

#[test]
fn what_belongs_to_the_host_stays_there_and_is_named() {
    let flags =
        ["bind", "rbind", "rw", "noatime", "context=\"system_u:object_r:x:s0:c1,c2\"", "x-a"];
    assert_eq!(of(&flags, false).unwrap(), ["noatime"]);
    assert_eq!(of(&["nosuid,context=x"], false).unwrap(), ["nosuid"]);
    assert_eq!(
        of(&["rprivate,nosuid", "nosuid", " nodev ", ""], false).unwrap(),
        ["nosuid", "nodev"]
    );
    assert_eq!(of(&["fscontext=a", "_netdev", "defaults"], false).unwrap(), [""; 0]);
    for word in [
        "X-mount.mkdir",
        "X-mount.mode=0755",
        "x-systemd.automount",
        "user",
        "user=joe",
        "users",
        "nouser",
        "owner",
        "group",
        "nogroup",
        "comment=mine",
        "uhelper=udisks2",
        "helper=x",
        "auto",
        "noauto",
        "nofail",
        "_netdev",
        "defaults",
        "silent",
        "remount",
    ] {
        let found = for_guest(&[word.to_owned()], FileSystem::Xfs, false).unwrap();
        assert_eq!(found, GuestOptions { options: vec![], dropped: vec![word.to_owned()] });
    }
}

#[test]
fn read_only_is_said_once() {
    assert_eq!(of(&["ro", "noatime"], true).unwrap(), ["noatime", "ro"]);
    assert_eq!(of(&["ro"], false).unwrap(), ["ro"]);
    assert_eq!(of(&["rw"], true).unwrap(), ["ro"]);
    assert!(for_guest(&["ro".to_owned()], FileSystem::Xfs, false).unwrap().is_read_only());
    assert!(!for_guest(&["sync".to_owned()], FileSystem::Xfs, false).unwrap().is_read_only());
}

#[test]
fn what_would_mount_something_else_is_refused() {
    for flag in [
        "loop",
        "loop=/dev/loop1",
        "offset=4096",
        "sizelimit=1",
        "encryption=aes",
        "logdev=/dev/sdb",
        "rtdev=/dev/sdb",
        "journal_dev=0x1",
        "journal_path=/dev/sdb",
        "sb=131072",
        "noload",
        "norecovery",
        "dax",
        "dax=always",
        "abort",
        "nosymfollow",
        "nouuid",
    ] {
        for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
            let why = refused(flag, file_system);
            assert!(why.contains(&format!("{flag:?}")), "{why}");
        }
        let refused = of(&["noatime", flag], false).unwrap_err();
        let is_named =
            matches!(&refused, Contradiction::MountOption { option, .. } if option == flag);
        assert!(is_named, "{flag}: {refused}");
    }
    for name in super::refused() {
        assert!(refused(name, FileSystem::Xfs).contains(name));
    }
}

#[test]
fn what_no_list_knows_is_refused_with_its_name() {
    for flag in ["nosuch", "nobh", "verity.roothash=1", "uid=0", "subvol=x", "Noatime", "=", "a=b"]
    {
        let why = refused(flag, FileSystem::Ext4);
        assert!(why.contains(&format!("{flag:?}")) && why.contains("ext4"), "{why}");
    }
    assert!(refused("inode64", FileSystem::Ext4).contains("none of the known options of ext4"));
    assert!(refused("commit=5", FileSystem::Xfs).contains("none of the known options of xfs"));
    assert!(refused("noatime,nosuch", FileSystem::Xfs).contains("\"nosuch\""));
}

#[test]
fn a_value_is_one_that_the_option_takes() {
    for (flag, file_system) in [
        ("data=journal", FileSystem::Ext4),
        ("errors=remount-ro", FileSystem::Ext4),
        ("barrier", FileSystem::Ext4),
        ("barrier=0", FileSystem::Ext4),
        ("commit=30", FileSystem::Ext4),
        ("logbsize=256k", FileSystem::Xfs),
        ("logbufs=8", FileSystem::Xfs),
        ("allocsize=1m", FileSystem::Xfs),
        ("inode64", FileSystem::Xfs),
    ] {
        let found = for_guest(&[flag.to_owned()], file_system, false).unwrap();
        assert_eq!(found.options, [flag]);
    }
    for (flag, file_system) in [
        ("data=", FileSystem::Ext4),
        ("data=x", FileSystem::Ext4),
        ("data", FileSystem::Ext4),
        ("noatime=1", FileSystem::Ext4),
        ("commit=-1", FileSystem::Ext4),
        ("commit=1k", FileSystem::Ext4),
        ("logbsize=k", FileSystem::Xfs),
        ("logbsize=1 k", FileSystem::Xfs),
        ("logbufs=8=8", FileSystem::Xfs),
        ("logbufs=1", FileSystem::Xfs),
        ("logbufs=9", FileSystem::Xfs),
    ] {
        assert!(refused(flag, file_system).contains("with this value"), "{flag}");
    }
}

#[test]
fn what_a_kernel_takes_only_with_another_option_is_refused_without_it() {
    for data in ["data=writeback", "data=journal"] {
        let flags = ["journal_async_commit", data];
        assert_eq!(of(&flags, false).unwrap(), flags);
    }
    for data in ["data=ordered", "noatime", "data=writeback,data=ordered"] {
        let why = of(&["journal_async_commit", data], false).unwrap_err().to_string();
        assert!(why.contains("\"journal_async_commit\"") && why.contains("writeback"), "{why}");
    }
}

#[test]
fn each_option_has_one_place_and_is_given_to_guests() {
    let names = |list: &[(&'static str, Value)]| -> Vec<&str> {
        list.iter().map(|(name, _)| *name).collect()
    };
    for (file_system, own) in [(FileSystem::Ext4, &EXT4[..]), (FileSystem::Xfs, &XFS[..])] {
        for flag in examples(file_system) {
            let with = (flag == "journal_async_commit").then(|| "data=writeback".to_owned());
            let flags: Vec<_> = Some(flag).into_iter().chain(with).collect();
            let found = for_guest(&flags, file_system, false).unwrap();
            assert_eq!(found.options, flags);
        }
        for (name, _) in GENERIC.iter().chain(own) {
            assert!(!is_of_the_host(name) && !REFUSED.iter().any(|(there, _)| there == name));
        }
        let listed = names(own);
        assert!(listed.iter().all(|name| !names(&GENERIC).contains(name)), "{listed:?}");
    }
}
