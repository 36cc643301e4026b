//! csi-page: csi-cloud in a browser. It shows the fleet, what is wrong, and why something waits.
//!
//! It only reads csi-cloud's socket `view`. Nobody sees any of it without a token or a client
//! certificate. The fleet is kept once for all who watch.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use proto::host::program;
use proto::host::tasks::{Tasks, stop_signal};

use crate::arguments::Arguments;
use crate::listen::PageListener;
use crate::state::PageState;

mod access;
mod arguments;
mod events;
mod hub;
mod listen;
mod screens;
mod state;
mod tls;
mod view_client;
mod views;
mod web;

#[cfg(test)]
mod tests;

/// The time limit for answers in flight at the end.
const GRACE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    program::run(|| {
        program::forbid_core_dumps();
        let arguments = Arguments::parse();
        arguments.check()?;
        program::runtime(1)?.block_on(serve(arguments))
    })
}

/// Serves until the process is asked to stop.
async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let stop = stop_signal().context("cannot listen to signals")?;
    let tasks = Tasks::default();
    let page = Arc::new(PageState::open(&arguments, tasks.clone())?);
    page.clone().keep_current();
    PageListener::new(page).listen(&arguments.listen).await?;
    program::tell("ready");
    tokio::select! {
        biased;
        panicked = tasks.panicked() => return Err(panicked.into()),
        () = stop => {}
    }
    tasks.finish(GRACE).await;
    Ok(())
}
