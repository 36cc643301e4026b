//! `make sim`: runs many seeds of the simulation, and shows the failed ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::num::{NonZeroU64, NonZeroUsize};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use simulation::Outcome;
use simulation::keys::Keys;
use simulation::trace::Trace;
use tokio::time::Instant;

/// Runs the simulation: cloud, edges and drivers in one process, a network that breaks, and a model
/// of Kubernetes' sidecars. Fails if a run breaks a promise, and prints the run.
#[derive(Parser)]
struct Args {
    /// How many seeds
    #[arg(long, default_value = "1000")]
    seeds: NonZeroU64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// This seed alone; its trace is printed also if nothing is wrong
    #[arg(long)]
    seed: Option<u64>,
    /// Only those of these seeds that have several clouds
    #[arg(long)]
    replicas: bool,
    /// Seeds at the same time
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Stop after this many failed seeds; their traces are printed
    #[arg(long, default_value = "3")]
    failures: NonZeroUsize,
}

/// A seed goes round in circles if all threads together have had this much of the processors since
/// it began. Not by the real clock: beside other work, a seed of 15 s may take minutes.
const STUCK: Duration = Duration::from_secs(600);
const PROGRESS: Duration = Duration::from_secs(5);

/// The seed of each thread, and what the program had used of the processors when it began.
type Busy = Arc<Mutex<BTreeMap<u64, (Duration, Trace)>>>;

fn main() -> ExitCode {
    let args = Args::parse();
    match output().and_then(|mut out| simulate(&args, &mut out)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where the report goes. csi-edge says on stdout that it has linked; a thousand runs of it would
/// bury the report, so stdout itself leads nowhere from here on.
fn output() -> anyhow::Result<File> {
    let out = rustix::io::dup(std::io::stdout()).context("stdout cannot be kept")?;
    let nowhere =
        File::options().write(true).open("/dev/null").context("/dev/null cannot be opened")?;
    rustix::stdio::dup2_stdout(&nowhere).context("stdout cannot be led away")?;
    Ok(File::from(out))
}

fn simulate(args: &Args, out: &mut File) -> anyhow::Result<bool> {
    let began = Instant::now();
    let keys = Arc::new(Keys::make()?);
    let (first, last) = match args.seed {
        Some(seed) => (seed, seed),
        None => (args.first, args.first + args.seeds.get() - 1),
    };
    let next = AtomicU64::new(first);
    let replicas = args.replicas;
    let seeds = Arc::new(Seeds { next, last, replicas, stop: AtomicBool::new(false) });
    let busy = Busy::default();
    let (send, outcomes) = mpsc::channel();
    let mut workers = Vec::new();
    for _ in 0..args.threads.max(1) {
        let keys = keys.clone();
        let seeds = seeds.clone();
        let busy = busy.clone();
        let send = send.clone();
        workers.push(std::thread::spawn(move || work(&keys, &seeds, &busy, &send)));
    }
    drop(send);
    let mut total = Total::default();
    let mut told = began;
    loop {
        match outcomes.recv_timeout(Duration::from_secs(1)) {
            Ok(outcome) => {
                let outcome = outcome?;
                let wanted = args.seed.is_some() || total.failed.len() < args.failures.get();
                total.add(&outcome);
                if args.seed.is_some() || (wanted && !outcome.wrong.is_empty()) {
                    show(&outcome, out)?;
                }
                if total.failed.len() >= args.failures.get() {
                    seeds.stop.store(true, Ordering::Relaxed);
                }
            }
            Err(RecvTimeoutError::Timeout) => stuck(&busy, out)?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!("sim: {} seeds done, {} failed", total.seeds, total.failed.len());
        }
    }
    total.show(began.elapsed(), out)?;
    complete(workers, &busy)?;
    ensure!(total.seeds > 0, "no seed was run");
    Ok(total.failed.is_empty())
}

/// Fails if a thread has panicked. Its seed has no outcome, and is still in `busy`.
fn complete(workers: Vec<JoinHandle<()>>, busy: &Busy) -> anyhow::Result<()> {
    let panicked = workers.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
    let busy = busy.lock();
    let lost: Vec<_> = busy.keys().collect();
    ensure!(
        panicked == 0 && lost.is_empty(),
        "{panicked} threads panicked; seeds without an outcome: {lost:?}"
    );
    Ok(())
}

/// The seeds that are left.
struct Seeds {
    next: AtomicU64,
    last: u64,
    /// Those with several clouds only.
    replicas: bool,
    stop: AtomicBool,
}

impl Seeds {
    fn next(&self) -> Option<u64> {
        let mut seeds = std::iter::repeat_with(|| self.next.fetch_add(1, Ordering::Relaxed));
        let seed = seeds
            .find(|seed| *seed > self.last || !self.replicas || simulation::has_replicas(*seed))?;
        (seed <= self.last && !self.stop.load(Ordering::Relaxed)).then_some(seed)
    }
}

fn work(
    keys: &Arc<Keys>,
    seeds: &Seeds,
    busy: &Busy,
    send: &mpsc::Sender<anyhow::Result<Outcome>>,
) {
    while let Some(seed) = seeds.next() {
        let begins = |trace| {
            busy.lock().insert(seed, (used(), trace));
        };
        let outcome = simulation::run(seed, keys, begins);
        busy.lock().remove(&seed);
        if send.send(outcome).is_err() {
            return;
        }
    }
}

/// The time that all threads of this program together have had of the processors.
fn used() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.try_into().unwrap_or(0), used.tv_nsec.try_into().unwrap_or(0))
}

