use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::names::DriverName;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use super::*;

/// A disk that may become full.
#[derive(Clone, Debug, Default)]
struct Disk {
    kept: Arc<InMemoryBackend>,
    is_full: Arc<AtomicBool>,
}

impl Disk {
    fn room(&self) -> io::Result<()> {
        let is_full = self.is_full.load(Ordering::SeqCst);
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.kept.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.kept.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.kept.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.kept.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.kept.write(offset, data)
    }
}

fn call(number: u64) -> Arc<EndedCall> {
    let driver: DriverName = "d.example".parse().unwrap();
    Arc::new(EndedCall {
        number,
        at: 1_700_000_000_000 + number,
        id: (u128::MAX - u128::from(number)).into(),
        rpc: Method::CreateVolume.name(),
        driver,
        node: number.is_multiple_of(2).then(|| "n1".parse().unwrap()),
        subject: format!("pvc-{number}").into(),
        claim: number.is_multiple_of(2).then(|| format!("shop/data-{number}").into()),
        code: Code::ResourceExhausted,
        message: "no room \u{1b} é".into(),
        duration: Duration::from_micros(1_234_567),
        attempts: 2,
        news: false,
    })
}

fn calls(numbers: std::ops::Range<u64>) -> Vec<Arc<EndedCall>> {
    numbers.map(call).collect()
}

#[test]
fn what_is_written_is_read_whole_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("cloud.redb");
    let (mut ring, read) = Ring::open(Ring::beside(&store));
    assert!(read.is_empty());
    ring.write(&calls(0..3));
    drop(ring);
    let (_, read) = Ring::open(Ring::beside(&store));
    assert_eq!(read, calls(0..3).iter().map(|call| (**call).clone()).collect::<Vec<_>>());
    let mode = fs::metadata(dir.path().join("cloud.redb.calls")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!store.exists(), "the store is another file");
}

#[test]
fn the_newest_calls_take_the_slots_of_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("cloud.redb");
    let (mut ring, _) = Ring::open(Ring::beside(&store));
    for first in (0..10_000).step_by(1_000) {
        ring.write(&calls(first..first + 1_000));
    }
    drop(ring);
    let (_, read) = Ring::open(Ring::beside(&store));
    let mut numbers: Vec<_> = read.iter().map(|call| call.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (10_000 - SLOTS..10_000).collect::<Vec<_>>());
    let size = fs::metadata(dir.path().join("cloud.redb.calls")).unwrap().len();
    assert!(size < 16 * 1024 * 1024, "{size}");
}

#[test]
fn a_damaged_file_is_put_aside_and_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("cloud.redb");
    let path = dir.path().join("cloud.redb.calls");
    proto::host::publish::publish(&path, b"no", 0o600, proto::host::publish::Existing::Keep)
        .unwrap();
    let (mut ring, read) = Ring::open(Ring::beside(&store));
    assert!(read.is_empty());
    assert_eq!(fs::read(dir.path().join("cloud.redb.calls.damaged")).unwrap(), b"no");
    ring.write(&calls(0..1));
    drop(ring);
    assert_eq!(Ring::open(Ring::beside(&store)).1.len(), 1);
}

#[test]
fn a_file_that_cannot_be_had_costs_the_history_alone_until_it_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("not/there/cloud.redb");
    let (mut ring, read) = Ring::open(Ring::beside(&store));
    assert!(read.is_empty() && ring.database.is_none());
    ring.write(&calls(0..1));
    assert!(ring.database.is_none());
    fs::create_dir_all(store.parent().unwrap()).unwrap();
    ring.write(&calls(1..2));
    drop(ring);
    assert_eq!(Ring::open(Ring::beside(&store)).1.len(), 1, "what could not be written is lost");
}

#[test]
fn a_full_disk_costs_the_history_alone_until_it_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("cloud.redb");
    let disk = Disk::default();
    let database = Database::builder().create_with_backend(disk.clone()).unwrap();
    let mut ring = Ring { path: dir.path().join("cloud.redb.calls"), database: Some(database) };
    ring.write(&calls(0..1));
    assert!(ring.database.is_some());
    disk.is_full.store(true, Ordering::SeqCst);
    ring.write(&calls(1..2));
    assert!(ring.database.is_none());
    ring.write(&calls(2..3));
    drop(ring);
    let (_, read) = Ring::open(Ring::beside(&store));
    assert_eq!(read.iter().map(|call| call.number).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_value_of_another_version_is_left_out_or_read_as_far_as_it_is_known() {
    let mut value = EndedValue::decode(&*encode(&call(1))).unwrap();
    value.rpc = "LaterRpc".into();
    assert_eq!(decode(&value.encode_to_vec()).unwrap().rpc, UNKNOWN);
    value.driver = "no driver".into();
    assert_eq!(decode(&value.encode_to_vec()), None);
    assert_eq!(decode(b"\xff"), None);
}

/// A value that a csi-cloud wrote before calls had claims, byte for byte.
#[test]
fn a_value_without_a_claim_is_read() {
    let old = [
        b"\x08\x07\x10\x08\x1a\x10".as_slice(),
        &9_u128.to_be_bytes(),
        b"\x22\x0cCreateVolume\x2a\x09d.example\x32\x02n1\x3a\x05pvc-7",
        b"\x40\x08\x4a\x07no room\x50\x05\x58\x02",
    ];
    let call = decode(&old.concat()).unwrap();
    assert_eq!((call.number, call.at, call.id, call.rpc), (7, 8, 9.into(), "CreateVolume"));
    assert_eq!((&*call.subject, call.claim, call.attempts), ("pvc-7", None, 2));
}

#[tokio::test(start_paused = true)]
async fn what_ends_is_written_within_ten_seconds_and_at_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("cloud.redb");
    let tasks = Tasks::default();
    let ended = Arc::new(Calls::default());
    let (ring, read) = Ring::open(Ring::beside(&store));
    ended.ended.restore(read);
    tasks.spawn("history", keep(ended.clone(), ring, tasks.clone()));
    let driver: DriverName = "d.example".parse().unwrap();
    drop(ended.clone().begin("ListVolumes", &driver, 1.into()));
    tokio::time::sleep(EVERY + Duration::from_secs(1)).await;
    assert!(ended.ended.unwritten().is_empty(), "it was taken to be written");
    drop(ended.clone().begin("ListVolumes", &driver, 2.into()));
    tasks.finish(Duration::from_secs(60)).await;
    let (_, read) = Ring::open(Ring::beside(&store));
    assert_eq!(read.iter().map(|call| call.id).collect::<Vec<_>>(), [1.into(), 2.into()]);
}
