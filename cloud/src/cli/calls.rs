//! `csi-cloud calls`.

use std::io;
use std::io::Write;

use proto::admin::client::Client;
use proto::admin::output::Output;
use tokio::time::Duration;

use crate::admin::calls::{CallView, PATH};
use crate::admin::ended_calls;
use crate::admin::ended_calls::{EndedList, EndedQuery, EndedView};
use crate::cli::cells::{age, optional, short, since};
use crate::cli::output::{PROGRAM, print, whole};
use crate::config::admin_arguments::Calls;

/// The headers of a table of calls.
pub(super) const HEADERS: &[&str] = &["RPC", "DRIVER", "NODE", "SUBJECT", "AGE", "STAGE"];

/// The headers of a table of calls that ended.
const ENDED: &[&str] =
    &["AGE", "RPC", "DRIVER", "NODE", "SUBJECT", "CODE", "TOOK", "TRIES", "FAILED", "MESSAGE"];

/// Prints the calls in flight, or those that ended.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(list: Calls) -> anyhow::Result<()> {
    let Calls { ended, driver, node, subject, failed, limit, show } = list;
    if !ended {
        return whole(&show, PATH, HEADERS, row).await.map(drop);
    }
    let query = EndedQuery { driver, node, subject, failed, limit: Some(limit) };
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let EndedList { since_ms, calls } = client.ask(ended_calls::PATH, &query).await?;
    print(&show, &calls, ENDED, ended_row)?;
    if show.output == Output::Table {
        let since = since(since_ms);
        writeln!(io::stdout().lock(), "\ncalls of the last {since}, since csi-cloud started")?;
    }
    Ok(())
}

/// A call's row.
pub(super) fn row(call: &CallView) -> Vec<String> {
    let age = lasted(call.age_ms);
    let stage = match call.stage.as_str() {
        "waiting" => "waiting for link",
        stage => stage,
    };
    vec![
        call.rpc.clone(),
        call.driver.to_string(),
        optional(call.node.as_ref()),
        short(&call.subject),
        age,
        stage.to_owned(),
    ]
}

fn ended_row(call: &EndedView) -> Vec<String> {
    vec![
        since(call.at_ms),
        call.rpc.clone(),
        call.driver.to_string(),
        optional(call.node.as_ref()),
        short(&call.subject),
        call.code.clone(),
        lasted(call.took_ms),
        call.attempts.to_string(),
        failed(call.failures),
        short(&call.message),
    ]
}

/// The failures in a row; empty if the call was carried out.
fn failed(failures: u32) -> String {
    match failures {
        0 => String::new(),
        1 => "once".to_owned(),
        many => format!("{many} times"),
    }
}

/// A duration, which may be short.
fn lasted(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        _ => age(Duration::from_millis(ms)),
    }
}
