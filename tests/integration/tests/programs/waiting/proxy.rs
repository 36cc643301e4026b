//! An edge behind an HTTP proxy links, joins and lists through its tunnels, and says what is wrong
//! with the proxy. A password is in no log.

use anyhow::{Context, ensure};
use harness::process::Process;
use harness::proxy::{Proxy, Rule};
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::until;
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use tonic::Code;

use super::trust::Issuing;

/// A password, escaped for a URL.
const ESCAPED: &str = "p%40ss-w0rd";
/// The same as the proxy gets it.
const PASSWORD: &str = "p@ss-w0rd";

fn user() -> String {
    format!("shop:{ESCAPED}@")
}

fn rule() -> Rule {
    Rule::Credentials(format!("shop:{PASSWORD}"))
}

async fn no_password(edge: &Process) -> anyhow::Result<()> {
    let log = edge.settled_log().await;
    let is_shown = [ESCAPED, PASSWORD].iter().any(|password| log.contains(password));
    ensure!(!is_shown, "the password is in the log:\n{log}");
    Ok(())
}

/// A call, and a list, which has a connection of its own.
async fn works(front: &RawClient, name: &str) -> anyhow::Result<()> {
    for (method, request) in [("CreateVolume", create(name)), ("ListVolumes", Vec::new())] {
        let answer = front.call(&controller(method), &request).await?;
        ensure!(answer.code() == Code::Ok, "{method}: {}", answer.status());
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_links_through_a_proxy_and_again_when_that_was_cut() -> anyhow::Result<()> {
    let proxy = Proxy::new(rule()).await?;
    let mut stand = Stand::new().await?;
    stand.log("debug");
    let url = proxy.url(&user());
    let world = World::behind(stand, TRANSPORTS[0], &["--proxy", &url]).await?;
    let shown = format!("proxy={}", proxy.url(""));
    let log = world.edge.settled_log().await;
    assert!(log.contains("dialed through a proxy") && log.contains(&shown), "{log}");
    let front = world.front().await?;
    works(&front, "v").await?;
    let tunnels = proxy.tunnels();
    assert!(tunnels >= 2, "{tunnels} tunnels");
    proxy.cut();
    until("it works again", || works(&front, "w")).await?;
    assert!(proxy.tunnels() >= tunnels + 2, "{} tunnels", proxy.tunnels());
    no_password(&world.edge).await?;
    world.stop().await
}

/// An edge whose proxy is this one logs so.
async fn refused(url: String, text: &str) -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let more = ["--cloud", "wss://127.0.0.1:1", "--proxy", url.as_str()];
    let edge = stand.edge_with(NODE, &[(DRIVER, "/none.sock")], &more).await?;
    edge.logged(text).await?;
    no_password(&edge).await?;
    edge.kill().await
}

#[tokio::test]
async fn what_a_proxy_answers_is_named() -> anyhow::Result<()> {
    let wrong = Proxy::new(Rule::Credentials("shop:other".into())).await?;
    let negotiate = Proxy::new(Rule::Negotiate).await?;
    let forbidden = Proxy::new(Rule::Refuse("403 Forbidden")).await?;
    let silent = Proxy::new(Rule::Silent).await?;
    let nobody = format!("http://{}127.0.0.1:1", user());
    tokio::try_join!(
        refused(wrong.url(&user()), "answered 407: it does not take this user and password"),
        refused(wrong.url(""), "answered 407: it asks for credentials; write"),
        refused(negotiate.url(&user()), "it asks for credentials by Negotiate"),
        refused(forbidden.url(&user()), "answered 403 Forbidden and made no tunnel"),
        refused(silent.url(&user()), "did not answer within 8s"),
        refused(nobody, "the proxy http://127.0.0.1:1 cannot be reached"),
    )?;
    Ok(())
}

#[tokio::test]
async fn the_environment_names_a_proxy_and_what_goes_past_it() -> anyhow::Result<()> {
    for (no_proxy, more, is_used) in [
        ("other.example", &[][..], true),
        ("other.example,127.0.0.0/8", &[], false),
        ("other.example", &["--proxy", "none"], false),
    ] {
        let proxy = Proxy::new(rule()).await?;
        let mut stand = Stand::new().await?;
        stand.environment("HTTPS_PROXY", &proxy.url(&user()));
        stand.environment("NO_PROXY", no_proxy);
        let world = World::behind(stand, TRANSPORTS[0], more).await?;
        assert_eq!(proxy.tunnels() > 0, is_used, "NO_PROXY={no_proxy} {more:?}");
        no_password(&world.edge).await?;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_proxy_in_the_environment_that_cannot_be_read_is_named() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    stand.environment("https_proxy", &format!("http://shop:{PASSWORD}#@127.0.0.1:1"));
    let world = World::behind(stand, TRANSPORTS[0], &[]).await?;
    world.edge.logged("the environment's proxy is not used variable=\"https_proxy\"").await?;
    no_password(&world.edge).await?;
    world.stop().await
}

#[tokio::test]
async fn over_quic_a_proxy_is_not_used_and_the_log_says_so() -> anyhow::Result<()> {
    let proxy = Proxy::new(rule()).await?;
    let url = proxy.url(&user());
    let more = ["--proxy", url.as_str()];
    let world = World::behind(Stand::new().await?, TRANSPORTS[1], &more).await?;
    works(&world.front().await?, "v").await?;
    assert_eq!(proxy.tunnels(), 0);
    world.edge.logged("QUIC does not go through an HTTP proxy").await?;
    no_password(&world.edge).await?;
    world.stop().await
}

#[tokio::test]
async fn a_node_joins_through_a_proxy() -> anyhow::Result<()> {
    let proxy = Proxy::new(rule()).await?;
    let mut issuing = Issuing::new(TRANSPORTS[0], "").await?;
    issuing.world.stand.environment("HTTPS_PROXY", &proxy.url("shop:wrong@"));
    let command = issuing.token_of("n2").await?;
    let refused = issuing.join(&command, "n2").await.err().context("it has joined")?;
    assert!(format!("{refused:#}").contains("answered 407"), "{refused:#}");
    let command = format!("{} --proxy {}", command.trim(), proxy.url(&user()));
    issuing.join(&command, "n2").await?;
    assert_eq!(proxy.tunnels(), 1);
    issuing.world.stop().await
}
