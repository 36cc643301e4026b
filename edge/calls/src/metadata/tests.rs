use proto::control::metadata::{
    Claim, Key, Kind, NodeObject, Object, Part, Pod, PodVolume, RuntimeClass, Volume,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::*;

fn node() -> NodeName {
    "n1".parse().unwrap()
}

fn pod(name: &str, class: Option<&str>) -> Object {
    let volumes = PodVolume { name: "v".into(), claim: Some("c".into()), driver: None };
    Object::Pod(Pod {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        volumes: [volumes].into(),
        runtime_class: class.map(Into::into),
        ..Pod::default()
    })
}

fn class(direct: bool) -> Object {
    let name = "kata".into();
    Object::RuntimeClass(RuntimeClass { name, handler: "kata-qemu".into(), direct, added: false })
}

fn volume() -> Object {
    Object::Volume(Volume {
        name: "pv".into(),
        driver: "d.example".into(),
        handle: "vol-1".into(),
        claim: Some(("shop".into(), "c".into())),
        ..Volume::default()
    })
}

fn at(epoch: u64, revision: u64) -> Position {
    Position { epoch, revision }
}

fn part(from: Option<Position>, to: Position, objects: Vec<Object>) -> Part {
    Part { from, to, last: true, objects, ..Part::default() }
}

async fn take(metadata: &Arc<Metadata>, part: Part) -> Position {
    metadata.take(&mut Receiving::default(), part).await
}

#[tokio::test]
async fn what_was_sent_is_known_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Arc::new(Metadata::open(Some(dir.path()), &node()));
    let metadata = open();
    assert_eq!(metadata.position(), Position::default());
    let is_empty = || std::fs::read_dir(dir.path()).unwrap().next().is_none();
    assert!(is_empty(), "a cloud that sends nothing needs no room on the disk");
    let objects = vec![pod("db-0", Some("kata")), pod("web", None), class(true), volume()];
    assert_eq!(take(&metadata, part(None, at(7, 4), objects)).await, at(7, 4));
    let gone = vec![Key::within(Kind::Pod, "shop", "web")];
    let next = Part { gone, ..part(Some(at(7, 4)), at(7, 5), Vec::new()) };
    assert_eq!(take(&metadata, next).await, at(7, 5));
    drop(metadata);
    let metadata = open();
    assert_eq!(metadata.position(), at(7, 5));
    let known = metadata.pod("uid-db-0").unwrap();
    assert_eq!((known.name.as_str(), known.direct), ("db-0", Some(true)));
    assert_eq!(metadata.claim("d.example", "vol-1").as_deref(), Some("shop/c"));
    assert_eq!(metadata.claim("other.example", "vol-1"), None);
    assert_eq!(metadata.pod("uid-web"), None);
    assert_eq!(&*metadata.gone_pod("uid-web").unwrap().name, "web");
    assert_eq!(metadata.gone_pod("uid-db-0"), None);
    assert_eq!(metadata.gone_pod("never"), None, "what was never here is not gone");
    // Another csi-cloud, which replaces everything.
    assert_eq!(take(&metadata, part(None, at(8, 1), vec![class(false)])).await, at(8, 1));
    assert_eq!(metadata.pod("uid-db-0"), None);
    drop(metadata);
    let metadata = open();
    assert!(metadata.gone_pod("uid-db-0").is_some());
    assert_eq!(metadata.claim("d.example", "vol-1"), None);
}

fn node_object(site: &str) -> Object {
    let labels = [("site".into(), site.into())].into();
    Object::Node(NodeObject { name: "n1".into(), labels, ..NodeObject::default() })
}

fn site(metadata: &Metadata) -> Option<String> {
    metadata.node().map(|node| node.labels["site"].to_string())
}

#[tokio::test]
async fn the_node_is_known_after_a_restart_and_older_versions_read_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Arc::new(Metadata::open(Some(dir.path()), &node()));
    let metadata = open();
    take(&metadata, part(None, at(7, 4), vec![pod("db-0", None), node_object("north")])).await;
    drop(metadata);
    let metadata = open();
    assert_eq!((metadata.position(), site(&metadata).as_deref()), (at(7, 4), Some("north")));
    let next = part(Some(at(7, 4)), at(7, 5), vec![node_object("south")]);
    assert_eq!(take(&metadata, next).await, at(7, 5));
    drop(metadata);
    // What a csi-edge without Nodes reads, and writes when it gets further.
    let database = Database::create(dir.path().join("metadata.redb")).unwrap();
    let objects: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
    let reading = database.begin_read().unwrap();
    let keys = reading.open_table(objects).unwrap();
    let keys: Vec<_> = keys.iter().unwrap().map(|of| of.unwrap().0.value().to_owned()).collect();
    assert_eq!(keys, ["pod/shop/db-0"]);
    drop(reading);
    let writing = database.begin_write().unwrap();
    let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    let position = serde_json::to_vec(&at(7, 6)).unwrap();
    writing.open_table(meta).unwrap().insert("position", position.as_slice()).unwrap();
    writing.commit().unwrap();
    drop(database);
    let metadata = open();
    assert_eq!(metadata.position(), Position::default(), "the Node has to come again");
    assert_eq!((site(&metadata), metadata.pod("uid-db-0").is_some()), (None, true));
    take(&metadata, part(None, at(7, 7), vec![pod("db-0", None), node_object("west")])).await;
    drop(metadata);
    let metadata = open();
    assert_eq!((metadata.position(), site(&metadata).as_deref()), (at(7, 7), Some("west")));
    let gone = vec![Key::of_cluster(Kind::Node, "n1")];
    take(&metadata, Part { gone, ..part(Some(at(7, 7)), at(7, 8), Vec::new()) }).await;
    drop(metadata);
    assert_eq!(site(&open()), None);
}

