//! The store of several clouds: their connections to its members, and what becomes of requests.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::harness::etcd::{Fate, Kind, channel};
use cloud::etcd::api::{Event, KeyValue};
use cloud::etcd::client::Client;
use cloud::state::store::replicated::RecordReader;
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clouds::{Laid, MEMBERS, Replicas};
use crate::dice::Dice;
use crate::process::Process;
use crate::wire::{Plan, wire};

/// The prefix of all keys.
pub(super) const PREFIX: &str = "/sim";

impl Replicas {
    /// Notes all changes, and lets some requests go wrong.
    pub(crate) fn prepare_etcd(self: &Arc<Self>) {
        let noting = Arc::downgrade(self);
        let mut reader = RecordReader::new(PREFIX);
        self.etcd.observe(move |event| {
            let Some(replicas) = noting.upgrade() else { return };
            replicas.check_commit(event);
            match reader.read(event) {
                Ok(Some(change)) => replicas.lock().noted.push((Instant::now(), change)),
                Ok(None) => {}
                Err(error) => replicas.trace.say(format_args!("no record: {error}")),
            }
        });
        let drawing = Arc::downgrade(self);
        let bad = self.lock().dice.pick(&[0, 2, 5, 15]);
        self.etcd.fates(move |kind| draw(&drawing, bad, kind));
    }

    /// Each commit follows the one before. Otherwise two leaders' commits interleave.
    fn check_commit(&self, event: &Event) {
        let commit = format!("{PREFIX}/commit").into_bytes();
        let Some(now) = event.kv.as_ref().filter(|kv| kv.key == commit) else { return };
        let before = event.prev_kv.as_ref().map_or(Some(0), number);
        let follows = before.zip(number(now)).is_some_and(|(before, now)| now == before + 1);
        if !follows {
            let at = self.trace.at(Instant::now());
            let text = format!("commit {:?} came after {before:?} at {at}", number(now));
            self.lock().wrong.push(text);
        }
    }

    /// A client of the store for a cloud.
    pub(super) fn client(self: &Arc<Self>, at: usize, process: &Process) -> Client {
        let to = |member| {
            let replicas = Arc::downgrade(self);
            let end = process.end.clone();
            channel(move || {
                let replicas = replicas.upgrade();
                let connected = replicas.map(|it| it.connect(at, member, end.clone()));
                async move { connected.unwrap_or_else(|| Err(refused())) }
            })
        };
        // Clouds do not all begin with the same member.
        let members = (0..MEMBERS).map(|member| to((member + at) % MEMBERS));
        Client::over(members.collect(), None)
    }

    fn connect(
        &self,
        at: usize,
        member: usize,
        end: CancellationToken,
    ) -> io::Result<DuplexStream> {
        let mut state = self.lock();
        let now = Instant::now();
        let parted = state.parted.get(at).and_then(|parted| parted.get(member));
        let is_apart = [state.apart.get(at), state.still.get(at), parted]
            .into_iter()
            .any(|until| until.is_some_and(|until| *until > now));
        if end.is_cancelled() || is_apart || self.etcd.is_cut(member) {
            return Err(refused());
        }
        let plan = Plan { delay: state.dice.time(0, 4), mishap: None };
        let (near, far, wire) = wire(&plan, [end, CancellationToken::new()], &self.tasks);
        state.wires.retain(|laid| !laid.wire.is_over());
        state.wires.push(Laid { at, member: Some(member), wire });
        drop(state);
        self.etcd.take(member, far);
        Ok(near)
    }
}

/// The number of a commit.
fn number(commit: &KeyValue) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_slice(&commit.value).ok()?;
    value.get("number")?.as_u64()
}

fn refused() -> io::Error {
    io::ErrorKind::ConnectionRefused.into()
}

/// The fate of a request: most are done and answered.
fn draw(replicas: &Weak<Replicas>, bad: u32, kind: Kind) -> Fate {
    let Some(replicas) = replicas.upgrade() else { return Fate::Done };
    let mut state = replicas.lock();
    if state.is_calm || !state.dice.chance(bad) {
        return Fate::Done;
    }
    let fate = fate(&mut state.dice);
    let counted = match kind {
        Kind::Write => "etcd: a change went wrong",
        Kind::Read => "etcd: a read went wrong",
        Kind::Lease => "etcd: a word about a lease went wrong",
    };
    *state.counted.entry(counted).or_default() += 1;
    fate
}

fn fate(dice: &mut Dice) -> Fate {
    let long = dice.time(50, 9_000);
    let short = Duration::from_millis(dice.between(1, 3_000));
    dice.pick(&[
        Fate::Late(long),
        Fate::Slow(short),
        Fate::Lost,
        Fate::Unheard,
        Fate::Failed,
        Fate::DoneAndFailed,
    ])
}
