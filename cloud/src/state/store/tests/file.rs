//! What can happen to a file only: another owner, truncation, damage.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use redb::{Database, ReadableDatabase, TableDefinition};

use crate::state::store::format::NEWEST;
use crate::state::store::tests::*;

/// The error chain, as `csi-cloud serve` prints it.
fn refusal(path: &Path) -> String {
    proto::host::chain(&File::open(path).err().unwrap()).to_string()
}

fn put(path: &Path, content: &[u8]) {
    fs::File::create(path).unwrap().write_all(content).unwrap();
}

#[test]
fn it_is_made_for_its_owner_alone_and_nothing_is_left_beside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/store");
    drop(File::open(&path).unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&dir.path().join("a")), 0o700);
    assert_eq!(mode(&dir.path().join("a/b")), 0o700);
    assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
}

#[test]
fn it_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let first = File::open(&path).unwrap();
    assert!(refusal(&path).contains("another process has it open"), "{}", refusal(&path));
    drop(first);
    File::open(&path).unwrap();
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(File::open(&path).unwrap());
    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    writing
        .open_table(TableDefinition::<&str, u64>::new("meta"))
        .unwrap()
        .insert("format", NEWEST + 1)
        .unwrap();
    writing.commit().unwrap();
    drop(database);
    let refused = refusal(&path);
    for word in ["made by a newer csi-cloud, in format 5", "up to 4", "start the newer one"] {
        assert!(refused.contains(word), "{refused}");
    }
}

/// The format that a file states.
fn stated(path: &Path) -> u64 {
    let database = Database::open(path).unwrap();
    let reading = database.begin_read().unwrap();
    let meta = reading.open_table(TableDefinition::<&str, u64>::new("meta")).unwrap();
    meta.get("format").unwrap().unwrap().value()
}

#[test]
fn an_older_csi_cloud_is_kept_away_as_long_as_it_would_give_a_volume_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let lease = |id: &str, claims: &[&str]| {
        let claim = |node: &&str| LeaseClaim { node: node.parse().unwrap(), epoch: 7, since: 1 };
        let record =
            LeaseRecord { claims: claims.iter().map(claim).collect(), ..LeaseRecord::default() };
        Change::Lease("d.example".parse().unwrap(), Id::Volume(id.into()), Some(record))
    };
    let gone = |id: &str| Change::Lease("d.example".parse().unwrap(), Id::Volume(id.into()), None);
    let commit = |changes: &[Change]| {
        let mut file = File::open(&path).unwrap();
        loaded(&mut file).unwrap();
        file.commit(changes).unwrap();
        drop(file);
        stated(&path)
    };
    assert_eq!(commit(&[volume("v", Some(home("n1"))), lease("v", &[])]), 1);
    assert_eq!(commit(&[lease("v", &["n1", "n2"]), lease("w", &["n1"])]), 2);
    assert_eq!(commit(&[volume("x", Some(home("n1"))), gone("w")]), 2, "there is still one");
    let mut unread = File::open(&path).unwrap();
    unread.commit(&[volume("y", Some(home("n1")))]).unwrap();
    drop(unread);
    assert_eq!(stated(&path), 2, "nobody looked at the records");
    assert_eq!(commit(&[lease("v", &[])]), 1, "it is settled");
    assert_eq!(commit(&[lease("v", &["n1"])]), 2);
    assert_eq!(commit(&[gone("v")]), 1);
}

#[test]
fn a_csi_cloud_that_knows_no_revocations_is_kept_away_from_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let subject = || Subject::Node("n1".parse().unwrap());
    let revoked = |revocation| Change::Trust(TrustChange::Revocation(subject(), revocation));
    let commit = |change: Change| {
        let mut file = File::open(&path).unwrap();
        loaded(&mut file).unwrap();
        file.commit(&[change]).unwrap();
        drop(file);
        stated(&path)
    };
    assert_eq!(commit(volume("v", Some(home("n1")))), 1);
    assert_eq!(commit(revoked(Some(Revocation::default()))), 2);
    assert_eq!(commit(volume("w", Some(home("n1")))), 2);
}

#[test]
fn an_import_states_the_format_of_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let claim = LeaseClaim { node: "n1".parse().unwrap(), epoch: 7, since: 1 };
    let record = LeaseRecord { claims: vec![claim], ..LeaseRecord::default() };
    let change = Change::Lease("d.example".parse().unwrap(), Id::Volume("v".into()), Some(record));
    File::import(&path, |backend| Ok(backend.commit(std::slice::from_ref(&change))?)).unwrap();
    assert_eq!(stated(&path), 2);
}

#[test]
fn a_store_of_before_it_knew_of_owners_is_read_and_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let before = volume("v", Some(home("n1")));
    File::open(&path).unwrap().commit(std::slice::from_ref(&before)).unwrap();
    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    for table in ["owners", "epochs"] {
        assert!(
            writing.delete_table(TableDefinition::<&[u8], &[u8]>::new(table)).unwrap(),
            "{table}"
        );
    }
    writing.commit().unwrap();
    drop(database);
    assert_eq!(
        loaded(&mut File::open(&path).unwrap()).unwrap(),
        expected(std::slice::from_ref(&before))
    );
    let own = Change::Lease(
        "d.example".parse().unwrap(),
        Id::Volume("v".into()),
        Some(LeaseRecord::default()),
    );
    let more = [own, Change::Epoch(7)];
    File::open(&path).unwrap().commit(&more).unwrap();
    let all = [&[before], more.as_slice()].concat();
    assert_eq!(loaded(&mut File::open(&path).unwrap()).unwrap(), expected(&all));
}

