//! A node whose edge lies. Its certificate is right; all that it says is drawn by the seed.
//!
//! It claims what honest nodes have, refuses, hangs, and answers with garbage. It knows the ids
//! that Kubernetes shows, and cannot guess others. Nothing of an honest node may suffer by it.

mod answers;
mod heard;
mod hello;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cloud::state::older_store;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::{Mutex, MutexGuard};
use proto::control::hello::{Hello, Message, PROTOCOL, Run, True};
use proto::control::lease::{self, LeaseAction, Outcome};
use proto::control::machine::MachineId;
use proto::control::metadata::Position;
use proto::control::watermark::Watermark;
use proto::csi::{Method, frame};
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::serve;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, LinkError, dial};
use tokio::time::sleep;

use self::answers::Ids;
use self::heard::HeardCall;
use super::dice::Dice;
use super::keys::{ENDPOINTS, LIAR, LIAR_AT, NODES};
use super::life::BEFORE;
use super::model::World;
use super::operator;
use super::process::Process;
use super::record::NUMBER;
use super::shape::driver_name;

const SECOND: Duration = Duration::from_secs(1);

/// How often it lies, of a hundred times. A node that lies in all it says is soon set apart.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// In hellos.
    hellos: u32,
    /// When csi-cloud asks all nodes.
    questions: u32,
    /// When callers want something of it.
    calls: u32,
}

/// The epoch and the MAC of a lease.
type Granted = (u64, Option<String>);

/// A lying edge.
#[derive(Clone)]
pub(super) struct Liar {
    world: World,
    process: Process,
    manner: Manner,
    dice: Arc<Mutex<Dice>>,
    /// The last lease that the cloud granted it.
    granted: Arc<Mutex<Option<Granted>>>,
}

impl Liar {
    /// Begins to lie, at once or when the cloud knows all honest nodes.
    pub(super) fn begin(world: &World) -> Self {
        let mut dice = Dice::new(world.seed, "liar");
        let mut often = || dice.pick(&[0, 10, 50, 100]);
        let manner = Manner { hellos: often(), questions: often(), calls: often() };
        world.trace.say(format_args!("the liar: {manner:?}"));
        let liar = Self {
            world: world.clone(),
            process: Process::default(),
            manner,
            dice: Arc::new(Mutex::new(dice)),
            granted: Arc::default(),
        };
        let running = liar.clone();
        liar.process.tasks.spawn_until_stop("liar", async move { running.live().await });
        let operator = liar.clone();
        liar.process.tasks.spawn_until_stop("operator", async move { operator.correct().await });
        liar
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock()
    }

    /// Whether the cloud knows all honest nodes.
    fn are_all_known(&self) -> bool {
        self.world.fleet.known() == self.world.fleet.drivers.len()
    }

    /// The first nodes of a driver pin its profile, and the liar may be the first. So an operator
    /// looks at it once, when all nodes are there.
    async fn correct(self) {
        let fleet = &self.world.fleet;
        while !self.are_all_known() || !operator::set_profile(fleet, NODES[0]).await {
            sleep(SECOND).await;
        }
        self.world.trace.say("the operator takes the profile from n1");
    }

    /// An operator removes the node, whose edge goes on lying; then its machine is switched off.
    pub(super) async fn end(&self) {
        self.world.liar.remove();
        while !operator::remove(&self.world.fleet, LIAR).await {
            sleep(SECOND).await;
        }
        self.world.trace.say("the liar is removed");
        let rest = self.dice().time(0, 60_000);
        sleep(rest).await;
        self.process.kill();
    }

    async fn live(self) {
        let fleet = &self.world.fleet;
        let is_early = fleet.shape().liar.is_some_and(|liar| liar.is_early);
        while !is_early && !self.are_all_known() {
            sleep(SECOND).await;
        }
        let network = fleet.net.way(LIAR_AT, self.process.end.clone()).into();
        let Ok(credentials) = fleet.credentials(LIAR, Role::Node) else { return };
        loop {
            let longest = self.dice().pick(&[200, 2_000, 20_000]);
            let rest = self.dice().time(100, longest);
            sleep(rest).await;
            let name = self.dice().pick(&ENDPOINTS);
            let Ok(endpoint) = format!("wss://{name}").parse() else { return };
            let dialed = dial(&endpoint, &credentials, KeepAlive::default(), &network).await;
            if let Ok(mut link) = dialed {
                let ended = self.talk(&mut link).await;
                let why = ended.err().map(|error| error.to_string()).unwrap_or_default();
                self.world.trace.say(format_args!("the liar's link ended: {why}"));
            }
        }
    }

