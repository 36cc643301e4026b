//! Commands whose program takes the connection at its admin socket and never answers.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use harness::process::Process;
use harness::stand::Stand;
use harness::wait::{START, STOP};
use rustix::process::Signal;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// The commands that ask for what the program has in memory.
const QUESTIONS: [(&str, &[&str]); 14] = [
    ("csi-cloud", &["nodes"]),
    ("csi-cloud", &["drivers"]),
    ("csi-cloud", &["volumes"]),
    ("csi-cloud", &["leases"]),
    ("csi-cloud", &["intents"]),
    ("csi-cloud", &["calls"]),
    ("csi-cloud", &["calls", "--ended"]),
    ("csi-cloud", &["replicas"]),
    ("csi-cloud", &["token", "list"]),
    ("csi-cloud", &["ca", "rotate", "status"]),
    ("csi-edge", &["status"]),
    ("csi-edge", &["drivers"]),
    ("csi-edge", &["calls"]),
    ("csi-edge", &["calls", "--ended"]),
];

/// Commands whose work may take long.
const WORK: [(&str, &[&str]); 6] = [
    ("csi-cloud", &["node", "purge", "n1"]),
    ("csi-cloud", &["homes", "rebuild"]),
    ("csi-cloud", &["explain", "node", "n1"]),
    ("csi-cloud", &["doctor"]),
    ("csi-cloud", &["doctor", "kubeedge"]),
    ("csi-edge", &["volumes"]),
];

/// A stand with an admin socket that takes each connection and answers nothing.
struct Hung {
    stand: Stand,
    /// How many questions it has got.
    taken: watch::Receiver<usize>,
    /// Ends with the stand.
    _taking: JoinSet<()>,
}

impl Hung {
    async fn new() -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let listener = UnixListener::bind(stand.at("hung.sock"))?;
        let (count, taken) = watch::channel(0);
        let mut taking = JoinSet::new();
        taking.spawn(async move {
            let mut streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read_u8().await;
                streams.push(stream);
                count.send_replace(streams.len());
            }
        });
        Ok(Self { stand, taken, _taking: taking })
    }

    fn start(&self, (program, command): (&str, &[&str])) -> anyhow::Result<Process> {
        let mut child = self.stand.program(program)?;
        child.args(command).args(["--admin", &self.stand.at("hung.sock")]);
        Process::start(&format!("{program}-{}", command.join("-")), child, self.stand.dir())
    }
}

#[tokio::test]
async fn a_question_says_that_the_program_does_not_answer() -> anyhow::Result<()> {
    let hung = Hung::new().await?;
    try_join_all(QUESTIONS.map(async |question| {
        let mut command = hung.start(question)?;
        let status = command.ended(STOP).await?;
        let log = command.log_tail();
        ensure!(!status.success(), "{question:?} succeeded");
        ensure!(log.contains("did not answer within 4s"), "{question:?}: {log}");
        Ok(())
    }))
    .await
    .map(drop)
}

#[tokio::test]
async fn work_says_that_it_is_still_waited_for() -> anyhow::Result<()> {
    let hung = Hung::new().await?;
    try_join_all(WORK.map(async |work| {
        let mut command = hung.start(work)?;
        command.logged("has not answered yet; still waiting").await?;
        command.signal(Signal::TERM)?;
        command.ended(STOP).await.map(drop)
    }))
    .await
    .map(drop)
}

/// Whether this process ignores SIGINT, and its children with it: a shell's background job does.
fn ignores_interrupts() -> anyhow::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.context("no SigIgn")?.trim(), 16)?;
    Ok(ignored & (1 << (Signal::INT.as_raw() - 1)) != 0)
}

#[tokio::test]
async fn top_ends_at_once_on_a_signal() -> anyhow::Result<()> {
    let mut hung = Hung::new().await?;
    for signal in [Signal::TERM, Signal::INT] {
        if signal == Signal::INT && ignores_interrupts()? {
            continue;
        }
        hung.taken.mark_unchanged();
        let mut command = hung.start(QUESTIONS[0])?;
        timeout(START, hung.taken.changed()).await??;
        let began = Instant::now();
        command.signal(signal)?;
        command.ended(STOP).await?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(3), "{signal:?}: it took {took:?}");
    }
    Ok(())
}
