//! An OCI runtime around runc, which does a VM runtime's work on a direct volume. It finds the
//! volume by its mount source and reads the contract. It mounts the device for the container alone,
//! and answers on a shim's socket.
//!
//! All containers of a pod mount the one device. The kernel keeps its file system until the last
//! of them has ended, as Kata's Go runtime counts. Configured as a stock Go runtime
//! (`disable_block_device_use = true`), it shares the directory.
//! With a configuration of runtime-rs it has a machine for each sandbox, with the faults of that
//! runtime, and asks NRI's plugins.
//!
//! It is no VM: the kernel is the host's. All that is not about direct volumes is runc's own doing.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use self::bundle::Container;
use self::call::Create;
use self::host::{SANDBOXES_RS, SERVE, runc};
use self::machine::{MACHINE, Machine};
use self::serve::Serving;

mod bundle;
mod call;
mod configuration;
mod host;
mod inside;
mod machine;
mod nri;
mod serve;

pub use self::host::{ENTRIES, SANDBOXES};
pub use self::machine::MACHINES;
pub use self::nri::NRI;

/// The name of its RuntimeClass, and of its handler in containerd's configuration.
pub const HANDLER: &str = "wrapped";
/// The root of its configuration file, in a directory that is each node's own.
pub const RUNTIMES: &str = "/run/runtimes";
/// Its configuration, as that of Kata's Go runtime; without one it takes devices.
pub const CONFIGURATION: &str = "/run/runtimes/etc/kata-containers/configuration.toml";
/// The configuration file of Kata's runtime-rs. Where it is, the wrapper behaves as that does.
pub const RUNTIME_RS: &str = "/run/runtimes/etc/kata-containers/runtime-rs/configuration.toml";
/// The first argument when it has started itself in a mount namespace of its own; the others are
/// runc's.
const INSIDE: &str = "inside";
/// Executes a command line. It is one of runc's unless the wrapper started itself.
///
/// # Errors
/// The command failed. If a container was not made, the error is in runc's log too, because
/// containerd copies that to the pod's events.
pub fn run(args: &[OsString]) -> anyhow::Result<ExitCode> {
    match args.split_first() {
        Some((first, [dir])) if first == SERVE => serve::run(Path::new(dir)),
        Some((first, [sandbox])) if first == MACHINE => machine::run(sandbox),
        Some((first, runcs)) if first == INSIDE => told(runcs, inside::run),
        _ => told(args, create),
    }
}

/// Writes an error to containerd's log file.
fn told(
    args: &[OsString],
    work: impl Fn(&[OsString], Option<&Create>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let create = call::create(args);
    let done = work(args, create.as_ref());
    if let (Err(error), Some(log)) = (&done, create.and_then(|create| create.log)) {
        let line = serde_json::json!({"level": "error", "msg": format!("{error:#}")});
        let mut log = std::fs::File::options().append(true).create(true).open(log)?;
        writeln!(log, "{line}")?;
    }
    done
}

/// Makes a container: with direct volumes in a mount namespace where they are mounted, which
/// becomes the container's.
fn create(args: &[OsString], create: Option<&Create>) -> anyhow::Result<ExitCode> {
    let Some(create) = create else {
        if let Some((id, by_force)) = call::delete(args) {
            ended(id, by_force)?;
        }
        return runc(args);
    };
    if !configuration::takes_devices(Path::new(CONFIGURATION))? {
        return runc(args);
    }
    let mut container = Container::read(&create.bundle, Path::new(ENTRIES))?;
    if container.volumes.is_empty() {
        return runc(args);
    }
    let is_rs = is_runtime_rs();
    let shims = if is_rs { SANDBOXES_RS } else { SANDBOXES };
    if is_rs {
        nri::admit(HANDLER, &container)?;
        if let Err(refused) = machine::take(&container, &create.id) {
            nri::ended(&container.sandbox, &container.name)?;
            return Err(refused);
        }
        // Its shim knows no request for statistics.
        container.volumes.clear();
    }
    let serving = Serving::start(&Path::new(shims).join(&container.sandbox))?;
    if !is_rs {
        container.record(Path::new(ENTRIES))?;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "--"]).arg(std::env::current_exe()?);
    let status = command.arg(INSIDE).args(args).status().context("cannot start unshare")?;
    if status.success() {
        serving.has(&create.pid_file, &container)?;
    }
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn is_runtime_rs() -> bool {
    Path::new(RUNTIME_RS).exists()
}

/// A container has ended, or with its own id a sandbox. By force, the shim of it has died, and
/// runtime-rs leaves its machine as it is.
fn ended(id: &str, by_force: bool) -> anyhow::Result<()> {
    if !is_runtime_rs() {
        return Ok(());
    }
    let machines = match std::fs::read_dir(MACHINES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        machines => machines?,
    };
    for sandbox in machines {
        let sandbox = sandbox?.file_name();
        let sandbox = sandbox.to_string_lossy();
        let Some(mut machine) = Machine::of(&sandbox)? else { continue };
        if sandbox == id {
            if !by_force {
                machine.off()?;
            }
            return Ok(());
        }
        if !by_force && let Some(container) = machine.ended(id)? {
            drop(machine);
            nri::ended(&sandbox, &container.name)?;
        }
    }
    Ok(())
}