    /// Talks until the link ends, or it leaves.
    async fn talk(&self, link: &mut Link) -> Result<(), LinkError> {
        let hello = self.hello()?;
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
                    Event::Message(Message::LeaseReply(reply)) => self.note_lease(reply.outcome),
                    Event::Message(_) => {}
                },
                () = sleep(rest) => {
                    let Some(message) = self.message() else { return Ok(()) };
                    link.send(&message).await?;
                }
            }
        }
    }

    fn hello(&self) -> Result<Hello, LinkError> {
        let nodes = self.world.fleet.drivers.len();
        let mut dice = self.dice();
        // The name is for the log: the certificate has the node.
        let victim = NODES.get(dice.below(nodes)).copied().unwrap_or(LIAR);
        let node = if dice.chance(20) { victim } else { LIAR };
        Ok(Hello {
            protocol: PROTOCOL,
            node: node.parse()?,
            version: "0.1.0".into(),
            drivers: hello::drivers(&mut dice, nodes, self.manner.hellos),
            leases: True,
            not_taken: True,
            expands: false,
            metadata: dice.chance(50).then(|| position(&mut dice)),
            takes_node: dice.chance(50),
            begins_within: dice.chance(50),
            reopens_calls: true,
            certificate_on_disk: false,
            trust: None,
            awaits_leader: false,
            run: Run::begin(),
            machine: self.machine(&mut dice),
            takes_watermark: true,
            answers_challenge: true,
            watermark: self.watermark(&mut dice).map(Box::new),
        })
    }

    /// The machine of its hello. In some runs it tells none, as a board without an id does.
    fn machine(&self, dice: &mut Dice) -> Option<MachineId> {
        let other = dice.below(1_000).to_string();
        let own = if dice.chance(10) { dice.pick(&[&*other, NODES[0]]) } else { LIAR };
        self.world.seed.is_multiple_of(2).then(|| MachineId::new(own))
    }

    /// The watermark of its hello: another node's, or one of its own making.
    fn watermark(&self, dice: &mut Dice) -> Option<Watermark> {
        let fleet = &self.world.fleet;
        let most = dice.pick(&[3, 100, u64::MAX]);
        let number = dice.between(0, most);
        let other = NODES.get(dice.below(fleet.drivers.len()))?.parse().ok()?;
        let of_other = fleet.store().and_then(|store| older_store::watermark(&store, &other));
        let made: Watermark = "00000000-0000-0000-0000-000000000001.9.bGll".parse().ok()?;
        let start = of_other.as_ref().map_or(made.start, |of_other| of_other.start);
        let made = Watermark { start, number, ..made };
        if dice.chance(50) { of_other } else { Some(made) }
    }

    /// The next control message; none if it leaves.
    fn message(&self) -> Option<Message> {
        let mut dice = self.dice();
        let nodes = self.world.fleet.drivers.len();
        match dice.below(9) {
            0..3 => {
                let drivers = hello::drivers(&mut dice, nodes, self.manner.hellos);
                Some(Message::Drivers(drivers))
            }
            3 => Some(Message::Leaving),
            4..7 => self.lease(&mut dice),
            7 => Some(Message::MetadataTaken(position(&mut dice))),
            _ => None,
        }
    }

    /// A request for the lease of any volume.
    fn lease(&self, dice: &mut Dice) -> Option<Message> {
        let Ids { volumes, own, .. } = self.ids();
        let ids = if dice.chance(70) { volumes } else { own };
        let volume = answers::id(dice, &ids)?;
        let granted = self.granted.lock().clone();
        let (epoch, mac) = match granted.filter(|_| dice.chance(40)) {
            Some((epoch, mac)) => (epoch + dice.between(0, 2), mac),
            None => {
                let most = dice.pick(&[3, 100, u64::MAX]);
                (dice.between(0, most), dice.chance(50).then(|| "bGll".to_owned()))
            }
        };
        let step = match dice.below(5) {
            0 => LeaseAction::Release,
            1 | 2 => LeaseAction::Ask { pod: "p".into() },
            _ => LeaseAction::Hold { epoch, pod: "p".into(), mac },
        };
        let driver = driver_name().ok()?;
        Some(Message::Lease(lease::Request { id: 1, driver, volume, step }))
    }

    fn note_lease(&self, outcome: Outcome) {
        if let Outcome::Held { epoch, mac } = outcome {
            *self.granted.lock() = Some((epoch, mac));
        }
    }

    /// The ids that it knows: Kubernetes shows them.
    fn ids(&self) -> Ids {
        // While the cloud knows one node only, it takes what has no home to be there. Whoever has
        // volumes from before links all nodes first (docs/security/README.md, "What nothing
        // stops").
        let are_all_known = self.are_all_known();
        let fleet = &self.world.fleet;
        let has_home = |id: &str| {
            let id = proto::csi::Id::Volume(id.to_owned());
            let has = |store: cloud::state::store::writer::Store| {
                store.read(|state| Some(state.driver(&driver_name().ok()?)?.home(&id).is_some()))
            };
            fleet.store().and_then(has).unwrap_or(false)
        };
        self.world.api.read(|objects| {
            let mut ids = Ids { own: self.world.liar.ids(), ..Ids::default() };
            let shown = |name: &str| are_all_known || !name.starts_with(BEFORE);
            for claim in objects.claims.iter().filter(|claim| shown(&claim.name)) {
                let Some(volume) = &claim.volume else { continue };
                if volume.gone { &mut ids.gone } else { &mut ids.volumes }.push(volume.id.clone());
                if !volume.gone && has_home(&volume.id) {
                    ids.homed.push(volume.id.clone());
                }
            }
            for snapshot in &objects.snapshots {
                let of = if snapshot.gone { &mut ids.gone_snapshots } else { &mut ids.snapshots };
                of.extend(snapshot.id.clone());
            }
            ids
        })
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let Some(method) = Method::of_path(request.uri().path()) else {
            return Ok(answers::refusal(tonic::Code::Unimplemented));
        };
        let number = request.headers().get(NUMBER);
        let number = number.and_then(|number| number.to_str().ok()?.parse().ok());
        let Ok(body) = request.into_body().collect().await.map(|body| body.to_bytes()) else {
            return Ok(answers::refusal(tonic::Code::Internal));
        };
        let message = frame::message(&body).unwrap_or_else(|_| Bytes::new());
        let call = HeardCall { method, message, number };
        self.hear(&call);
        let ids = self.ids();
        let (wait, answer) = {
            let mut dice = self.dice();
            let Manner { questions, calls, .. } = self.manner;
            let often = if answers::is_question(call.method) { questions } else { calls };
            if dice.chance(often) {
                let longest = dice.pick(&[0, 0, 0, 2_000, 200_000]);
                (dice.time(0, longest), answers::lie(&mut dice, &call, &ids, &self.world.liar))
            } else {
                let answer = answers::decent(&mut dice, &call, &ids, &self.world.liar);
                (Duration::ZERO, answer)
            }
        };
        sleep(wait).await;
        Ok(answer)
    }

    /// Checks that a call may come to it.
    fn hear(&self, call: &HeardCall) {
        match call.judge(&self.world) {
            Ok(true) => call.number.into_iter().for_each(|number| self.world.liar.add_own(number)),
            Ok(false) => {}
            Err(why) => {
                let name = call.method.name();
                let number =
                    call.number.map_or_else(|| "a".to_owned(), |number| format!("#{number}"));
                self.world.found.add([format!("{number} {name} came to the liar: {why}")]);
            }
        }
    }
}

/// How far it has metadata, or says so.
fn position(dice: &mut Dice) -> Position {
    let any = [0, 1, u64::MAX];
    Position { epoch: dice.pick(&any), revision: dice.pick(&any) }
}
