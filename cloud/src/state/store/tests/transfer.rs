//! The commands of `csi-cloud store`, over a store with any content.

use std::path::Path;

use prost::Message;
use proto::admin::output::Output;
use proto::csi;

use crate::cli::store::check;
use crate::state::line::Line;
use crate::state::listed;
use crate::state::older_store;
use crate::state::record::Elected;
use crate::state::starts::{Lack, LastCreate, StartRecord, Starts};
use crate::state::store::tests::*;
use crate::state::store::transfer;
use crate::state::store::transfer::ExportedSecrets;
use crate::state::store::url::StoreAt;

fn exported(path: &Path) -> String {
    let mut out = Vec::new();
    transfer::export(&StoreAt::File(path.into()), ExportedSecrets::Included, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn secret_keys_are_exported_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    File::open(&path).unwrap().commit(&[secrets(7), volume("v", Some(home("n1")))]).unwrap();
    let mut out = Vec::new();
    let at = StoreAt::File(path.clone());
    transfer::export(&at, ExportedSecrets::LeftOut, &mut out).unwrap();
    let without = String::from_utf8(out).unwrap();
    assert!(!without.contains("secrets") && without.ends_with("{\"end\":{\"records\":1}}\n"));
    let line = r#"{"secrets":{"resets":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=","leases":"#;
    assert!(exported(&path).contains(line), "{}", exported(&path));
    // Both are whole; and a store with secret keys alone is as good as an empty one.
    for lines in [&without, &exported(&path)] {
        let other = tempfile::tempdir().unwrap();
        let other = other.path().join("store");
        File::open(&other).unwrap().commit(&[secrets(9)]).unwrap();
        imported(&other, lines).unwrap();
        assert_eq!(exported(&other), *lines);
    }
}

fn checked(path: &Path, output: Output) -> (anyhow::Result<()>, String) {
    let mut out = Vec::new();
    let outcome = check(&StoreAt::File(path.into()), output, &mut out);
    (outcome, String::from_utf8(out).unwrap())
}

/// The last create of an export.
pub(in crate::state::store) fn last_create(lines: &str) -> LastCreate {
    let mut starts = Starts::default();
    for line in lines.lines() {
        if let Ok(Line::Start { start, record }) = serde_json::from_str(line) {
            starts.apply(start, Some(record));
        }
    }
    starts.last_create()
}

fn imported(path: &Path, lines: &str) -> Result<(), String> {
    imported_as(path, lines, Some(last_create(lines)))
}

fn imported_as(path: &Path, lines: &str, moved: Option<LastCreate>) -> Result<(), String> {
    transfer::import_from(&StoreAt::File(path.into()), &mut lines.as_bytes(), moved)
        .map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn an_import_counts_as_older_unless_the_last_create_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let open = |name: &str| {
        Store::open(Box::new(File::open(&path(name)).unwrap()), &Tasks::default()).unwrap()
    };
    let [before, lines] = [1, 2].map(|last| {
        let record = StartRecord { order: 1, last, ..StartRecord::default() };
        let start = Change::Start(uuid::Uuid::from_u128(7), Some(record));
        File::open(&path("one")).unwrap().commit(&[start]).unwrap();
        exported(&path("one"))
    });
    let (old, last) = (last_create(&before), last_create(&lines));
    assert_ne!(old, last);
    let mut said = Vec::new();
    check(&StoreAt::File(path("one")), Output::Table, &mut said).unwrap();
    assert!(String::from_utf8(said).unwrap().trim_end().ends_with(&format!("--move {last}")));

    imported_as(&path("moved"), &lines, Some(last)).unwrap();
    assert_eq!(open("moved").may_lack_creates(), None);
    let refused = imported_as(&path("older"), &before, Some(last)).unwrap_err();
    assert!(refused.contains("the export is older") && !path("older").exists(), "{refused}");
    imported_as(&path("older"), &before, None).unwrap();
    let older = open("older");
    assert_eq!(older.may_lack_creates(), Some(Lack::Imported));
    assert_eq!(older_store::accept(&older).await.unwrap(), 1);
    assert_eq!(older.may_lack_creates(), None);
    assert_eq!(older_store::accept(&older).await.unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn what_is_exported_is_imported(mut changes in vec(change(), 0..60)) {
        // An import raises it.
        changes.retain(|change| !matches!(change, Change::LeaderEpoch(_)));
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one");
        let other = dir.path().join("other");
        File::open(&one).unwrap().commit(&changes).unwrap();
        let lines = exported(&one);
        imported(&other, &lines).unwrap();
        // Whether a node was listed since the export is not known.
        let unlisted: Vec<_> = changes.into_iter().map(listed::unmarked).collect();
        let same = dir.path().join("same");
        File::open(&same).unwrap().commit(&unlisted).unwrap();
        prop_assert_eq!(exported(&other), exported(&same));
        prop_assert_eq!(loaded(&mut File::open(&other).unwrap()).unwrap(), expected(&unlisted));
    }
}

#[tokio::test]
async fn an_import_has_a_later_epoch_than_any_leader_before() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    let last = LeaderEpoch(u64::MAX / 2);
    File::open(&one).unwrap().commit(&[Change::LeaderEpoch(last)]).unwrap();
    imported(&other, &exported(&one)).unwrap();
    let store = Store::open(Box::new(File::open(&other).unwrap()), &Tasks::default());
    assert_eq!(store.unwrap().leadership().epoch(), Some(LeaderEpoch(last.0 + 1)));
}

#[test]
fn an_import_is_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one");
    let other = dir.path().join("other/store");
    File::open(&one)
        .unwrap()
        .commit(&[volume("v", Some(home("n1"))), volume("w", Some(home("n1")))])
        .unwrap();
    let lines = exported(&one);
    let begun = lines.split_inclusive('\n').collect::<Vec<_>>();
    for (lines, said) in [
        (String::new(), "it is no export"),
        (begun[1..].concat(), "it is no export"),
        (begun[..3].concat(), "cut off"),
        ([begun[0], begun[1], begun[3]].concat(), "has 1 records and should have 2"),
        ([begun[0], "{\"home\":{}}\n"].concat(), "line 2 is no line"),
        ([begun[0], begun[0], begun[3]].concat(), "begins twice"),
        ([&*lines, begun[1]].concat(), "goes on after its end"),
        (lines.replace("\"format\":1", "\"format\":2"), "a newer csi-cloud, in format 2"),
    ] {
        let refused = imported(&other, &lines).unwrap_err();
        assert!(refused.contains(said), "{refused}");
        assert_eq!(
            std::fs::read_dir(other.parent().unwrap()).unwrap().count(),
            0,
            "{said}: something is left"
        );
    }
    imported(&other, &lines).unwrap();
    let refused = imported(&other, &lines).unwrap_err();
    assert!(refused.contains("holds 2 records"), "{refused}");
    assert_eq!(exported(&other), lines);
}

