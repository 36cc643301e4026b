//! `csi-cloud intents`.

use crate::admin::intents::{IntentView, IntentsQuery, PATH};
use crate::cli::cells::{claim, short, since};
use crate::cli::output::pages;
use crate::config::admin_arguments::Intents;

const HEADERS: &[&str] = &["NAME", "RPC", "DRIVER", "NODE", "CLAIM", "AGE", "MADE"];

/// Prints the creates.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(list: Intents) -> anyhow::Result<()> {
    let Intents { driver, all, show } = list;
    let query = IntentsQuery { driver, all, after: None };
    pages(&show, PATH, &query, HEADERS, row).await
}

fn row(intent: &IntentView) -> Vec<String> {
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
