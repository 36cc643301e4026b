//! Asks for lists and changes, and prints the answers.

use std::io;
use std::io::Write;

use anyhow::bail;
use proto::admin::client::Client;
use proto::admin::output::ListWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::admin::done::Done;
use crate::admin::page::Page;
use crate::config::show_arguments::{Reach, Show};

/// Who is asked.
pub(super) const PROGRAM: &str = "csi-cloud";

/// The parameters of a command that has none.
pub(super) fn no_parameters() -> Value {
    Value::Object(Map::new())
}

/// Prints a list in pages, each before the next one is asked for.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn pages<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    query: &impl Serialize,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let mut query = serde_json::to_value(query)?;
    let mut writer = ListWriter::new(show.output, headers);
    let mut out = io::stdout().lock();
    loop {
        let page: Page<T, Value> = client.ask(path, &query).await?;
        writer.add(&mut out, &page.items, row)?;
        let Some(next) = page.next else { break };
        if let Some(query) = query.as_object_mut() {
            query.insert("after".into(), next);
        }
    }
    Ok(writer.end(&mut out)?)
}

/// Prints a list that comes in one answer, and returns its items.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn whole<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<Vec<T>> {
    answered(show, path, &no_parameters(), headers, row).await
}

/// The same of a list that is asked for with parameters.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn answered<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    query: &impl Serialize,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<Vec<T>> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let items: Vec<T> = client.ask(path, query).await?;
    print(show, &items, headers, row)?;
    Ok(items)
}

/// Prints a list.
///
/// # Errors
/// The items cannot be written.
pub(super) fn print<T: Serialize>(
    show: &Show,
    items: &[T],
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut writer = ListWriter::new(show.output, headers);
    let mut out = io::stdout().lock();
    writer.add(&mut out, items, row)?;
    Ok(writer.end(&mut out)?)
}

/// Asks for a change, and prints what it did.
///
/// # Errors
/// csi-cloud does not answer, refuses or changes nothing; or the output fails.
pub(super) async fn change(
    reach: &Reach,
    path: &'static str,
    request: &impl Serialize,
) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &reach.socket()).await?;
    let Done { done, text } = client.carry_out(path, request).await?;
    if !done {
        bail!("nothing was changed: {text}");
    }
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
