//! `csi-cloud token`.

use std::io;
use std::io::Write;

use proto::admin::client::Client;
use proto::admin::output::Output;

use crate::admin::tokens::{
    CREATE, CreateToken, CreatedToken, LIST, REVOKE, RevokeToken, TokenView,
};
use crate::cli::cells::{age, optional, since};
use crate::cli::output::{PROGRAM, change, whole};
use crate::config::admin_arguments::TokenCommand;
use crate::config::show_arguments::Show;
use crate::state::clock::now;
use tokio::time::Duration;

const HEADERS: &[&str] = &["ID", "NODE", "STATE", "ENDS IN", "AGE", "SERIAL"];

/// Runs a command about tokens.
///
/// # Errors
/// csi-cloud does not answer, refuses or changes nothing; or the output fails.
pub(super) async fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { node, ttl, cloud, show } => {
            let cloud = cloud.map(|cloud| cloud.to_string());
            let request = CreateToken { node, ttl_s: ttl.as_secs(), cloud };
            create(&request, &show).await
        }
        TokenCommand::List(show) => whole(&show, LIST, HEADERS, row).await.map(drop),
        TokenCommand::Revoke { id, reach } => change(&reach, REVOKE, &RevokeToken { id }).await,
    }
}

async fn create(request: &CreateToken, show: &Show) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let created: CreatedToken = client.carry_out(CREATE, request).await?;
    let mut out = io::stdout().lock();
    match show.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string(&created)?)?,
        Output::Table => {
            let CreatedToken { id, node, expires_ms, command, .. } = created;
            // Only the command is on stdout, for a pipe.
            let left = age(Duration::from_millis(expires_ms.saturating_sub(now())));
            eprintln!("The token {id} lets {node} join once, within {left}. Run at that node:\n");
            writeln!(out, "{command}")?;
        }
    }
    Ok(())
}

fn row(token: &TokenView) -> Vec<String> {
    let left = token.expires_ms.saturating_sub(now());
    let is_open = token.state == "open";
    vec![
        token.id.to_string(),
        token.node.to_string(),
        token.state.clone(),
        if is_open { age(Duration::from_millis(left)) } else { String::new() },
        since(token.created_ms),
        optional(token.serial.as_ref()),
    ]
}
