//! Time and memory of a start at full size, and the commits per second of a disk (`make size`).

use std::path::Path;

use tokio::time::Instant;

use crate::state::store::tests::*;

const NODES: usize = 10_000;
const HOMES: usize = 1_000_000;

fn grown(path: &Path) {
    let mut file = File::open(path).unwrap();
    let nodes =
        |n: usize| Change::Node(format!("node-{n}").parse().unwrap(), Some(Node::default()));
    file.commit(&(0..NODES).map(nodes).collect::<Vec<_>>()).unwrap();
    let alike: BTreeMap<_, _> =
        (0..4).map(|n| (format!("Method{n}"), vec![n; 40].into())).collect();
    let at = |n: usize| {
        let at = NodeDriver {
            answers: Arc::new(alike.clone()),
            info: Some(vec![1; 60].into()),
            segments: [Arc::new(("topology.edge-csi.io/node".to_owned(), format!("node-{n}")))]
                .into(),
            listed: 1,
            gone: None,
            former_ids: Box::default(),
        };
        Change::NodeDriver(
            "d.example".parse().unwrap(),
            format!("node-{n}").parse().unwrap(),
            Some(at),
        )
    };
    file.commit(&(0..NODES).map(at).collect::<Vec<_>>()).unwrap();
    for begin in (0..HOMES).step_by(100_000) {
        let entry = bytes::Bytes::from(vec![7; 150]);
        let one = |n: usize| {
            let home = Home {
                entry: entry.clone(),
                name: Some(format!("pvc-{n:036}").into()),
                ..home(&format!("node-{}", n % NODES))
            };
            volume(format!("vol-{n:036}"), Some(home))
        };
        file.commit(&(begin..begin + 100_000).map(one).collect::<Vec<_>>()).unwrap();
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "a measurement of minutes"]
fn a_start_with_a_million_homes() {
    // A run that makes the file measures nothing, because making it takes memory.
    let dir = std::env::var_os("EDGE_CSI_SIZE").expect("EDGE_CSI_SIZE is a directory");
    let path = Path::new(&dir).join("store");
    if !path.exists() {
        grown(&path);
        println!("made: run again");
        return;
    }
    let begun = Instant::now();
    let mut file = File::open(&path).unwrap();
    let opened = begun.elapsed();
    let mut state = State::default();
    file.load(&mut |change| state.apply(change)).unwrap();
    let homes = state.driver(&"d.example".parse().unwrap()).unwrap().homes().len();
    let size = std::fs::metadata(&path).unwrap().len() >> 20;
    println!(
        "{homes} homes, {size} MiB file: open {opened:?}, with load {:?}, {} MiB",
        begun.elapsed(),
        resident()
    );
}

#[test]
#[ignore = "a measurement"]
fn commits_in_a_second() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut file = File::open(&dir.path().join("store")).unwrap();
    for (batch, times) in [(1, 300), (256, 100)] {
        let begun = Instant::now();
        for time in 0..times {
            let changes = (0..batch).map(|n| volume(format!("v-{time}-{n}"), Some(home("n1"))));
            file.commit(&changes.collect::<Vec<_>>()).unwrap();
        }
        let rate = f64::from(times) / begun.elapsed().as_secs_f64();
        println!(
            "batches of {batch}: {rate:.0} commits/s, {:.0} changes/s",
            rate * f64::from(batch)
        );
    }
}
