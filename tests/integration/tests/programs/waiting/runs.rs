//! Several runs of csi-edge as one node. An earlier run that says hello again may still be alive,
//! or its hello may have been delayed.

use anyhow::bail;
use harness::stand::Stand;
use harness::wait::STOP;
use harness::world::{DRIVER, NODE, TRANSPORTS, hello};
use proto::control::hello::{Hello, Message, Run};
use proto::link;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, ws};
use serde_json::Value;
use uuid::Uuid;

/// The answer to a hello.
enum Answer {
    Welcome,
    Challenge(Uuid),
    Refused(String),
}

async fn answer(link: &mut Link) -> anyhow::Result<Answer> {
    match link.next().await {
        Event::Message(Message::Welcome(_)) => Ok(Answer::Welcome),
        Event::Message(Message::Challenge(nonce)) => Ok(Answer::Challenge(nonce)),
        Event::Message(Message::Refused(refused)) => Ok(Answer::Refused(refused.reason)),
        Event::Closed(error) => Err(error.into()),
        _ => bail!("that is no answer to a hello"),
    }
}

/// Says hello as this run.
async fn greet(stand: &Stand, url: &str, run: Run) -> anyhow::Result<(Link, Answer)> {
    let credentials = stand.credentials(NODE, Role::Node)?;
    let mut link =
        link::dial(&url.parse()?, &credentials, KeepAlive::default(), &ws::tcp()).await?;
    let hello = Hello { run, answers_challenge: true, ..hello(NODE)? };
    link.send(&Message::Hello(hello)).await?;
    let answer = answer(&mut link).await?;
    Ok((link, answer))
}

async fn is_cordoned(stand: &Stand) -> anyhow::Result<bool> {
    let admin = stand.at("cloud/_admin.sock");
    let nodes = stand.run("csi-cloud", &["nodes", "-o", "json", "--admin", &admin]).await?;
    let nodes: Value = serde_json::from_str(&nodes)?;
    Ok(nodes[0]["certificate_fault"] == "cordoned")
}

#[tokio::test]
async fn a_run_that_comes_back_cordons_the_node_only_if_it_is_alive() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let stand = Stand::new().await?;
        let cloud = stand.cloud(&[transport], &[DRIVER], &[]).await?;
        stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
        let url = cloud.urls[0].as_str();
        let [before, now] = [Run::begin(), Run::begin()];
        let (_replaced, first) = greet(&stand, url, before).await?;
        let (mut link, second) = greet(&stand, url, now).await?;
        assert!(matches!((first, second), (Answer::Welcome, Answer::Welcome)), "{transport}");

        let (late, Answer::Challenge(_)) = greet(&stand, url, before).await? else {
            panic!("{transport}: it was not challenged");
        };
        drop(late);
        let (mut wrong, Answer::Challenge(_)) = greet(&stand, url, before).await? else {
            panic!("{transport}: it was not challenged again");
        };
        wrong.send(&Message::ChallengeAnswer(Uuid::nil())).await?;
        let refused = answer(&mut wrong).await?;
        assert!(matches!(refused, Answer::Refused(why) if why.contains("did not answer")));
        assert!(!is_cordoned(&stand).await?, "{transport}: nobody answered");

        let (mut alive, Answer::Challenge(nonce)) = greet(&stand, url, before).await? else {
            panic!("{transport}: it was not challenged a third time");
        };
        alive.send(&Message::ChallengeAnswer(nonce)).await?;
        let refused = answer(&mut alive).await?;
        assert!(matches!(refused, Answer::Refused(why) if why.contains("node accept")));
        assert!(is_cordoned(&stand).await?, "{transport}: both are alive");
        assert!(matches!(link.next().await, Event::Closed(_)), "{transport}");
        let (_, refused) = greet(&stand, url, now).await?;
        assert!(matches!(refused, Answer::Refused(why) if why.contains("node accept")));
        cloud.process.stop(STOP).await?;
    }
    Ok(())
}
