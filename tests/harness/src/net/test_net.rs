//! The network treats real packets by its settings, and leaves nothing behind.
//!
//! Namespaces need root; without it this tier is skipped.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::*;
use crate::wait::until;

const MS: Duration = Duration::from_millis(1);

fn socket(space: &Space, address: Ipv4Addr) -> UdpSocket {
    let bound = space.within(|| Ok(std::net::UdpSocket::bind((address, 0))?)).unwrap();
    bound.set_nonblocking(true).unwrap();
    UdpSocket::from_std(bound).unwrap()
}

/// Sends numbered packets from the cloud to the edge, 1 ms apart. Returns those that arrived, in
/// order, with their delays.
async fn sent(net: &Net, packets: u32) -> Vec<(u32, Duration)> {
    let from = socket(&net.cloud, CLOUD);
    let to = socket(&net.edge, EDGE);
    let at: SocketAddr = to.local_addr().unwrap();
    let sending = async {
        let mut clock = tokio::time::interval(MS);
        let mut times = Vec::new();
        for n in 0..packets {
            clock.tick().await;
            times.push(Instant::now());
            from.send_to(&n.to_be_bytes(), at).await.unwrap();
        }
        times
    };
    let receiving = async {
        let mut buffer = [0; 4];
        let mut got = Vec::new();
        while let Ok(received) = tokio::time::timeout(1000 * MS, to.recv(&mut buffer)).await {
            received.unwrap();
            got.push((u32::from_be_bytes(buffer), Instant::now()));
        }
        got
    };
    let (times, got) = tokio::join!(sending, receiving);
    got.into_iter().map(|(n, at)| (n, at - times[n as usize])).collect()
}

#[tokio::test]
async fn packets_are_delayed_lost_and_overtaken() {
    let shape =
        Shape { delay: 50 * MS, loss: 0.1, reorder: 0.1, late_by: 20 * MS, ..Shape::default() };
    let Some(net) = Net::for_test(shape, 1).await.unwrap() else { return };
    let got = sent(&net, 500).await;
    let [counts, back] = net.counts();
    assert_eq!((counts.offered, back.offered), (500, 0));
    assert!((20..=90).contains(&counts.lost), "{counts:?}");
    assert_eq!(got.len() as u64, 500 - counts.lost);
    assert!(got.iter().all(|(_, took)| *took >= 50 * MS));
    assert!(counts.late > 0 && !got.is_sorted_by_key(|(n, _)| *n));
    let mut took: Vec<_> = got.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    // Half of them at least are not late; a machine that is busy adds some.
    assert!(took[took.len() / 4] < 65 * MS, "{:?}", took[took.len() / 4]);
}

#[tokio::test]
async fn a_line_has_a_rate() {
    // A packet has 32 bytes with its headers, 1 ms each at 256 kbit/s. The line passes half of
    // that.
    let shape = Shape { rate: Some(128_000), queue: 320, ..Shape::default() };
    let Some(net) = Net::for_test(shape, 1).await.unwrap() else { return };
    let got = sent(&net, 400).await;
    assert!((180..=240).contains(&got.len()), "{} passed, {:?}", got.len(), net.counts());
}

#[tokio::test]
async fn nothing_is_left() {
    let Some(net) = Net::for_test(Shape::default(), 1).await.unwrap() else { return };
    let outside = || std::fs::read_to_string("/proc/self/net/dev").unwrap();
    assert!(!outside().contains("tun"), "the devices are inside: {}", outside());
    let processes = [net.cloud.pid(), net.edge.pid()];
    let devices = format!("/proc/{}/net/dev", processes[0]);
    assert!(std::fs::read_to_string(devices).unwrap().contains("tun0"));
    drop(net);
    until("the namespaces are gone", || async {
        let left: Vec<_> =
            processes.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        anyhow::ensure!(left.is_empty(), "{left:?} still hold one");
        Ok(())
    })
    .await
    .unwrap();
}
