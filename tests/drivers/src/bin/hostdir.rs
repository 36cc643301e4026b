//! The node-local CSI driver as a process: real data, real mounts, and it survives SIGKILL.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use drivers::hostdir::{HostDir, Settings, Shares, private, remote};
use futures_util::FutureExt as _;
use proto::host::socket::Socket;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long calls in progress may take after a signal.
const GRACE: Duration = Duration::from_secs(10);

/// A CSI driver whose volumes are directories and image files below one directory. It takes the
/// flags of Kubernetes' example driver, too.
#[derive(Parser)]
struct Args {
    /// Where to listen, as `unix:///path` or a path.
    #[arg(long)]
    endpoint: String,
    /// Where the controller is served, in the same form; `endpoint` has it if there is none.
    #[arg(long, conflicts_with_all = ["shares", "server"])]
    controller: Option<String>,
    /// Where volumes and snapshots are kept.
    #[arg(long, alias = "statedir")]
    state: PathBuf,
    /// The node id that NodeGetInfo answers.
    #[arg(long, alias = "nodeid")]
    node_id: String,
    /// The plugin's name.
    #[arg(long, alias = "drivername", default_value = "hostdir.edge-csi.io")]
    name: String,
    /// The most volumes that may be published to the node; any number if it is 0.
    #[arg(long, default_value_t = 0)]
    attach_limit: u32,
    /// The most bytes of all volumes together; the size of the file system if it is 0.
    #[arg(long, default_value_t = 0)]
    capacity: i64,
    /// Answers a create with the first topology that the caller prefers, whichever node this is.
    #[arg(long)]
    echo_preferred: bool,
    /// Has no controller and only mounts directories below the state, as volumes' attributes
    /// `server` and `share` say.
    #[arg(long)]
    shares: bool,
    /// Has volumes that every node can mount, in a directory of this file server, as
    /// `ADDRESS:PORT/DIRECTORY`. The state is where that is mounted, by sshfs.
    #[arg(long, conflicts_with = "shares")]
    server: Option<String>,
    /// Mounts in a mount namespace of its own, which ends with the process.
    #[arg(long)]
    private_mounts: bool,
    /// Of the example driver; this one always has volumes that are attached.
    #[arg(long = "enable-attach", hide = true)]
    _enable_attach: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    proto::host::program::run(|| {
        // Before any thread, as namespaces belong to threads.
        if args.private_mounts {
            private::restart()?;
        }
        proto::host::program::runtime(2)?.block_on(run(args))
    })
}

async fn run(args: Args) -> anyhow::Result<()> {
    let path = PathBuf::from(args.endpoint.trim_start_matches("unix://"));
    let settings = Settings {
        name: args.name,
        node_id: args.node_id,
        attach_limit: args.attach_limit,
        capacity: args.capacity,
        echo_preferred: args.echo_preferred,
        server: args.server.clone(),
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    // Before `ready`, so that a signal right after it finds its handler.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let cannot = || format!("cannot open the state {}", args.state.display());
    let serving = if let Some(server) = &args.server {
        remote::mount(server, &args.state).with_context(cannot)?;
        let driver = Shares::made_on_demand(&args.state, settings).with_context(cannot)?;
        driver.serve(Socket::bind(&path)?, stopped).boxed()
    } else if args.shares {
        let driver = Shares::of(&args.state, settings);
        driver.serve(Socket::bind(&path)?, stopped).boxed()
    } else {
        let driver = HostDir::open(&args.state, settings).with_context(cannot)?;
        match &args.controller {
            None => driver.serve(Socket::bind(&path)?, stopped).boxed(),
            Some(controller) => {
                let second = PathBuf::from(controller.trim_start_matches("unix://"));
                driver.serve_apart([Socket::bind(&path)?, Socket::bind(&second)?], stopped).boxed()
            }
        }
    };
    println!("ready");
    tokio::pin!(serving);
    let failed = || format!("cannot serve {}", path.display());
    tokio::select! {
        ended = &mut serving => return ended.with_context(failed),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    stop.cancel();
    match tokio::time::timeout(GRACE, serving).await {
        Ok(ended) => ended.with_context(failed),
        // A caller that holds on to its connection is cut off.
        Err(_) => Ok(()),
    }
}
