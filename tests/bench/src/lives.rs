//! A fixed number of calls to a front that runs already: for counting instructions of its programs.

use std::path::PathBuf;

use anyhow::Context;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};

use crate::load;

/// A fixed number of calls: each caller leads volumes through their lives, four calls each.
#[derive(clap::Args)]
pub struct Args {
    /// The front's socket
    #[arg(long, value_name = "PATH")]
    front: PathBuf,
    /// The node that the volumes are for
    #[arg(long, value_name = "NODE", default_value = "node-1")]
    node: String,
    /// How many call at the same time
    #[arg(long, default_value_t = 1)]
    callers: usize,
    /// How many volumes each of them makes and deletes
    #[arg(long, default_value_t = 250)]
    lives: usize,
}

/// Calls, and prints how many calls were answered.
///
/// # Errors
/// The front is not there, or a call failed.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let path = args.front.clone();
    let connect = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await;
    let channel = channel.with_context(|| format!("no front at {}", args.front.display()))?;
    let seen = load::lives(&channel, &args.node, args.callers, args.lives).await?;
    println!("{}", seen.latencies.len());
    Ok(())
}