#[test]
fn what_is_no_store_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for (content, said) in [
        (b"".as_slice(), "it is empty"),
        (b"redb", "no store of csi-cloud"),
        (
            b"#!/bin/sh\necho something that is much longer than a header of redb would ever be\n",
            "no store",
        ),
    ] {
        put(&path, content);
        assert!(refusal(&path).contains(said), "{}", refusal(&path));
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();
    drop(Database::create(&path).unwrap());
    assert!(refusal(&path).contains("no store of csi-cloud"), "{}", refusal(&path));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refusal(&path).contains("file:"), "{}", refusal(&path));
}

#[test]
fn a_record_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(File::open(&path).unwrap());
    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let homes = TableDefinition::<&[u8], &[u8]>::new("homes");
    writing
        .open_table(homes)
        .unwrap()
        .insert(b"d.example\0\x01vol".as_slice(), b"\xff".as_slice())
        .unwrap();
    writing.commit().unwrap();
    drop(database);
    let error = loaded(&mut File::open(&path).unwrap()).unwrap_err();
    assert!(error.to_string().contains(r#"in homes under the key "d.example"#), "{error}");
    assert!(error.source().is_some());
}

/// A store of several pages, and its content after each commit.
fn filled(path: &Path) -> [Kept; 2] {
    let mut file = File::open(path).unwrap();
    let mut changes: Vec<_> =
        (0..300).map(|n| volume(format!("vol-{n}"), Some(home("n1")))).collect();
    file.commit(&changes).unwrap();
    let before = expected(&changes);
    let more: Vec<_> = (200..310).map(|n| volume(format!("vol-{n}"), Some(home("n2")))).collect();
    file.commit(&more).unwrap();
    changes.extend(more);
    [before, expected(&changes)]
}

/// Opens a damaged copy. A panic of redb would be a refusal too, but none is known.
fn read(path: &Path) -> Option<Kept> {
    loaded(&mut File::open(path).ok()?).ok()
}

/// Flips single bits in the header and all over the used part; returns the content of each copy.
fn flipped(path: &Path, step: usize) -> Vec<Option<Kept>> {
    let whole = fs::read(path).unwrap();
    let damaged = path.with_extension("damaged");
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let positions =
        (0..320).step_by(step).chain((320..used).step_by((used * step / 300).max(1) | 1));
    let flip = |at: usize| {
        let mut content = whole.clone();
        content[at] ^= 1 << (at % 8);
        put(&damaged, &content);
        read(&damaged)
    };
    positions.map(flip).collect()
}

#[test]
fn a_flipped_bit_is_found_or_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let [_, kept] = filled(&path);
    let found = flipped(&path, 2);
    let refused = found.iter().filter(|found| found.is_none()).count();
    assert!(
        refused > found.len() / 10,
        "{refused} of {} flips were found: does anything look?",
        found.len()
    );
    assert!(found.into_iter().flatten().all(|found| found == kept), "something else is shown");
}

/// A commit with pages damaged before the file was closed looks like an unfinished one.
#[test]
fn after_a_crash_a_flipped_bit_costs_the_last_commit_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let crashed = dir.path().join("crashed");
    let [_, mut kept] = filled(&path);
    let mut file = File::open(&path).unwrap();
    let mut states = vec![kept.clone()];
    for n in 0..2 {
        let change = volume(format!("late-{n}"), Some(home("n1")));
        file.commit(std::slice::from_ref(&change)).unwrap();
        kept.extend(expected(&[change]));
        states.push(kept.clone());
    }
    put(&crashed, &fs::read(&path).unwrap());
    let found = flipped(&crashed, 6);
    assert!(found.iter().any(Option::is_some));
    assert!(
        found.into_iter().flatten().all(|found| states[1..].contains(&found)),
        "something else is shown"
    );
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let damaged = dir.path().join("damaged");
    let [_, kept] = filled(&path);
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(whole.len() / 97) {
        put(&damaged, &whole[..length]);
        assert!(
            read(&damaged).is_none_or(|found| found == kept),
            "cut to {length} bytes it shows something else"
        );
    }
}

#[test]
fn after_a_crash_it_has_the_last_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let crashed = dir.path().join("crashed");
    let [_, mut kept] = filled(&path);
    let mut file = File::open(&path).unwrap();
    for n in 0..5 {
        let change = volume(format!("late-{n}"), Some(home("n1")));
        file.commit(std::slice::from_ref(&change)).unwrap();
        kept.extend(expected(&[change]));
        // A killed process leaves the file as it is while open.
        put(&crashed, &fs::read(&path).unwrap());
        assert_eq!(read(&crashed).unwrap(), kept);
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn a_store_of_which_a_commit_failed_is_copied_into_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let [_, kept] = filled(&path);
    let before = inode(&path);
    drop(File::open(&path).unwrap());
    assert_eq!(inode(&path), before, "nothing failed");
    File::open(&path).unwrap().try_again().unwrap().unwrap();
    let mark = dir.path().join("store.rewrite");
    assert_eq!(fs::metadata(&mark).unwrap().len(), 0, "it takes no room on a disk that was full");
    let mut file = File::open(&path).unwrap();
    assert_eq!(loaded(&mut file).unwrap(), kept);
    assert_ne!(inode(&path), before);
    assert!(refusal(&path).contains("another process has it open"), "{}", refusal(&path));
    drop(file);
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["store"]);
    assert_eq!(read(&path).unwrap(), kept);
}

#[test]
fn a_crash_during_the_trial_or_the_copy_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let [_, kept] = filled(&path);
    put(&dir.path().join("store.rewrite"), &[1; 1 << 20]);
    put(&dir.path().join(".half.new"), b"redb");
    assert_eq!(read(&path).unwrap(), kept);
    assert!(!dir.path().join("store.rewrite").exists());
}
