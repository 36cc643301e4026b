//! What a container runtime with NRI asks its plugins. The stand's containerd has no such NRI, so
//! the wrapper asks in its place, before it makes a container, and says when one has ended.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::bundle::Container;

/// Where it asks: lines of `tests/go/nri`. Without this socket the node has no NRI.
pub const NRI: &str = "/run/runtimes/nri.sock";

/// Asks the plugins for a container.
///
/// # Errors
/// A plugin refuses it, or cannot be asked.
pub(super) fn admit(handler: &str, container: &Container) -> anyhow::Result<()> {
    let Container { sandbox, name, mounts, .. } = container;
    ask(&json!({
        "handler": handler, "sandbox": sandbox, "container": name, "mounts": mounts,
    }))
}

/// Tells the plugins that a container was removed.
///
/// # Errors
/// They cannot be told.
pub(super) fn ended(sandbox: &str, name: &str) -> anyhow::Result<()> {
    ask(&json!({ "sandbox": sandbox, "container": name, "end": "removed" }))
}

fn ask(question: &Value) -> anyhow::Result<()> {
    if !Path::new(NRI).exists() {
        return Ok(());
    }
    let mut stream = UnixStream::connect(NRI).context("NRI does not listen")?;
    writeln!(stream, "{question}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("NRI's answer")?;
    match answer["error"].as_str() {
        None => Ok(()),
        Some(why) => bail!("{why}"),
    }
}