#[test]
fn an_import_replaces_an_empty_store_that_nobody_uses() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one");
    let other = dir.path().join("other");
    File::open(&one).unwrap().commit(&[volume("v", Some(home("n1")))]).unwrap();
    let lines = exported(&one);
    let used = File::open(&other).unwrap();
    assert!(imported(&other, &lines).unwrap_err().contains("another process has it open"));
    drop(used);
    imported(&other, &lines).unwrap();
    assert_eq!(exported(&other), lines);
}

#[test]
fn a_line_can_be_read_by_people() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let name = Id::Name(Method::CreateVolume, "pvc \0".into());
    let node = "n1".parse().unwrap();
    let intent = Intent {
        node,
        since: 1,
        until: 2,
        made: None,
        claim: None,
        attempts: None,
        direct: None,
        narrowed: None,
        machine: None,
    };
    File::open(&path)
        .unwrap()
        .commit(&[Change::Intent("d".parse().unwrap(), name, Some(intent))])
        .unwrap();
    assert_eq!(
        exported(&path),
        "{\"csi-cloud store\":{\"format\":1}}\n\
         {\"intent\":{\"driver\":\"d\",\"id\":{\"name\":[\"CreateVolume\",\"pvc \\u0000\"]},\
         \"intent\":{\"node\":\"n1\",\"since\":1,\"until\":2,\"made\":null,\"claim\":null}}}\n\
         {\"end\":{\"records\":1}}\n"
    );
}