/// Ends the program if a seed takes too long.
fn stuck(busy: &Busy, out: &mut File) -> anyhow::Result<()> {
    let busy = busy.lock();
    for (seed, (began, trace)) in busy.iter() {
        if used() - *began > STUCK {
            let lines = trace.lines();
            let end = lines.len().saturating_sub(200);
            writeln!(out, "{}", lines.get(end..).unwrap_or_default().join("\n"))?;
            anyhow::bail!("seed {seed} does not end; run it again: make sim SEED={seed}");
        }
    }
    Ok(())
}

fn show(outcome: &Outcome, out: &mut File) -> anyhow::Result<()> {
    writeln!(out, "{}", outcome.trace.lines().join("\n"))?;
    for wrong in &outcome.wrong {
        writeln!(out, "seed {}: {wrong}", outcome.seed)?;
    }
    if !outcome.wrong.is_empty() {
        writeln!(
            out,
            "seed {} failed; run it again: make sim SEED={}\n",
            outcome.seed, outcome.seed
        )?;
    }
    Ok(())
}

/// All seeds together.
#[derive(Default)]
struct Total {
    seeds: u64,
    failed: Vec<(u64, String)>,
    endings: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    retries: u64,
    resends: u64,
    runs: u64,
    orphans: u64,
    looks: u64,
    longest: (Duration, u64),
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        if let Some(wrong) = outcome.wrong.first() {
            self.failed.push((outcome.seed, wrong.clone()));
        }
        for (ending, count) in &outcome.endings {
            *self.endings.entry(ending.clone()).or_default() += count;
        }
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.retries += outcome.retries;
        self.resends += outcome.resends;
        self.runs += outcome.runs;
        self.orphans += outcome.orphans;
        self.looks += outcome.looks;
        self.longest = self.longest.max((outcome.took, outcome.seed));
    }

    fn show(&self, took: Duration, out: &mut File) -> anyhow::Result<()> {
        let list = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            counts.map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
        };
        let faults =
            list(&mut self.faults.iter().map(|(what, count)| ((*what).to_owned(), *count)));
        let endings = list(&mut self.endings.iter().map(|(what, count)| (what.clone(), *count)));
        let (longest, seed) = self.longest;
        writeln!(out, "seeds                 {} in {:.1} s", self.seeds, took.as_secs_f64())?;
        writeln!(
            out,
            "calls of sidecars     {}, made again {}",
            self.endings.values().sum::<u64>(),
            self.retries
        )?;
        writeln!(out, "  how they ended      {endings}")?;
        writeln!(out, "sent again by cloud   {}", self.resends)?;
        writeln!(out, "calls at drivers      {}", self.runs)?;
        writeln!(out, "faults                {faults}")?;
        writeln!(
            out,
            "forgotten by kubernetes itself {}, whole lists compared {}",
            self.orphans, self.looks
        )?;
        writeln!(out, "longest virtual time  {:.0} s (seed {seed})", longest.as_secs_f64())?;
        writeln!(out, "failed                {}", self.failed.len())?;
        for (seed, wrong) in &self.failed {
            writeln!(out, "  make sim SEED={seed}   {wrong}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_fails_the_program() {
        let busy = Busy::default();
        let well = || std::thread::spawn(|| ());
        complete(vec![well(), well()], &busy).unwrap();
        let workers = vec![std::thread::spawn(|| panic!("as it should")), well()];
        let error = complete(workers, &busy).unwrap_err().to_string();
        assert!(error.starts_with("1 threads panicked"), "{error}");
    }

    #[test]
    fn nobody_asks_for_no_seed_or_for_an_end_before_the_first_failure() {
        for option in ["--seeds", "--failures"] {
            assert!(Args::try_parse_from(["sim", option, "1"]).is_ok());
            let refused = Args::try_parse_from(["sim", option, "0"]).err().unwrap();
            assert_eq!(refused.kind(), clap::error::ErrorKind::ValueValidation, "{refused}");
        }
    }
}
