//! `make page`: the page in Chromium.

use std::path::PathBuf;

use super::{large, small};

/// Looks at the page in Chromium, with three real nodes and with thousands of light edges.
///
/// Needs Debian's chromium and chromium-driver. Fails if something is missing on the page, or it
/// costs too much.
#[derive(clap::Args)]
pub struct Args {
    /// With three nodes only
    #[arg(long)]
    short: bool,
    /// The light edges
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Without the three nodes
    #[arg(long)]
    large: bool,
    /// Where the pictures go
    #[arg(long, default_value = "target/page")]
    pictures: PathBuf,
}

/// Looks at all of it.
///
/// # Errors
/// What is not as it should be.
pub async fn main(args: Args) -> anyhow::Result<()> {
    if !args.large {
        small::look(&args.pictures).await?;
    }
    if !args.short {
        large::look(args.nodes, &args.pictures).await?;
    }
    Ok(())
}