/// Exports of every csi-cloud must be imported by every later one.
#[test]
fn the_words_of_a_line_never_change() {
    let lines = [
        "{\"csi-cloud store\":{\"format\":1}}\n",
        "{\"home\":{\"driver\":\"d\",\"id\":{\"snapshot\":\"s\"},\"home\":{\"node\":\"n1\",\
         \"name\":null,\"entry\":\"\",\"claim\":null,\"parameters\":null,\
         \"source\":{\"volume\":\"v\"},\"since\":7,\"absent\":false,\"lost\":false,\
         \"rivals\":[\"n2\"]}}}\n",
        "{\"at\":{\"driver\":\"d\",\"node\":\"n1\",\"at\":{\"alike\":{\"M\":\"AQ==\"},\
         \"info\":null,\"place\":[[\"k\",\"v\"]],\"listed\":3,\"gone\":null}}}\n",
        "{\"owner\":{\"driver\":\"d\",\"id\":{\"volume\":\"v\"},\"own\":{\
         \"owner\":{\"node\":\"n1\",\"epoch\":5,\"pod\":\"p\",\"since\":1},\
         \"attached\":{\"node\":\"n2\",\"id\":\"i\",\"since\":2},\
         \"broken\":[{\"node\":\"n3\",\"epoch\":4}]}}}\n",
        "{\"epoch\":{\"last\":5}}\n",
        "{\"end\":{\"records\":4}}\n",
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    imported(&path, &lines.concat()).unwrap();
    assert_eq!(exported(&path), lines.concat().replace("\"listed\":3", "\"listed\":0"));
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (outcome, _) = checked(&path, Output::Table);
    assert!(format!("{:#}", outcome.unwrap_err()).contains("cannot be opened"));
    assert!(!path.exists());
    let memory = transfer::export(&StoreAt::Memory, ExportedSecrets::LeftOut, &mut Vec::new());
    let memory = memory.unwrap_err().to_string();
    assert!(memory.contains("nothing to look after"), "{memory}");
}

fn linked(node: &str) -> Change {
    Change::Node(node.parse().unwrap(), Some(Node::default()))
}

fn intent(method: Method, made: &str) -> Change {
    let intent = Intent {
        node: "n1".parse().unwrap(),
        since: 1,
        until: 2,
        made: Some(made.into()),
        claim: None,
        attempts: Some(1),
        direct: None,
        narrowed: None,
        machine: None,
    };
    Change::Intent("d.example".parse().unwrap(), Id::Name(method, "pvc".into()), Some(intent))
}

fn owner(node: &str, epoch: u64) -> Change {
    let node = node.parse().unwrap();
    let owner = Some(Holder { node, epoch, pod: "".into(), since: 1, unproven: false });
    let own = LeaseRecord { holder: owner, ..LeaseRecord::default() };
    Change::Lease("d.example".parse().unwrap(), Id::Volume("v".into()), Some(own))
}

fn listed(id: &str) -> Home {
    let volume = csi::Volume { volume_id: id.into(), ..Default::default() };
    let entry = csi::list_volumes_response::Entry { volume: Some(volume), ..Default::default() };
    Home { entry: entry.encode_to_vec().into(), ..home("n1") }
}

#[test]
fn what_does_not_agree_is_said() {
    let elected =
        Change::Elected("d.example".parse().unwrap(), Some(Elected::first("n1".parse().unwrap())));
    let conflicts = vec!["n2".parse().unwrap()];
    for (changes, said) in [
        (vec![intent(Method::CreateVolume, "v")], Some("has no home")),
        (vec![intent(Method::CreateVolume, "v"), volume("v", Some(listed("v")))], None),
        (
            vec![intent(Method::CreateSnapshot, "v"), volume("v", Some(home("n1")))],
            Some("has no home"),
        ),
        (vec![intent(Method::DeleteVolume, "v")], Some("nothing is made by this")),
        (vec![volume("v", Some(home("n3")))], Some("n3 never linked")),
        (vec![volume("v", Some(Home { lost: true, ..home("n1") }))], Some("was not removed")),
        (
            vec![volume("v", Some(Home { conflicts, ..home("n1") }))],
            Some("n2 says that it lives there"),
        ),
        (vec![volume("v", Some(listed("w")))], Some("lists show it as volume \"w\"")),
        (
            vec![volume("v", Some(Home { entry: b"\xff".as_slice().into(), ..home("n1") }))],
            Some("cannot be read"),
        ),
        (vec![elected], Some("never had d.example")),
        (vec![owner("n1", 7), Change::Epoch(7)], None),
        (vec![owner("n1", 7), Change::Epoch(6)], Some("7 may be given out again")),
        (vec![owner("n3", 7), Change::Epoch(7)], Some("n3 never linked")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut all = vec![linked("n1"), linked("n2")];
        all.extend(changes);
        File::open(&path).unwrap().commit(&all).unwrap();
        let (outcome, table) = checked(&path, Output::Table);
        assert_eq!(outcome.is_err(), said.is_some(), "{table}");
        assert!(table.contains(said.unwrap_or("nothing is wrong")), "{table}");
        let (_, json) = checked(&path, Output::Json);
        let json: Vec<BTreeMap<String, String>> = serde_json::from_str(&json).unwrap();
        assert_eq!(json.len(), usize::from(said.is_some()));
    }
}
