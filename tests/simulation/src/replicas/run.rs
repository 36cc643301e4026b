//! The life of one of several clouds: it reads the store, follows, may lead, and ends when another
//! one may lead in its place. Then it is started again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cloud::relay::listen::RelayListener;
use cloud::state::store::replica::Replica;
use cloud::state::store::replicated::Joining;
use cloud::state::store::writer::Store;
use cloud::telemetry::metrics::Metrics;
use proto::control::leader::LeaderEpoch;
use tokio::time::Instant;

use super::clouds::{Life, Replicas};
use super::etcd::PREFIX;
use crate::cloud_run::CloudRun;
use crate::keys::REPLICAS;
use crate::process::Process;
use crate::shape::driver_name;

impl Replicas {
    /// Starts all clouds that do not run.
    pub(crate) fn start_all(self: &Arc<Self>) {
        (0..REPLICAS.len()).for_each(|at| self.start(at));
    }

    /// Starts a cloud, if it does not run.
    pub(super) fn start(self: &Arc<Self>, at: usize) {
        let mut state = self.lock();
        state.begun += 1;
        let number = state.begun;
        let process = Process::default();
        let Some(place) = state.lives.get_mut(at).filter(|place| place.is_none()) else { return };
        *place = Some(Life { number, process: process.clone(), run: None, ends: false });
        drop(state);
        self.trace.say(format_args!("cloud {at} starts its life {number}"));
        let replicas = self.clone();
        self.tasks.spawn_until_stop("cloud", async move {
            let end = process.end.clone();
            let life = replicas.live(at, number, process);
            let Some(lived) = end.run_until_cancelled(life).await else { return };
            match lived {
                Ok(()) => replicas.trace.say(format_args!("cloud {at} is deposed")),
                Err(error) => replicas.trace.say(format_args!("cloud {at} fails: {error:#}")),
            }
            replicas.end_and_start_again(at, number).await;
        });
    }

    async fn end_and_start_again(self: &Arc<Self>, at: usize, number: u64) {
        let is_it = |life: &Option<Life>| life.as_ref().is_some_and(|life| life.number == number);
        if !self.lock().lives.get(at).is_some_and(is_it) {
            return;
        }
        // It may take its time to see that, as a program that was paused does.
        let late = self.lock().dice.pick(&[0, 0, 1_000, 5_000]);
        tokio::time::sleep(Duration::from_millis(late)).await;
        self.stop(at).await;
        let down = self.lock().dice.time(100, 3_000);
        tokio::time::sleep(down).await;
        self.start(at);
    }

    /// Lives until it is deposed.
    async fn live(
        self: &Arc<Self>,
        at: usize,
        number: u64,
        process: Process,
    ) -> anyhow::Result<()> {
        let address = *REPLICAS.get(at).context("there is no such cloud")?;
        let joining = Joining {
            client: self.client(at, &process),
            prefix: PREFIX.to_owned(),
            url: "etcd://sim:2379/sim".to_owned(),
            replica: Replica {
                name: format!("c{at}"),
                endpoints: vec![format!("wss://{address}").parse()?],
            },
            commits: Box::new(Metrics::default().commits()),
        };
        let store = Store::join(joining.cluster(), &process.tasks).await?;
        let run = CloudRun::start(&self.shape, store.clone(), process.clone())?;
        self.net.open(&[address], run.door(&self.keys)?, process.end.clone());
        let fronts = [(driver_name()?, run.front.clone())].into();
        let relays = RelayListener::new(fronts, store.clone(), run.fronts.clone());
        if let Some(life) = self.lock().lives.get_mut(at).and_then(Option::as_mut) {
            life.run = Some((run.clone(), relays));
        }
        let leadership = store.leadership();
        leadership.leading().await;
        let epoch = leadership.epoch();
        self.trace.say(format_args!("cloud {at} leads in its life {number}: {epoch:?}"));
        self.has_led(at, number, epoch);
        self.count("leaders");
        run.front.begin();
        run.links.take_over();
        leadership.deposed().await;
        Ok(())
    }

    /// Notes that a cloud leads from now on.
    fn has_led(&self, at: usize, number: u64, epoch: Option<LeaderEpoch>) {
        let mut state = self.lock();
        if let Some(epoch) = epoch {
            state.epochs.insert(number, epoch.0);
        }
        let life = state.lives.get_mut(at).and_then(Option::as_mut);
        if let Some((run, _)) = life.and_then(|life| life.run.as_mut()) {
            run.since = Instant::now();
        }
    }
}
