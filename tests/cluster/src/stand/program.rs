//! A program of the cluster as a handle: a process of the stand, or a container of a pod. Rows do
//! not know which it is. What a container cannot do is an error, never nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal};

use super::container::Container;
use super::objects::within;
pub use super::process::Launch;
use super::process::{Process, resident};
use super::space::Space;

/// How much of a log an error shows, in bytes.
const TAIL: usize = 2500;

/// A program of the cluster: a process or a container.
pub enum Program {
    /// A process that the stand started.
    Process(Process),
    /// A container that a kubelet started.
    Container(Container),
}

impl Program {
    /// Starts a process that logs to `NAME.log` in `logs`.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(name: &str, logs: &Path, launch: Launch) -> anyhow::Result<Self> {
        Process::start(name, logs, launch).await.map(Self::Process)
    }

    /// Starts a process that is started again whenever it ends by itself ([`Program::tend`]).
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn keep(name: &str, logs: &Path, launch: Launch) -> anyhow::Result<Self> {
        Process::keep(name, logs, launch).await.map(Self::Process)
    }

    /// Starts a process at a node.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn within(
        space: &Arc<Space>,
        name: &str,
        logs: &Path,
        launch: Launch,
    ) -> anyhow::Result<Self> {
        Process::within(space, name, logs, launch).await.map(Self::Process)
    }

    /// A process that is kept too, and does not run before [`Program::run`].
    pub fn later(name: &str, logs: &Path, launch: Launch) -> Self {
        Self::Process(Process::later(name, logs, launch))
    }

    /// A process at a node that does not run before [`Program::run`].
    pub fn later_within(space: &Arc<Space>, name: &str, logs: &Path, launch: Launch) -> Self {
        Self::Process(Process::later_within(space, name, logs, launch))
    }

    /// Its name, by which its log is found.
    pub fn name(&self) -> &str {
        match self {
            Self::Process(process) => process.name(),
            Self::Container(container) => container.name(),
        }
    }

    /// The process that the stand started.
    ///
    /// # Errors
    /// It is a container, whose program and arguments are its pod's.
    pub fn process(&self) -> anyhow::Result<&Process> {
        match self {
            Self::Process(process) => Ok(process),
            Self::Container(_) => bail!("{} is a container, not our process", self.name()),
        }
    }

    /// The container, if it is one.
    pub fn container(&self) -> Option<&Container> {
        match self {
            Self::Process(_) => None,
            Self::Container(container) => Some(container),
        }
    }

    /// Starts it, if it does not run. A container is waited for: its kubelet starts it.
    ///
    /// # Errors
    /// It cannot be started, or is not ready in time.
    pub async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Process(process) => process.run().await,
            Self::Container(container) => container.ready().await,
        }
    }

    /// From the next start on it is another binary, with the same arguments.
    ///
    /// # Errors
    /// As for [`Program::process`].
    pub async fn replace(&self, program: &Path) -> anyhow::Result<()> {
        self.process()?.replace(program).await;
        Ok(())
    }

    /// Its binary.
    ///
    /// # Errors
    /// As for [`Program::process`].
    pub async fn file(&self) -> anyhow::Result<PathBuf> {
        Ok(self.process()?.file().await)
    }

    /// Its arguments.
    ///
    /// # Errors
    /// As for [`Program::process`].
    pub async fn args(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.process()?.args().await)
    }

    /// From the next start on it has other arguments.
    ///
    /// # Errors
    /// As for [`Program::process`].
    pub async fn reargue(&self, change: impl FnOnce(&mut Vec<String>)) -> anyhow::Result<()> {
        self.process()?.reargue(change).await;
        Ok(())
    }

    /// Starts it again if it must run and ended by itself at least a second ago. A kubelet does
    /// that for a container.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn tend(&self) -> anyhow::Result<()> {
        match self {
            Self::Process(process) => process.tend().await,
            Self::Container(_) => Ok(()),
        }
    }

    /// How often it ended by itself and was started again.
    ///
    /// # Errors
    /// The API server does not say.
    pub async fn restarts(&self) -> anyhow::Result<u32> {
        match self {
            Self::Process(process) => Ok(process.restarts().await),
            Self::Container(container) => container.restarts().await,
        }
    }

    /// The process id as we see it, while it runs.
    ///
    /// # Errors
    /// It has ended.
    pub async fn pid(&self) -> anyhow::Result<Pid> {
        match self {
            Self::Process(process) => process.pid().await,
            Self::Container(container) => container.pid().await,
        }
    }

    /// Whether it runs.
    pub async fn is_running(&self) -> bool {
        match self {
            Self::Process(process) => process.is_running().await,
            Self::Container(container) => container.pid().await.is_ok(),
        }
    }

    /// Kills it with SIGKILL and waits for that.
    ///
    /// # Errors
    /// It had ended, or the system's.
    pub async fn kill(&self) -> anyhow::Result<()> {
        match self {
            Self::Process(process) => process.kill().await,
            Self::Container(container) => container.end(Signal::KILL).await,
        }
    }

    /// Ends it with SIGTERM and waits; kills it after a limit.
    ///
    /// # Errors
    /// It had ended, or had to be killed.
    pub async fn stop(&self) -> anyhow::Result<()> {
        match self {
            Self::Process(process) => process.stop().await,
            Self::Container(container) => container.end(Signal::TERM).await,
        }
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// As for [`Program::stop`] and [`Program::run`].
    pub async fn restart(&self) -> anyhow::Result<()> {
        self.stop().await?;
        self.run().await
    }

    /// Ends it as [`Program::stop`] does, if it runs, also if it stands still.
    ///
    /// # Errors
    /// It had to be killed, or is a container, which would be started again.
    pub async fn ended(&self) -> anyhow::Result<()> {
        self.process()?.ended().await
    }

    /// Waits for its end, which somebody else has caused. It is not started again by itself.
    ///
    /// # Errors
    /// It does not end, or is a container.
    pub async fn lost(&self) -> anyhow::Result<()> {
        self.process()?.lost().await
    }

    /// Lets it stand still, or go on.
    ///
    /// # Errors
    /// It had ended.
    pub async fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        match self {
            Self::Process(process) => process.signal(signal).await,
            Self::Container(container) => container.signal(signal).await,
        }
    }

    /// Its resident memory, in bytes.
    ///
    /// # Errors
    /// It has ended.
    pub async fn resident(&self) -> anyhow::Result<u64> {
        resident(self.pid().await?).await.with_context(|| format!("how much {} has", self.name()))
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let from = log.ceil_char_boundary(log.len().saturating_sub(TAIL));
        log.get(from..).unwrap_or_default().to_owned()
    }

    /// Its whole log.
    pub fn log(&self) -> String {
        match self {
            Self::Process(process) => process.log(),
            Self::Container(container) => container.log(),
        }
    }

    /// Waits for a condition, of a process only as long as it runs.
    ///
    /// # Errors
    /// The process ended, or it is not so in time; the error holds the end of its log.
    pub async fn until<F>(
        &self,
        what: &str,
        limit: Duration,
        ask: impl FnMut() -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        match self {
            Self::Process(process) => process.until(what, limit, ask).await,
            Self::Container(_) => within(&format!("{}: {what}", self.name()), limit, ask)
                .await
                .with_context(|| format!("its log ends:\n{}", self.log_tail())),
        }
    }
}
