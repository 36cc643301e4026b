//! A network namespace without a name. It lives as long as its process, which ends with this one,
//! even after a SIGKILL. So nothing is left behind, and nothing outside is touched.

use std::ffi::OsStr;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Stdio;

use anyhow::{Context, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio_tun::Tun;

use crate::wait::START;

/// The most bytes of an Ethernet packet.
pub(super) const MTU: u16 = 1500;

/// A network namespace without a name.
pub struct Space {
    /// Ends when its stdin does.
    _holder: Child,
    pid: u32,
}

impl Space {
    /// A new namespace with nothing in it but its loopback.
    ///
    /// # Errors
    /// We are not root, or the machine has no `unshare` or `ip`.
    pub async fn new() -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut holder = command.spawn().context("`unshare` of util-linux cannot be started")?;
        let pid = holder.id().context("`unshare` ended at once")?;
        let mut lines =
            BufReader::new(holder.stdout.take().context("`unshare` has no stdout")?).lines();
        let ready = tokio::time::timeout(START, lines.next_line()).await;
        let ready = ready.context("the namespace does not get ready")??;
        ensure!(
            ready.is_some(),
            "no network namespace: is iproute2 there, and are namespaces allowed?"
        );
        Ok(Self { _holder: holder, pid })
    }

    /// Runs work inside, on a thread of its own; sockets and devices made there stay inside.
    ///
    /// # Errors
    /// The work's, or the namespace has ended.
    pub fn within<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let file = File::open(self.path()).context("the namespace is gone")?;
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot go into the namespace")?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|_| anyhow::bail!("the work inside the namespace panicked"))
    }

    /// A program that will run inside, and be killed when we are.
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path()));
        command.args(["--", "setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// A device with this address. It receives all packets for `peer`, and its packets arrive
    /// inside.
    pub(super) fn tun(&self, address: Ipv4Addr, peer: Ipv4Addr) -> anyhow::Result<Tun> {
        let runtime = tokio::runtime::Handle::current();
        self.within(move || {
            let _runtime = runtime.enter();
            let made =
                Tun::builder().address(address).destination(peer).mtu(MTU.into()).up().build();
            let made = made.context("cannot make a tun device; is there /dev/net/tun?")?;
            made.into_iter().next().context("no tun device")
        })
    }

    /// The process that holds it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid)
    }
}
