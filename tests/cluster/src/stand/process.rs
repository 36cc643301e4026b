//! A process of the cluster as a handle: it can be killed, stopped and started again, also as
//! another binary, by several tests at once. Its output goes to one log. It is killed when we are,
//! however we end.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use harness::stand::without_proxies;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::space::Space;

/// How long a program may take to end when told to.
const STOP: Duration = Duration::from_secs(45);
/// How much of a log an error shows, in bytes.
const TAIL: usize = 2500;

/// A command: a program, its arguments and its additional environment.
#[derive(Clone)]
pub struct Launch {
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Further variables of its environment.
    pub env: Vec<(String, String)>,
}

impl Launch {
    /// A program with arguments.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
        }
    }

    /// The same with a variable in its environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }
}

/// A process of the cluster.
pub struct Process {
    name: String,
    log: PathBuf,
    /// The node's namespaces in which it runs; none for those of this process.
    space: Option<std::sync::Arc<Space>>,
    /// Started again when it ends by itself, as a kubelet does with containers.
    kept: bool,
    state: Mutex<ProcessState>,
}

struct ProcessState {
    launch: Launch,
    child: Option<Child>,
    /// It is meant to run.
    wanted: bool,
    /// How often it ended by itself and was started again.
    restarts: u32,
    ended: Option<Instant>,
}

