//! Tokens that are wrong in each way, and two edges that would be one node.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use harness::wait::{START, until};
use proto::link::Event;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::report::Row;
use super::world::{HONEST, TRANSPORTS, World, closed};

/// The node that joins.
const JOINS: &str = "joins";
/// The shortest life of a token, and a little more.
const LIFE: &str = "60s";
const ENDED: Duration = Duration::from_secs(62);
/// Wrong tokens that come at once. A tenth of them slowed an address down for a minute once.
const GUESSES: usize = 30;
/// How long the link that stays is watched.
const STAYS: Duration = Duration::from_secs(2);
const ASKED: &str = "refused, and told why";

/// A csi-cloud that issues certificates.
struct Issuing(World);

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let issuing = Issuing::new().await?;
    issuing.wrong_tokens(short, rows).await?;
    rows.push(issuing.two_edges().await?);
    // This row comes last, because csi-cloud delays its answers to wrong tokens from then on.
    rows.push(issuing.guesses().await?);
    issuing.0.stop().await?;
    for transport in TRANSPORTS {
        rows.push(two_links(transport).await?);
    }
    Ok(())
}

impl Issuing {
    async fn new() -> anyhow::Result<Self> {
        let stand = World::stand().await?;
        let config = stand.issuing("")?;
        Ok(Self(World::on(stand, "wss", &["--store=memory:", "--config", &config]).await?))
    }

    /// The command of a new token.
    async fn token(&self, node: &str, more: &[&str]) -> anyhow::Result<String> {
        let create = ["token", "create", node, "--cloud", self.0.url()];
        Ok(self.0.admin(&[&create, more].concat()).await?.trim().to_owned())
    }

    async fn join(&self, command: &str, dir: &str) -> anyhow::Result<String> {
        self.0.stand.join(command, dir).await
    }

    /// Each wrong token, with a part of the reason that the edge must be told.
    async fn wrong_tokens(&self, short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let good = self.token(JOINS, &[]).await?;
        let used = self.token("used", &[]).await?;
        self.join(&used, "used").await?;
        let token = token_of(&good)?;
        let cut = token.get(..20).context("a short token")?;
        rows.push(self.refused("cut", &good.replace(token, cut), "cut off").await?);
        let doubled = good.replace(token, &token.repeat(2));
        rows.push(self.refused("doubled", &doubled, "pasted twice").await?);
        // The id of one node's token with the secret of another's.
        let (id, _) = token.split_once('.').context("no id")?;
        let (_, secret) = token_of(&used)?.split_once('.').context("no secret")?;
        let mixed = good.replace(token, &format!("{id}.{secret}"));
        rows.push(self.refused("of another node", &mixed, "not known here").await?);
        rows.push(self.refused("used", &used, "used by another key").await?);
        // Nobody has made a token shorter, and its life is a minute.
        if !short {
            let ended = self.token("ended", &["--ttl", LIFE]).await?;
            sleep(ENDED).await;
            rows.push(self.refused("expired", &ended, "has ended").await?);
        }
        Ok(())
    }

    /// Wrong tokens at once, and then a good one from the same address, as behind a NAT.
    async fn guesses(&self) -> anyhow::Result<Row> {
        let good = self.token("guessed", &[]).await?;
        let wrong = &good.replace(token_of(&good)?, &guess(&good)?);
        let guesses = (0..GUESSES)
            .map(|guess| async move { self.join(wrong, &format!("guess-{guess}")).await.is_err() });
        let refused = join_all(guesses).await.into_iter().filter(|is_refused| *is_refused).count();
        let joined = self.join(&good, "guessed").await;
        let told = joined.as_ref().err().map(|error| format!("{error:#}"));
        Ok(Row {
            case: format!("{GUESSES} wrong tokens, and a good one from the same address"),
            transport: "wss",
            asked: "the good one joins",
            measured: format!("{refused} refused; {}", told.as_deref().unwrap_or("it joins")),
            ok: joined.is_ok() && refused == GUESSES,
        })
    }

    async fn refused(&self, name: &str, command: &str, reason: &str) -> anyhow::Result<Row> {
        let joined = self.join(command, &format!("wrong-{name}").replace(' ', "-")).await;
        let told = joined.err().map(|error| format!("{error:#}"));
        let told = told.unwrap_or_else(|| "it has joined".into());
        let ok = told.contains(reason);
        let measured = if ok { reason.to_owned() } else { told };
        let case = format!("token, {name}");
        Ok(Row { case, transport: "wss", asked: ASKED, measured, ok })
    }

    /// Two edges with one token, at once.
    async fn two_edges(&self) -> anyhow::Result<Row> {
        let command = self.token("both", &[]).await?;
        let (one, other) = tokio::join!(self.join(&command, "one"), self.join(&command, "other"));
        let refused: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
        let told = refused.iter().map(|error| format!("{error:#}")).collect::<String>();
        let is_told = told.contains("used by another key");
        Ok(Row {
            case: "one token, two edges at once".into(),
            transport: "wss",
            asked: "one joins, the other is told",
            ok: refused.len() == 1 && is_told,
            measured: if is_told { "used by another key".into() } else { told },
        })
    }
}

/// A link of a node that has one.
async fn two_links(transport: &'static str) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    let mut older = world.link(HONEST).await?;
    let mut newer = world.link(HONEST).await?;
    let ended = async {
        loop {
            if let Event::Closed(error) = older.next().await {
                break error.to_string();
            }
        }
    };
    let why = timeout(START, ended).await?;
    let stays = timeout(STAYS, closed(&mut newer)).await.is_err();
    until("the node has a link", || is_linked(&world)).await?;
    newer.close("done").await;
    world.stop().await?;
    Ok(Row {
        case: "two edges of one name".into(),
        transport,
        asked: "the newer one stays, the other is told",
        ok: stays && why.contains("replaced by a newer link"),
        measured: if stays { why } else { format!("{why}; the newer one is closed too") },
    })
}

async fn is_linked(world: &World) -> anyhow::Result<()> {
    let nodes = world.admin(&["nodes", "-o", "json"]).await?;
    let nodes: Value = serde_json::from_str(&nodes)?;
    let mut of_it = nodes.as_array().into_iter().flatten().filter(|node| node["name"] == HONEST);
    ensure!(of_it.any(|node| node["state"] == "linked"), "csi-cloud shows {nodes}");
    Ok(())
}

/// A token with the id of the one in the command, and with a secret that nobody has.
pub(super) fn guess(command: &str) -> anyhow::Result<String> {
    let (id, secret) = token_of(command)?.split_once('.').context("no id")?;
    let other = secret.chars().rev().collect::<String>();
    ensure!(other != secret, "the same backwards");
    Ok(format!("{id}.{other}"))
}

/// The token in the command that joins.
fn token_of(command: &str) -> anyhow::Result<&str> {
    let mut words = command.split(' ');
    words.find(|word| *word == "%s").context("no token")?;
    words.next().context("no token")
}
