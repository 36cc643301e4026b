//! `csi-edge join`: gets this node's certificate, with a token.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use proto::admin::input;
use proto::control::join::Token;
use proto::link::endpoint::{Endpoint, EndpointError};
use proto::link::proxy::ProxyText;
use proto::link::tls::Pin;

use crate::identity::directory::Directory;
use crate::identity::join;
use crate::identity::join::Cloud;

/// What `join` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct Join {
    /// A WebSocket endpoint of csi-cloud: wss://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = websocket)]
    pub cloud: Endpoint,
    /// The hash of its CA, as `csi-cloud token create` prints it
    #[arg(long, value_name = "sha256:HEX")]
    pub ca_hash: Pin,
    /// The token: ID.SECRET of `csi-cloud token create`
    #[arg(long, value_name = "TOKEN", required_unless_present = "token_file",
          conflicts_with = "token_file", value_parser = token)]
    pub token: Option<Token>,
    /// A file that holds the token, - for stdin; other users of this machine cannot see it there
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The HTTP proxy to ask through, in place of the environment's; none for no proxy
    #[arg(long, value_name = "URL")]
    pub proxy: Option<ProxyText>,
    /// Where to keep the key and the certificate
    #[arg(long, value_name = "DIR", default_value = "/etc/edge-csi")]
    pub identity: PathBuf,
    /// Replace an identity that is still valid
    #[arg(long)]
    pub replace: bool,
}

const EXAMPLE: &str = "\
Example, with what `csi-cloud token create node-1` printed:
  printf %s 5f0c.QmFzZTY0 | csi-edge join --cloud wss://cloud.example:7443 \\
    --ca-hash sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 \\
    --token-file -

It writes DIR/node.pem (certificate and key, mode 0600) and DIR/ca.crt. Then start
  csi-edge serve --identity DIR ...";

fn token(text: &str) -> Result<Token, String> {
    let token = Token::new(text);
    if token.reveal().is_empty() { Err("the token is empty".into()) } else { Ok(token) }
}

fn websocket(text: &str) -> Result<Endpoint, String> {
    let endpoint: Endpoint = text.parse().map_err(|error: EndpointError| error.to_string())?;
    if endpoint.transport.takes_tokens() {
        Ok(endpoint)
    } else {
        Err(format!("{endpoint} cannot take tokens; name csi-cloud's wss://HOST:PORT"))
    }
}

/// Joins, and prints what to do next.
///
/// # Errors
/// There is an identity already, the cloud is not the right one or refuses, or the certificate
/// cannot be kept.
pub async fn run(command: Join, out: &mut impl Write) -> anyhow::Result<()> {
    let directory = Directory::new(&command.identity);
    if !command.replace {
        directory.check_replaceable()?;
    }
    let token = match (command.token, &command.token_file) {
        (Some(token), _) => token,
        (None, Some(file)) if input::is_stdin(file) => {
            token(&input::read(file)?).map_err(anyhow::Error::msg)?
        }
        (None, Some(file)) => join::token(file)?,
        (None, None) => anyhow::bail!("--token or --token-file is missing"),
    };
    let cloud = Cloud { endpoint: command.cloud, ca: command.ca_hash };
    let proxy = command.proxy.as_ref().map(ProxyText::read).transpose().context("--proxy")?;
    let network = proxy.unwrap_or_default().network();
    let node = join::join(&cloud, token, &directory, &network).await?;
    writeln!(out, "{}", join::advice(&cloud, &directory, &node))?;
    Ok(())
}