impl Process {
    /// Starts a program that logs to `NAME.log` in `logs`.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(name: &str, logs: &Path, launch: Launch) -> anyhow::Result<Self> {
        Self::at(name, logs, None, false, launch).await
    }

    /// Starts a program that is started again whenever it ends by itself ([`Process::tend`]).
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn keep(name: &str, logs: &Path, launch: Launch) -> anyhow::Result<Self> {
        Self::at(name, logs, None, true, launch).await
    }

    /// Starts a program at a node.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn within(
        space: &std::sync::Arc<Space>,
        name: &str,
        logs: &Path,
        launch: Launch,
    ) -> anyhow::Result<Self> {
        Self::at(name, logs, Some(space.clone()), false, launch).await
    }

    /// A program that is kept too, and does not run before [`Process::run`].
    pub fn later(name: &str, logs: &Path, launch: Launch) -> Self {
        Self::of(name, logs, None, true, launch)
    }

    /// A process at a node that does not run before [`Process::run`].
    pub fn later_within(
        space: &std::sync::Arc<Space>,
        name: &str,
        logs: &Path,
        launch: Launch,
    ) -> Self {
        Self::of(name, logs, Some(space.clone()), false, launch)
    }

    async fn at(
        name: &str,
        logs: &Path,
        space: Option<std::sync::Arc<Space>>,
        kept: bool,
        launch: Launch,
    ) -> anyhow::Result<Self> {
        let program = Self::of(name, logs, space, kept, launch);
        program.run().await?;
        Ok(program)
    }

    fn of(
        name: &str,
        logs: &Path,
        space: Option<std::sync::Arc<Space>>,
        kept: bool,
        launch: Launch,
    ) -> Self {
        let state = Mutex::new(ProcessState {
            launch,
            child: None,
            wanted: false,
            restarts: 0,
            ended: None,
        });
        let log = logs.join(format!("{name}.log"));
        Self { name: name.to_owned(), log, space, kept, state }
    }

    /// Its name, by which its log is found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it, if it does not run.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn run(&self) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        if state.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return Ok(());
        }
        state.child = Some(self.spawn(&state.launch)?);
        state.wanted = true;
        state.ended = None;
        self.entered(&mut state).await
    }

    /// At a node the program is the child of the one that went inside, and there a moment later.
    async fn entered(&self, state: &mut ProcessState) -> anyhow::Result<()> {
        let deadline = Instant::now() + STOP;
        while self.space.is_some() && self.pid_of(state).is_err() && Instant::now() < deadline {
            let ended =
                state.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            ensure!(!ended, "{} ended at once; its log ends:\n{}", self.name, self.log_tail());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn spawn(&self, launch: &Launch) -> anyhow::Result<Child> {
        let log = std::fs::File::options().create(true).append(true).open(&self.log)?;
        let mut command = match &self.space {
            Some(space) => space.command(),
            None => Command::new("setpriv"),
        };
        command.args(["--pdeathsig", "KILL", "--"]).arg(&launch.program).args(&launch.args);
        // A client of the API server logs much while that server is away, and none of it helps
        // here.
        let filter =
            std::env::var("RUST_LOG").unwrap_or_else(|_| "info,kube_client=off".to_owned());
        command.env("RUST_LOG", filter);
        without_proxies(&mut command);
        command.envs(launch.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        command.spawn().with_context(|| format!("{} cannot be started", self.name))
    }

    /// Its binary.
    pub async fn file(&self) -> PathBuf {
        self.state.lock().await.launch.program.clone()
    }

    /// From the next start on it is another binary, with the same arguments.
    pub async fn replace(&self, program: &Path) {
        self.state.lock().await.launch.program = program.to_owned();
    }

    /// Its arguments.
    pub async fn args(&self) -> Vec<String> {
        self.state.lock().await.launch.args.clone()
    }

    /// From the next start on it has other arguments.
    pub async fn reargue(&self, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.state.lock().await.launch.args);
    }

    /// Starts it again if it must run and ended by itself at least a second ago.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn tend(&self) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        let ended = state.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        if !(self.kept && state.wanted && ended) {
            return Ok(());
        }
        let since = *state.ended.get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        state.child = Some(self.spawn(&state.launch)?);
        state.restarts += 1;
        state.ended = None;
        Ok(())
    }

    /// How often it ended by itself and was started again.
    pub async fn restarts(&self) -> u32 {
        self.state.lock().await.restarts
    }

    /// The process id as we see it, while it runs.
    ///
    /// # Errors
    /// It has ended.
    pub async fn pid(&self) -> anyhow::Result<Pid> {
        let state = self.state.lock().await;
        self.pid_of(&state)
    }

    fn pid_of(&self, state: &ProcessState) -> anyhow::Result<Pid> {
        let child = state.child.as_ref().and_then(Child::id);
        let child = child.with_context(|| format!("{} has ended", self.name))?;
        let id = match self.space {
            Some(_) => {
                super::space::only_child(child).with_context(|| format!("of {}", self.name))?
            }
            None => child,
        };
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        pid.with_context(|| format!("{} has no process id", self.name))
    }

    /// Whether it runs.
    pub async fn is_running(&self) -> bool {
        let mut state = self.state.lock().await;
        state.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it with SIGKILL and waits for that.
    ///
    /// # Errors
    /// It had ended, or the system's.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.end(Signal::KILL).await
    }

    /// Ends it with SIGTERM and waits; kills it after a limit.
    ///
    /// # Errors
    /// It had ended, or had to be killed.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.end(Signal::TERM).await
    }

    async fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        state.wanted = false;
        let pid = self.pid_of(&state)?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))?;
        self.outer_goes_on(&state)?;
        let mut child = state.child.take().with_context(|| format!("{} has ended", self.name))?;
        if tokio::time::timeout(STOP, child.wait()).await.is_ok() {
            return Ok(());
        }
        let _ = kill_process(pid, Signal::KILL);
        let _ = child.kill().await;
        bail!(
            "{} did not end within {STOP:?} and was killed; its log ends:\n{}",
            self.name,
            self.log_tail()
        )
    }

    /// Ends it as [`Process::stop`] does, if it runs, also if it stands still.
    ///
    /// # Errors
    /// It had to be killed.
    pub async fn ended(&self) -> anyhow::Result<()> {
        // A program that ends by itself just now needs no more.
        let _ = self.signal(Signal::CONT).await;
        match self.is_running().await {
            true => self.stop().await,
            false => {
                self.state.lock().await.wanted = false;
                Ok(())
            }
        }
    }

    /// Waits for its end, which somebody else has caused. It is not started again by itself.
    ///
    /// # Errors
    /// It does not end.
    pub async fn lost(&self) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        state.wanted = false;
        // It may have ended just now.
        let _ = self.outer_goes_on(&state);
        let Some(mut child) = state.child.take() else { return Ok(()) };
        let ended = tokio::time::timeout(STOP, child.wait()).await;
        ended.with_context(|| format!("{} does not end", self.name))?.map(drop)?;
        Ok(())
    }

    /// Lets it stand still, or go on.
    ///
    /// # Errors
    /// It had ended.
    pub async fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let cannot = || format!("cannot signal {}", self.name);
        kill_process(self.pid().await?, signal).with_context(cannot)?;
        let state = self.state.lock().await;
        if signal == Signal::CONT { self.outer_goes_on(&state) } else { Ok(()) }
    }

    /// The one that went inside stands still with its child, and would not see its end.
    fn outer_goes_on(&self, state: &ProcessState) -> anyhow::Result<()> {
        let outer = state.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        let Some(outer) = outer.and_then(Pid::from_raw).filter(|_| self.space.is_some()) else {
            return Ok(());
        };
        kill_process(outer, Signal::CONT).with_context(|| format!("cannot signal {}", self.name))
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(TAIL)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Its whole log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for a condition as long as it runs.
    ///
    /// # Errors
    /// The program ended, or it is not so in time; the error holds the end of its log.
    pub async fn until<F>(
        &self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut() -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let deadline = Instant::now() + limit;
        while let Err(error) = ask().await {
            let log = || format!("its log ends:\n{}", self.log_tail());
            ensure!(
                self.is_running().await,
                "{} ended before {what}: {error:#}; {}",
                self.name,
                log()
            );
            ensure!(
                Instant::now() < deadline,
                "{}: no {what} within {limit:?}: {error:#}; {}",
                self.name,
                log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// The resident memory of a process, in bytes.
///
/// # Errors
/// It has ended.
pub(super) async fn resident(pid: Pid) -> anyhow::Result<u64> {
    let pid = pid.as_raw_nonzero();
    let status = tokio::fs::read_to_string(format!("/proc/{pid}/status")).await?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.context("/proc does not say")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_is_stopped_replaced_and_started_again() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let program = Process::start("sleeper", dir.path(), Launch::new("sleep", ["1000"])).await?;
        let first = program.pid().await?;
        program.stop().await?;
        assert!(!program.is_running().await && program.pid().await.is_err());
        assert!(program.stop().await.is_err(), "it has ended");
        program.replace(Path::new("false")).await;
        program.run().await?;
        let ended = || async { anyhow::bail!("never") };
        let error = program.until("word", Duration::from_secs(10), ended).await.unwrap_err();
        assert!(error.to_string().contains("ended before word"), "{error}");
        program.replace(Path::new("sleep")).await;
        program.run().await?;
        assert_ne!(first, program.pid().await?);
        program.kill().await
    }

    #[tokio::test]
    async fn what_is_kept_is_started_again_only_if_it_ended_by_itself() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let program = Process::keep("kept", dir.path(), Launch::new("sleep", ["1000"])).await?;
        let first = program.pid().await?;
        program.signal(Signal::KILL).await?;
        harness::wait::until("another one", || async {
            program.tend().await?;
            ensure!(program.restarts().await == 1, "not yet");
            Ok(())
        })
        .await?;
        assert_ne!(first, program.pid().await?);
        program.stop().await?;
        program.tend().await?;
        assert!(!program.is_running().await, "it was stopped");
        Ok(())
    }
}
