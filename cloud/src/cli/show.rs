//! The commands: each asks csi-cloud over its admin socket, and prints the answer as a table or as JSON.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::admin::shown::{
    AdmitNode, AskIntents, AskOwners, AskVolumes, CallShown, Done, DriverShown, ForgetVolume, GivenHome,
    IntentShown, NodeShown, OwnerShown, Page, RebuildHomes, ReleaseVolume, RemoveNode, ResolveIntent,
    VolumeShown,
};
use crate::cli::client::Client;
use crate::cli::table::{Table, age, size};
use crate::cli::top;
use crate::config::admin_arguments::{
    Ask, ChangeHomes, ChangeIntent, ChangeNode, ChangeVolume, Intents, Output, Reach, Show,
};
use crate::state::clock::now;

/// Homes that are sent at a time.
const CHUNK: usize = 1000;
/// What is shown of an id in a table, in characters.
const SHOWN: usize = 64;

/// Runs a command.
///
/// # Errors
/// csi-cloud cannot be asked or refuses, or the output cannot be written; a reader that has gone is no error.
pub async fn run(ask: Ask) -> anyhow::Result<()> {
    match carried_out(ask).await {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        result => result,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn carried_out(ask: Ask) -> anyhow::Result<()> {
    match ask {
        Ask::Nodes(show) => pages(&show, "/nodes", &empty(), NODES, node).await,
        Ask::Drivers(show) => drivers(&show).await,
        Ask::Volumes { driver, node, all, show } => {
            let ask = AskVolumes { driver, node, all, after: None };
            pages(&show, "/volumes", &ask, VOLUMES, volume).await
        }
        Ask::Intents(intents) | Ask::Intent(ChangeIntent::List(intents)) => {
            let Intents { driver, all, show } = intents;
            let ask = AskIntents { driver, all, after: None };
            pages(&show, "/intents", &ask, INTENTS, intent).await
        }
        Ask::Owners { driver, node, show } => {
            let ask = AskOwners { driver, node, after: None };
            pages(&show, "/owners", &ask, OWNERS, owner).await
        }
        Ask::Calls(show) => whole(&show, "/calls", CALLS, call).await,
        Ask::Top { interval, count, show } => top::run(&show, Duration::from_secs(interval), count).await,
        Ask::Node(ChangeNode::Remove { node, yes, reach }) => {
            change(&reach, "/node/remove", &RemoveNode { node, yes }).await
        }
        Ask::Node(ChangeNode::Admit { node, reach }) => {
            change(&reach, "/node/admit", &AdmitNode { node }).await
        }
        Ask::Intent(ChangeIntent::Resolve { driver, name, method, not_made: _, made, reach }) => {
            change(&reach, "/intent/resolve", &ResolveIntent { driver, method, name, made }).await
        }
        Ask::Volume(ChangeVolume::Forget { driver, id, kind, force, reach }) => {
            change(&reach, "/volume/forget", &ForgetVolume { driver, kind, id, force }).await
        }
        Ask::Volume(ChangeVolume::Release { driver, id, node, yes, reach }) => {
            change(&reach, "/volume/release", &ReleaseVolume { driver, id, node, yes }).await
        }
        Ask::Homes(ChangeHomes::Rebuild { driver, from: None, reach }) => {
            change(&reach, "/homes/rebuild", &RebuildHomes { driver, homes: None }).await
        }
        Ask::Homes(ChangeHomes::Rebuild { driver, from: Some(file), reach }) => {
            let mut homes = given(&file)?.into_iter().peekable();
            while homes.peek().is_some() {
                let homes = Some(homes.by_ref().take(CHUNK).collect());
                change(&reach, "/homes/rebuild", &RebuildHomes { driver: driver.clone(), homes }).await?;
            }
            Ok(())
        }
    }
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Prints a list that comes in pages, each before the next one is asked for.
async fn pages<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    ask: &impl Serialize,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let mut ask = serde_json::to_value(ask)?;
    let mut written = Written::new(show.output, headers);
    let mut out = io::stdout().lock();
    loop {
        let page: Page<T, Value> = client.ask(path, &ask).await?;
        written.add(&mut out, &page.items, row)?;
        let Some(next) = page.next else { break };
        if let Some(ask) = ask.as_object_mut() {
            ask.insert("after".into(), next);
        }
    }
    Ok(written.end(&mut out)?)
}

/// Prints a list that comes whole.
async fn whole<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let items: Vec<T> = client.ask(path, &empty()).await?;
    let mut written = Written::new(show.output, headers);
    let mut out = io::stdout().lock();
    written.add(&mut out, &items, row)?;
    Ok(written.end(&mut out)?)
}

async fn change(reach: &Reach, path: &'static str, ask: &impl Serialize) -> anyhow::Result<()> {
    let mut client = Client::connect(&reach.socket()).await?;
    let Done { done, text } = client.ask(path, ask).await?;
    if !done {
        bail!("nothing was changed: {text}");
    }
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// A list that is being written: a table, or a JSON array with an item on each line.
struct Written {
    output: Output,
    table: Table,
    items: u64,
}

impl Written {
    fn new(output: Output, headers: &'static [&'static str]) -> Self {
        Self { output, table: Table::new(headers), items: 0 }
    }

    fn add<T: Serialize>(
        &mut self,
        out: &mut impl Write,
        items: &[T],
        row: fn(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        if self.output == Output::Table {
            // A page may be empty though more comes, and headers are as wide as what is below them.
            if !items.is_empty() {
                self.table.rows(out, &items.iter().map(row).collect::<Vec<_>>())?;
            }
            self.items += items.len() as u64;
            return Ok(());
        }
        for item in items {
            write!(out, "{}{}", if self.items == 0 { "[\n" } else { ",\n" }, serde_json::to_string(item)?)?;
            self.items += 1;
        }
        Ok(())
    }

    fn end(mut self, out: &mut impl Write) -> io::Result<()> {
        match (self.output, self.items) {
            (Output::Table, 0) => self.table.rows(out, &[]),
            (Output::Table, _) => Ok(()),
            (Output::Json, 0) => writeln!(out, "[]"),
            (Output::Json, _) => writeln!(out, "\n]"),
        }
    }
}

const NODES: &[&str] =
    &["NAME", "STATE", "FOR", "TRANSPORT", "ADDRESS", "VERSION", "VOLUMES", "DRIVERS", "AGE"];

fn node(node: &NodeShown) -> Vec<String> {
    let for_s = match node.removed_ms {
        Some(removed) => Some(since(removed)),
        None => node.linked_s.or(node.away_s).map(|s| age(Duration::from_secs(s))),
    };
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![
        node.name.to_string(),
        node.state.clone(),
        for_s.unwrap_or_default(),
        or_empty(&node.transport),
        or_empty(&node.address),
        or_empty(&node.version),
        node.volumes.to_string(),
        joined(&node.drivers),
        since(node.since_ms),
    ]
}

const DRIVERS: &[&str] = &[
    "NAME",
    "FRONT",
    "SCOPE",
    "PLACEMENT",
    "NODES",
    "LINKED",
    "HOMES",
    "OPEN",
    "CALLS",
    "CSIDRIVER",
    "NODES DIFFER",
];

/// Below the table is what each driver can do, since a column cannot hold it.
async fn drivers(show: &Show) -> anyhow::Result<()> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let items: Vec<DriverShown> = client.ask("/drivers", &empty()).await?;
    let mut written = Written::new(show.output, DRIVERS);
    let mut out = io::stdout().lock();
    written.add(&mut out, &items, driver)?;
    written.end(&mut out)?;
    if show.output == Output::Table {
        for item in items {
            writeln!(out, "\n{} says that it can:", item.name)?;
            for (rpc, can) in item.capabilities.into_iter().flatten().filter(|(_, can)| !can.is_empty()) {
                writeln!(out, "  {rpc}")?;
                can.chunks(4).try_for_each(|some| writeln!(out, "    {}", some.join(", ")))?;
            }
        }
    }
    Ok(())
}

fn driver(driver: &DriverShown) -> Vec<String> {
    let inferred = if driver.scope_inferred { " (inferred)" } else { "" };
    let elected = driver.elected.as_ref().map(|node| format!("elected {node}"));
    vec![
        driver.name.to_string(),
        if driver.front { "yes" } else { "no" }.into(),
        format!("{}{inferred}", driver.scope),
        elected.unwrap_or_else(|| driver.placement.clone()),
        driver.nodes.to_string(),
        driver.nodes_linked.to_string(),
        driver.homes.to_string(),
        driver.intents_open.to_string(),
        driver.calls.to_string(),
        driver.csidriver.clone().unwrap_or_default(),
        driver.odd.join("; "),
    ]
}

const VOLUMES: &[&str] =
    &["ID", "KIND", "DRIVER", "NODE", "SIZE", "PUBLISHED", "CLAIM", "AGE", "STATE", "HOLDER"];

fn volume(volume: &VolumeShown) -> Vec<String> {
    let state = match volume.claimed_by.as_slice() {
        [] => volume.state.clone(),
        others => format!("{}, claimed also by {}", volume.state, joined(others)),
    };
    vec![
        short(&volume.id),
        volume.kind.clone(),
        volume.driver.to_string(),
        volume.node.to_string(),
        volume.capacity_bytes.map(size).unwrap_or_default(),
        volume.published.join(","),
        claim(volume.claim_namespace.as_deref(), volume.claim_name.as_deref()),
        since(volume.since_ms),
        state.replace("claimed, claimed", "claimed"),
        volume.holder.holder_node.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

const OWNERS: &[&str] = &["ID", "DRIVER", "NODE", "LINK", "POD", "ATTACHED", "EPOCH", "AGE", "TAKEN FROM"];

fn owner(owner: &OwnerShown) -> Vec<String> {
    let holder = &owner.holder;
    let yes = |yes: Option<bool>, words: [&str; 2]| yes.map_or("", |yes| words[usize::from(yes)]).to_owned();
    vec![
        short(&owner.id),
        owner.driver.to_string(),
        holder.holder_node.as_ref().map(ToString::to_string).unwrap_or_default(),
        yes(owner.linked, ["away", "linked"]),
        holder
            .holder_pod
            .as_deref()
            .map(|pod| if pod.is_empty() { "?" } else { pod })
            .unwrap_or_default()
            .into(),
        yes(holder.holder_attached, ["no", "yes"]),
        holder.holder_epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
        holder.holder_since_ms.map(since).unwrap_or_default(),
        owner.taken_from.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    ]
}

const INTENTS: &[&str] = &["NAME", "RPC", "DRIVER", "NODE", "CLAIM", "AGE", "MADE"];

fn intent(intent: &IntentShown) -> Vec<String> {
    vec![
        short(&intent.name),
        intent.method.clone(),
        intent.driver.to_string(),
        intent.node.to_string(),
        claim(intent.claim_namespace.as_deref(), intent.claim_name.as_deref()),
        since(intent.since_ms),
        intent.made.as_deref().map_or_else(|| "open".into(), short),
    ]
}

pub(super) const CALLS: &[&str] = &["RPC", "DRIVER", "NODE", "SUBJECT", "AGE", "STAGE"];

pub(super) fn call(call: &CallShown) -> Vec<String> {
    let time = Duration::from_millis(call.age_ms);
    vec![
        call.rpc.clone(),
        call.driver.to_string(),
        call.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        short(&call.subject),
        if call.age_ms < 1000 { format!("{}ms", call.age_ms) } else { age(time) },
        match call.stage.as_str() {
            "waiting" => "waiting for link".into(),
            stage => stage.to_owned(),
        },
    ]
}

fn claim(namespace: Option<&str>, name: Option<&str>) -> String {
    name.map(|name| format!("{}/{name}", namespace.unwrap_or_default())).unwrap_or_default()
}

fn joined(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// How long ago a moment was, in ms since 1970.
fn since(ms: u64) -> String {
    age(Duration::from_millis(now().saturating_sub(ms)))
}

fn short(id: &str) -> String {
    match id.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", id.get(..at).unwrap_or_default()),
        None => id.to_owned(),
    }
}

/// The homes in a file.
fn given(file: &Path) -> anyhow::Result<Vec<GivenHome>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(line, at)| home(line).with_context(|| format!("{} line {at}", file.display()))).collect()
}

fn home(line: &str) -> anyhow::Result<GivenHome> {
    let mut parts = line.splitn(3, ' ');
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let (driver, node, id) = (next(), next(), next());
    let (Some(driver), Some(node), Some(id)) = (driver, node, id) else {
        bail!("a line is DRIVER NODE ID, with one space between them; an id may have spaces in it");
    };
    Ok(GivenHome { driver: driver.parse()?, node: node.parse()?, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_file_names_a_home() {
        let read = home("d.example n1 an id/with #things").unwrap();
        assert_eq!((read.driver.as_str(), read.node.as_str()), ("d.example", "n1"));
        assert_eq!(read.id, "an id/with #things");
        for bad in ["d.example n1", "d.example n1 ", "d.example  n1 x", "d_e n1 x", "d.example N1 x"] {
            assert!(home(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_is_one_json_array_however_it_comes() {
        let (mut out, mut written) = (Vec::new(), Written::new(Output::Json, &["A"]));
        for page in [vec![], vec![1, 2], vec![], vec![3]] {
            written.add(&mut out, &page, |_| Vec::new()).unwrap();
        }
        written.end(&mut out).unwrap();
        assert_eq!(serde_json::from_slice::<Vec<u8>>(&out).unwrap(), [1, 2, 3]);
        let mut out = Vec::new();
        Written::new(Output::Json, &["A"]).end(&mut out).unwrap();
        assert_eq!(out, b"[]\n");
    }

    #[test]
    fn a_long_id_is_cut_between_characters() {
        assert_eq!(short("short"), "short");
        assert_eq!(short(&"é".repeat(100)).chars().count(), SHOWN + 1);
    }
}
