//! `csi-cloud calls`.

use tokio::time::Duration;

use crate::admin::calls::{CallView, PATH};
use crate::cli::cells::{age, optional, short};
use crate::cli::output::whole;
use crate::config::admin_arguments::Show;

/// The headers of a table of calls.
pub(super) const HEADERS: &[&str] = &["RPC", "DRIVER", "NODE", "SUBJECT", "AGE", "STAGE"];

/// Prints the calls in flight.
pub(super) async fn run(show: &Show) -> anyhow::Result<()> {
    whole(show, PATH, HEADERS, row).await.map(drop)
}

/// A call's row.
pub(super) fn row(call: &CallView) -> Vec<String> {
    let age = match call.age_ms {
        ms @ 0..1000 => format!("{ms}ms"),
        ms => age(Duration::from_millis(ms)),
    };
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