#[tokio::test]
async fn a_transfer_counts_as_a_whole_and_from_where_this_node_is() {
    let metadata = Arc::new(Metadata::default());
    let mut receiving = Receiving::default();
    let first = Part { last: false, ..part(None, at(1, 9), vec![class(true)]) };
    assert_eq!(metadata.take(&mut receiving, first.clone()).await, Position::default());
    assert_eq!(metadata.pod("uid-a"), None, "half of it is nothing");
    let second = Part { number: 1, ..part(None, at(1, 9), vec![pod("a", Some("kata"))]) };
    assert_eq!(metadata.take(&mut receiving, second.clone()).await, at(1, 9));
    assert_eq!(metadata.pod("uid-a").unwrap().direct, Some(true));
    // A part is missing; and one that begins elsewhere.
    let third = Part { number: 2, ..second.clone() };
    assert_eq!(metadata.take(&mut receiving, first).await, at(1, 9));
    assert_eq!(metadata.take(&mut receiving, third).await, at(1, 9));
    assert_eq!(metadata.take(&mut receiving, second).await, at(1, 9));
    let elsewhere = part(Some(at(1, 3)), at(1, 12), vec![pod("b", None)]);
    assert_eq!(take(&metadata, elsewhere).await, at(1, 9));
    assert_eq!(metadata.pod("uid-b"), None);
}

#[tokio::test]
async fn a_damaged_file_and_another_nodes_are_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.redb");
    let write = |bytes: &[u8]| {
        use std::io::Write;
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    };
    write(&[7; 9000]);
    let metadata = Arc::new(Metadata::open(Some(dir.path()), &node()));
    assert!(dir.path().join("metadata.redb.damaged").exists());
    take(&metadata, part(None, at(1, 1), vec![pod("a", None)])).await;
    drop(metadata);
    let other = Metadata::open(Some(dir.path()), &"n2".parse().unwrap());
    assert_eq!((other.position(), other.pod("uid-a")), (Position::default(), None));
    drop(other);
    // A page that was changed: what is in it is not believed.
    let metadata = Arc::new(Metadata::open(Some(dir.path()), &node()));
    let many = (0..200).map(|i| pod(&format!("p{i}"), None)).collect();
    take(&metadata, part(None, at(2, 1), many)).await;
    drop(metadata);
    let mut bytes = std::fs::read(&path).unwrap();
    let named = bytes.windows(8).rposition(|window| window == b"uid-p150").unwrap();
    bytes[named] = b'x';
    write(&bytes);
    let metadata = Metadata::open(Some(dir.path()), &node());
    assert_eq!(metadata.position(), Position::default());
}

#[tokio::test]
async fn a_file_that_was_never_closed_has_every_commit() {
    let [dir, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let [path, copy] = [&dir, &other].map(|dir| dir.path().join("metadata.redb"));
    let metadata = Arc::new(Metadata::open(Some(dir.path()), &node()));
    let mut sizes = Vec::new();
    for revision in 1..=5 {
        let from = (revision > 1).then(|| at(3, revision - 1));
        let objects = (0..2000).map(|i| pod(&format!("p{revision}-{i}"), None)).collect();
        take(&metadata, part(from, at(3, revision), objects)).await;
        // After SIGKILL the file is as it is now.
        sizes.push(std::fs::copy(&path, &copy).unwrap());
        let again = Metadata::open(Some(other.path()), &node());
        assert_eq!(again.position(), at(3, revision));
        for each in 1..=revision {
            assert!(again.pod(&format!("uid-p{each}-0")).is_some(), "{each} of {revision}");
            assert!(again.pod(&format!("uid-p{each}-1999")).is_some(), "{each} of {revision}");
        }
        assert!(!other.path().join("metadata.redb.damaged").exists());
    }
    assert!(sizes.first() < sizes.last(), "it has not grown: {sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_waited_for_only_if_the_cloud_sends_it() {
    let metadata = Arc::new(Metadata::default());
    let patience = Duration::from_secs(5);
    let begun = tokio::time::Instant::now();
    assert_eq!(metadata.pod_with_class("uid-a", patience).await, None);
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody sends it");
    metadata.set_sent(true);
    assert_eq!(metadata.pod_with_class("uid-a", patience).await, None);
    assert_eq!(begun.elapsed(), patience);
    // Its RuntimeClass is not known yet, so neither is its kind.
    let claim = Object::Claim(Claim::default());
    let sent = async {
        take(&metadata, part(None, at(1, 1), vec![pod("a", Some("kata")), claim])).await;
        take(&metadata, part(Some(at(1, 1)), at(1, 2), vec![class(false)])).await;
    };
    let (waited, ()) = tokio::join!(metadata.pod_with_class("uid-a", patience), sent);
    let (_, takes_direct) = waited.unwrap();
    assert!(!takes_direct);
}
