//! Three csi-clouds with a real etcd: whichever of them ends, callers of the socket relay are
//! answered through the next leader.

use std::time::Duration;

use drivers::testdriver::{Fault, Gate, Times};
use harness::raw::RawClient;
use harness::replicas;
use harness::requests::{controller, create, created};
use harness::wait::{START, until};
use harness::world::DRIVER;
use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::Code;

use self::world::World;

mod joined;
mod moved;
mod quorum;
mod world;

#[tokio::test]
async fn a_call_is_answered_through_the_next_leader() -> anyhow::Result<()> {
    let Some(mut world) = World::new(1).await? else { return Ok(()) };
    let first = world.leader().await?;
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let gate = Gate::new();
    world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    let killed = world.replicas[first].take()?;
    let ending = async {
        gate.wait_for(1).await?;
        killed.kill().await?;
        gate.open();
        anyhow::Ok(())
    };
    let (answer, ended) = tokio::join!(world.create("w"), ending);
    ended?;
    let answer = answer?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    let second = world.leader().await?;
    assert_eq!(world.volumes(), ["v", "w"]);
    assert_eq!(world.driver.calls_of("CreateVolume").len(), 2, "a call is not run twice");

    // One that is told to stop hands over. Its lease would last twice as long.
    let mut stopped = world.replicas[second].take()?;
    stopped.signal(Signal::TERM)?;
    let begun = Instant::now();
    let answer = world.create("x").await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(stopped.ended(START).await?.success());
    assert!(!created(&answer)?.volume_id.is_empty());

    world.replicas[second].start(&world.stand).await?;
    world.stop().await
}

#[tokio::test]
async fn a_leader_that_was_paused_says_nothing_final_and_ends() -> anyhow::Result<()> {
    let Some(mut world) = World::new(1).await? else { return Ok(()) };
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let first = world.leader().await?;
    let direct = RawClient::connect(&world.replicas[first].front(&world.stand, DRIVER)).await?;
    assert_eq!(direct.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
    let mut paused = world.replicas[first].take()?;
    paused.signal(Signal::STOP)?;
    let path = controller("CreateVolume");
    let request = create("late");
    let late = direct.call(&path, &request);
    let going_on = async {
        replicas::leader(&world.replicas, &[first]).await?;
        let answer = world.create("w").await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        paused.signal(Signal::CONT)
    };
    let (late, went_on) = tokio::join!(timeout(START * 2, late), going_on);
    went_on?;
    // The connection may be gone, too.
    if let Ok(answer) = late? {
        assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    }
    assert!(!paused.ended(START).await?.success(), "it is to be started again");
    assert_eq!(world.volumes(), ["v", "w"]);

    // Whoever runs it starts it again, and it follows.
    world.replicas[first].start(&world.stand).await?;
    let follows = || async {
        let answer = direct_answer(&world, first).await?;
        anyhow::ensure!(answer.contains("follows"), "{answer}");
        Ok(())
    };
    until("it follows", follows).await?;
    world.stop().await
}

#[tokio::test]
async fn a_caller_hears_why_none_leads_and_all_goes_on_by_itself() -> anyhow::Result<()> {
    let Some(mut world) = World::new(1).await? else { return Ok(()) };
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let first = world.leader().await?;
    let mut leader = world.replicas[first].take()?;
    world.etcd.process(0)?.signal(Signal::STOP)?;
    let answer = world.create_within("w", "20S").await?;
    assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    assert!(answer.status().message().contains("etcd gave no answer"), "{}", answer.status());
    assert!(!leader.ended(START).await?.success(), "it is to be started again");
    world.etcd.process(0)?.signal(Signal::CONT)?;
    let answer = world.create("w").await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert_eq!(world.volumes(), ["v", "w"]);
    world.stop().await
}

/// What a replica answers to those who call it and not the leader.
async fn direct_answer(world: &World, place: usize) -> anyhow::Result<String> {
    let direct = RawClient::connect(&world.replicas[place].front(&world.stand, DRIVER)).await?;
    let answer = direct.call(&controller("CreateVolume"), &create("w")).await?;
    assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    Ok(answer.status().message().to_owned())
}
