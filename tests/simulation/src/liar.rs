//! A node whose edge lies. Its certificate is right; all that it says is drawn by the seed.
//!
//! It claims what honest nodes have, refuses, hangs, and answers with garbage. It knows the ids
//! that Kubernetes shows, and cannot guess others. Nothing of an honest node may suffer by it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Request, Response};
use hyper::body::Incoming;
use proto::control::hello::{Hello, Message, PROTOCOL};
use proto::control::lease;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::serve;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, LinkError, dial};
use tokio::time::{Instant, sleep};

use super::dice::Dice;
use super::keys::{LIAR, NODES, WAYS};
use super::lies;
use super::model::World;
use super::process::Process;

/// Calls that reach a node only if it has the thing, or shall make it.
const OF_ONE_NODE: [&str; 4] =
    ["CreateVolume", "ControllerPublishVolume", "ControllerExpandVolume", "CreateSnapshot"];

/// A lying edge.
#[derive(Clone)]
pub(super) struct Liar {
    world: World,
    process: Process,
    dice: Arc<Mutex<Dice>>,
    /// The calls that it got, and when.
    heard: Arc<Mutex<Vec<(Instant, Method)>>>,
}

impl Liar {
    /// Begins to lie as soon as the cloud knows all honest nodes. Before that, what a driver can is
    /// anybody's word.
    pub(super) fn begin(world: &World) -> Self {
        let liar = Self {
            world: world.clone(),
            process: Process::default(),
            dice: Arc::new(Mutex::new(Dice::new(world.seed, "liar"))),
            heard: Arc::default(),
        };
        let running = liar.clone();
        liar.process.tasks.spawn_until_stop("liar", async move { running.live().await });
        liar
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator removes the node, whose edge goes on lying; then its machine is switched off.
    pub(super) async fn end(&self) {
        while !self.world.fleet.remove(LIAR).await {
            sleep(std::time::Duration::from_secs(1)).await;
        }
        self.world.trace.say("the liar is removed");
        let rest = self.dice().time(0, 60_000);
        sleep(rest).await;
        self.process.kill();
    }

    /// The calls that should not have come to it.
    pub(super) fn wrong(&self) -> Vec<String> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = heard.iter().filter(|(_, method)| OF_ONE_NODE.contains(&method.name()));
        let text = |(at, method): &(Instant, Method)| {
            format!("{} came to the liar at {}", method.name(), self.world.trace.at(*at))
        };
        wrong.map(text).collect()
    }

    async fn live(self) {
        let fleet = &self.world.fleet;
        while fleet.known() < fleet.drivers.len() {
            sleep(std::time::Duration::from_secs(1)).await;
        }
        let connect = fleet.net.way(NODES.len(), self.process.end.clone());
        let Ok(credentials) = fleet.credentials(LIAR, Role::Node) else { return };
        loop {
            let rest = self.dice().time(100, 20_000);
            sleep(rest).await;
            let way = self.dice().pick(&WAYS);
            let Ok(endpoint) = format!("wss://{way}").parse() else { return };
            let dialed = dial(&endpoint, &credentials, KeepAlive::default(), &connect).await;
            if let Ok(mut link) = dialed {
                let ended = self.talk(&mut link).await;
                let why = ended.err().map(|error| error.to_string()).unwrap_or_default();
                self.world.trace.say(format_args!("the liar's link ended: {why}"));
            }
        }
    }

    /// Talks until the link ends, or it leaves.
    async fn talk(&self, link: &mut Link) -> Result<(), LinkError> {
        let drivers = lies::drivers(&mut self.dice(), self.world.fleet.drivers.len());
        let hello = Hello {
            protocol: PROTOCOL,
            node: LIAR.parse()?,
            version: "0.1.0".into(),
            drivers,
            leases: true,
            not_taken: true,
            trust: None,
        };
        link.send(&Message::Hello(hello)).await?;
        let streams = Tasks::default();
        loop {
            let rest = self.dice().time(500, 30_000);
            tokio::select! {
                biased;
                event = link.next() => match event {
                    Event::Opened(_, io) => {
                        let liar = self.clone();
                        let service = move |request| liar.clone().answer(request);
                        streams.spawn_until_stop("stream", async move {
                            drop(serve::serve(io, service, std::future::pending()).await);
                        });
                    }
                    Event::Closed(error) => return Err(error),
                    Event::Message(_) => {}
                },
                () = sleep(rest) => {
                    let Some(message) = self.message() else { return Ok(()) };
                    link.send(&message).await?;
                }
            }
        }
    }

    /// The next control message; none if it leaves.
    fn message(&self) -> Option<Message> {
        let mut dice = self.dice();
        let nodes = self.world.fleet.drivers.len();
        match dice.below(6) {
            0..3 => Some(Message::Drivers(lies::drivers(&mut dice, nodes))),
            3 => Some(Message::Leaving),
            4 => {
                let volume = lies::id(&mut dice, &self.volumes())?;
                let epoch = dice.between(0, u64::MAX);
                let mac = dice.chance(50).then(|| "bGll".to_owned());
                let step = lease::Step::Hold { epoch, pod: "p".into(), mac };
                let driver = super::fleet::driver_name().ok()?;
                Some(Message::Lease(lease::Request { id: 1, driver, volume, step }))
            }
            _ => None,
        }
    }

    /// The ids of the honest nodes' volumes.
    fn volumes(&self) -> Vec<String> {
        self.world.api.read(|objects| {
            let volumes = objects.claims.iter().filter_map(|claim| claim.volume.as_ref());
            volumes.filter(|volume| !volume.gone).map(|volume| volume.id.clone()).collect()
        })
    }

    /// The ids of the honest nodes' snapshots.
    fn snapshots(&self) -> Vec<String> {
        self.world.api.read(|objects| {
            let snapshots = objects.snapshots.iter().filter(|snapshot| !snapshot.gone);
            snapshots.filter_map(|snapshot| snapshot.id.clone()).collect()
        })
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let Some(method) = Method::of_path(request.uri().path()) else {
            return Ok(lies::refusal(tonic::Code::Unimplemented));
        };
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), method));
        let volumes = self.volumes();
        let snapshots = self.snapshots();
        let (wait, answer) = {
            let mut dice = self.dice();
            let longest = dice.pick(&[0, 0, 2_000, 200_000]);
            (dice.time(0, longest), lies::answer(&mut dice, method, &volumes, &snapshots))
        };
        sleep(wait).await;
        Ok(answer)
    }
}
