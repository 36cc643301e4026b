//! Links over a network that loses packets, with the real programs on both sides of it.
//!
//! Namespaces need root; without it this tier is skipped.

use std::time::Duration;

use harness::net::{Net, Shape};
use harness::requests::{controller, create, created, delete};
use harness::stand::Stand;
use harness::world::World;
use tokio::time::Instant;
use tonic::Code;

/// 40 ms there and back.
const SHAPE: Shape = Shape {
    delay: Duration::from_millis(20),
    loss: 0.05,
    rate: Some(20_000_000),
    queue: 250_000,
    reorder: 0.05,
    late_by: Duration::from_millis(10),
};

#[tokio::test]
async fn calls_and_lists_arrive_whole_over_a_bad_network() {
    for scheme in ["wss", "quic"] {
        let Some(net) = Net::for_test(SHAPE, 1).await.unwrap() else { return };
        let world = World::over(Stand::over(net).await.unwrap(), scheme).await.unwrap();
        world.driver.fill(8, 32 * 1024);
        let front = world.front().await.unwrap();
        for n in 0..10 {
            let begun = Instant::now();
            let made =
                front.call(&controller("CreateVolume"), &create(&format!("v{n}"))).await.unwrap();
            assert!(
                begun.elapsed() >= SHAPE.delay * 2,
                "{scheme}: the call went round the network"
            );
            let id = created(&made).unwrap().volume_id;
            let deleted = front.call(&controller("DeleteVolume"), &delete(&id)).await.unwrap();
            assert_eq!(deleted.code(), Code::Ok, "{scheme}: {}", deleted.status());
        }
        let there = front.call(&controller("ListVolumes"), &[]).await.unwrap();
        let here =
            world.direct().await.unwrap().call(&controller("ListVolumes"), &[]).await.unwrap();
        assert!(there.body == here.body, "{scheme}: the list is the driver's, byte for byte");
        let [to_edge, to_cloud] = world.stand.net().unwrap().counts();
        assert!(
            to_edge.lost + to_cloud.lost > 0,
            "{scheme}: nothing was lost: {to_edge:?} {to_cloud:?}"
        );
        world.stop().await.unwrap();
    }
}
