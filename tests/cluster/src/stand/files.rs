//! A file server for all nodes: a directory by SFTP over plain TCP, which sshfs mounts at nodes.
//! This kernel has no client of NFS, 9p or Ceph, and FUSE is in every kernel.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use proto::host::tasks::Tasks;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tracing::warn;

/// What it needs: a file, and Debian's package that has it.
const NEEDED: [(&str, &str); 3] = [
    ("/usr/bin/sshfs", "sshfs"),
    (SFTP, "openssh-sftp-server"),
    ("/dev/fuse", "FUSE in the kernel"),
];
const SFTP: &str = "/usr/lib/openssh/sftp-server";

/// See the module; it ends when it is dropped.
pub struct Files {
    /// Where the files are.
    pub dir: PathBuf,
    address: SocketAddr,
    _tasks: Tasks,
}

impl Files {
    /// What is not installed here, without which there is none.
    pub fn missing() -> Vec<&'static str> {
        let missing = NEEDED.iter().filter(|(file, _)| !Path::new(file).exists());
        missing.map(|(_, package)| *package).collect()
    }

    /// Serves a directory on loopback.
    ///
    /// # Errors
    /// The directory cannot be made, or there is no port.
    pub(super) async fn serve(dir: &Path) -> anyhow::Result<Self> {
        tokio::fs::create_dir_all(dir).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let tasks = Tasks::default();
        let connections = tasks.child();
        let home = dir.to_owned();
        tasks.spawn_until_stop("files", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let home = home.clone();
                connections.spawn_until_stop("files connection", async move {
                    let answered = answer(stream, &home).await;
                    let lost = |error: &_| warn!("a connection to the file server: {error:#}");
                    drop(answered.inspect_err(lost));
                });
            }
        });
        Ok(Self { dir: dir.to_owned(), address, _tasks: tasks })
    }

    /// As drivers name it.
    pub(super) fn url(&self) -> String {
        format!("{}{}", self.address, self.dir.display())
    }
}

/// One mount's connection, until it ends.
async fn answer(stream: TcpStream, home: &Path) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", SFTP, "-e", "-d"]).arg(home);
    let input = std::os::fd::OwnedFd::from(stream.try_clone()?);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(std::os::fd::OwnedFd::from(stream)));
    let mut server = command.stderr(Stdio::null()).kill_on_drop(true).spawn();
    let server =
        server.as_mut().map_err(|error| anyhow::anyhow!("cannot start {SFTP}: {error}"))?;
    // Else the connection stays open as long as this process has its end.
    drop(command);
    server.wait().await.map(drop).context("the SFTP server")
}
