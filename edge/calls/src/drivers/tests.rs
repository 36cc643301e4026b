//! Drivers in memory, with a paused clock.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message;
use proto::control::leader::LeaderEpoch;
use proto::csi;
use proto::csi::frame;
use proto::http2::body::Body;
use proto::http2::forward::{Answer, Call};
use proto::http2::serve;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

mod ends;
mod parts;

use super::*;
use crate::error::Error;
use crate::fence::Fence;
use crate::validity::{Replaced, Validity};

const NAME: &str = "d.example";
const MAIN: &str = "/d.sock";
const CONTROLLER: &str = "/c.sock";
const PROBE: &str = "/csi.v1.Identity/Probe";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const PUBLISH: &str = "/csi.v1.Node/NodePublishVolume";

/// What a driver does with a method that it was told of; all others are UNIMPLEMENTED.
#[derive(Clone, Copy)]
enum Does {
    Ok(fn() -> Vec<u8>),
    Fail(Code),
    Hang,
    /// Answers what is not gRPC.
    Babble,
    /// Says the driver's name after this time.
    Named(Duration),
    /// Answers that it does not have the method, after this time.
    Late(Duration),
}

/// A process at some sockets.
#[derive(Clone, Default)]
struct Process {
    does: Arc<Mutex<BTreeMap<&'static str, Does>>>,
    /// The socket and the path of each call.
    calls: Arc<Mutex<Vec<(String, String)>>>,
    /// The sockets where it listens, and what ends its connections there.
    listens: Arc<Mutex<BTreeMap<String, Tasks>>>,
    /// What its connections before were served in.
    left: Arc<Mutex<Vec<Tasks>>>,
}

fn info() -> Vec<u8> {
    csi::GetPluginInfoResponse { name: NAME.into(), ..Default::default() }.encode_to_vec()
}

fn ready() -> Vec<u8> {
    csi::ProbeResponse { ready: Some(true) }.encode_to_vec()
}

fn not_ready() -> Vec<u8> {
    csi::ProbeResponse { ready: Some(false) }.encode_to_vec()
}

impl Process {
    fn does(&self, path: &'static str, does: Does) {
        self.does.lock().insert(path, does);
    }

    fn starts(&self, socket: &str) {
        self.does("/csi.v1.Identity/GetPluginInfo", Does::Ok(info));
        self.listens.lock().insert(socket.into(), Tasks::default());
    }

    fn dies(&self, socket: &str) {
        if let Some(tasks) = self.listens.lock().remove(socket) {
            tasks.give_up();
        }
    }

    /// Tells the callers on its connections to leave them (GOAWAY), and takes new ones.
    fn tells_to_leave(&self, socket: &str) {
        let before = self.listens.lock().insert(socket.into(), Tasks::default());
        self.left.lock().extend(before.inspect(Tasks::stop));
    }

    fn connect(&self) -> Connect {
        let process = self.clone();
        Arc::new(move |socket| {
            let listening = process.listens.lock().get(&socket).cloned();
            let process = process.clone();
            Box::pin(async move {
                let tasks = listening.ok_or(io::ErrorKind::ConnectionRefused)?;
                let (near, far) = tokio::io::duplex(1 << 16);
                let ended = tasks.clone();
                tasks.spawn("a driver's connection", async move {
                    let answer = move |request| process.clone().answer(socket.clone(), request);
                    let served = serve::serve(far, answer, ended.stopped());
                    tokio::select! {
                        biased;
                        () = ended.given_up() => {}
                        _ = served => {}
                    }
                });
                Ok(Box::new(near) as Io)
            })
        })
    }

    async fn answer(
        self,
        socket: String,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        self.calls.lock().push((socket, path.clone()));
        let does = self.does.lock().get(path.as_str()).copied();
        Ok(match does {
            Some(Does::Ok(message)) => Answer::of(frame::frame(&message())).response(),
            Some(Does::Fail(code)) => Status::new(code, "the reason").into_http(),
            Some(Does::Hang) => std::future::pending().await,
            Some(Does::Babble) => Response::new(Body::Empty),
            Some(Does::Named(after)) => {
                sleep(after).await;
                Answer::of(frame::frame(&info())).response()
            }
            Some(Does::Late(after)) => {
                sleep(after).await;
                Status::unimplemented(path).into_http()
            }
            None => Status::unimplemented(path).into_http(),
        })
    }
}

/// A node with this driver.
struct Scene {
    process: Process,
    drivers: Arc<Drivers>,
    driver: Arc<Driver>,
    tasks: Tasks,
}

impl Scene {
    fn new(sockets: impl Into<Sockets>) -> Self {
        Self::found(sockets, FoundBy::Configuration)
    }

    fn found(sockets: impl Into<Sockets>, found_by: FoundBy) -> Self {
        let process = Process::default();
        let drivers = Drivers::new("n1".parse().unwrap(), process.connect());
        Self::with(process, drivers, sockets, found_by)
    }

    /// These drivers, with one more that is configured.
    fn of(process: Process, drivers: Drivers, sockets: impl Into<Sockets>) -> Self {
        Self::with(process, drivers, sockets, FoundBy::Configuration)
    }

    fn with(
        process: Process,
        drivers: impl Into<Arc<Drivers>>,
        sockets: impl Into<Sockets>,
        found_by: FoundBy,
    ) -> Self {
        let (drivers, tasks) = (drivers.into(), Tasks::default());
        drivers.keep(&tasks);
        let name = NAME.parse().unwrap();
        let driver = drivers.add(name, sockets, found_by).unwrap();
        Self { process, drivers, driver, tasks }
    }

    /// Waits until the driver has this health, as who tells the cloud does.
    async fn until(&self, state: HealthState) -> Health {
        let mut changes = self.drivers.changes();
        let waiting = async {
            loop {
                let health = self.driver.health();
                if health.state == state {
                    return health;
                }
                changes.changed().await.unwrap();
            }
        };
        let waited = timeout(Duration::from_secs(100), waiting).await;
        waited.unwrap_or_else(|_| panic!("it is {:?}", self.driver.health()))
    }

    async fn call(&self, path: &'static str) -> Result<Answer, Error> {
        self.call_within(path, None).await
    }

    async fn call_within(
        &self,
        path: &'static str,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        self.call_while(path, &Validity::until(deadline)).await
    }

    async fn call_while(&self, path: &'static str, validity: &Validity) -> Result<Answer, Error> {
        let path = http::uri::PathAndQuery::from_static(path);
        let body = frame::frame(&[]);
        let call = Call { headers: HeaderMap::new(), path, body };
        self.driver.connection(call.path.path()).exchange(&call, validity).await
    }

    fn called(&self, path: &str) -> Vec<String> {
        let calls = self.process.calls.lock();
        calls.iter().filter(|(_, of)| of == path).map(|(socket, _)| socket.clone()).collect()
    }
}

fn split() -> Sockets {
    Sockets { socket: MAIN.into(), controller: Some(CONTROLLER.into()) }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_nobody_serves_is_gone_and_comes_back() {
    let scene = Scene::new(PathBuf::from(MAIN));
    let begun = Instant::now();
    let gone = scene.until(HealthState::Gone).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "three attempts of one moment are one");
    assert!(begun.elapsed() < Duration::from_secs(6));
    assert!(gone.why.starts_with("/d.sock: there is nothing at its socket's path"), "{}", gone.why);
    let error = scene.call(CREATE).await.err().unwrap().to_string();
    assert!(error.starts_with("node n1: driver d.example at /d.sock "), "{error}");
    assert_eq!(scene.driver.hello().answers.len(), 0);
    scene.process.starts(MAIN);
    scene.until(HealthState::Starting).await;
    let back = Instant::now();
    scene.until(HealthState::Up).await;
    assert_eq!(back.elapsed().as_secs(), 30);
    assert_eq!(scene.driver.hello().answers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_nodes_own_calls_wait_for_a_driver_that_comes_up_late() {
    let scene = Scene::new(PathBuf::from(MAIN));
    let took = async |path, deadline| {
        let begun = Instant::now();
        let answered = scene.call_within(path, deadline).await;
        (answered.map(drop), begun.elapsed().as_secs())
    };
    assert!(matches!(took(PUBLISH, None).await, (Err(Error::DriverAway { .. }), 30)));
    let soon = Instant::now() + Duration::from_secs(20);
    assert!(matches!(took(PUBLISH, Some(soon)).await, (Err(Error::DriverAway { .. }), 10)));
    assert!(matches!(took(CREATE, None).await, (Err(Error::DriverAway { .. }), 1)));
    let late = async {
        sleep(Duration::from_secs(15)).await;
        scene.process.starts(MAIN);
    };
    let ((answered, seconds), ()) = tokio::join!(took(PUBLISH, None), late);
    assert!(answered.is_ok() && (15..18).contains(&seconds), "{seconds} s");
    scene.process.dies(MAIN);
    sleep(Duration::from_millis(10)).await;
    let (answered, seconds) = took(PUBLISH, None).await;
    assert!(matches!(answered, Err(Error::DriverAway { .. })));
    assert_eq!(seconds, 1, "it was up, so the kubelet is told at once that it is away");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_driver_is_not_sent_for_a_csi_cloud_that_was_deposed() {
    let scene = Scene::new(PathBuf::from(MAIN));
    let fence = Arc::new(Fence::open(None, "n1".parse().unwrap()));
    let of = |epoch| {
        let replaced = Replaced::default();
        Validity::default().on_link(fence.clone(), Some(LeaderEpoch(epoch)), replaced)
    };
    fence.observe(Some(LeaderEpoch(5))).unwrap();
    let successor = async {
        sleep(Duration::from_millis(100)).await;
        fence.observe(Some(LeaderEpoch(9))).unwrap();
        scene.process.starts(MAIN);
    };
    let before = of(5);
    let (answered, ()) = tokio::join!(scene.call_while(CREATE, &before), successor);
    let error = answered.err().unwrap();
    assert!(matches!(error, Error::Fenced(_)) && error.is_not_dispatched(), "{error}");
    assert_eq!(scene.called(CREATE).len(), 0);
    scene.call_while(CREATE, &of(9)).await.unwrap();
    assert_eq!(scene.called(CREATE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_driver_is_not_sent_after_its_time_to_begin() {
    let scene = Scene::new(PathBuf::from(MAIN));
    let begins_within = |seconds| {
        let begins_by = Instant::now() + Duration::from_secs(seconds);
        let deadline = Instant::now() + Duration::from_secs(1200);
        Validity::until(Some(deadline)).beginning_by(Some(begins_by))
    };
    let late = async {
        sleep(Duration::from_secs(15)).await;
        scene.process.starts(MAIN);
    };
    let validity = begins_within(15);
    let (answered, ()) = tokio::join!(scene.call_while(PUBLISH, &validity), late);
    let error = answered.err().unwrap();
    assert!(matches!(error, Error::BeginsTooLate) && error.is_not_dispatched(), "{error}");
    assert_eq!(scene.called(PUBLISH).len(), 0);
    scene.until(HealthState::Up).await;
    scene.call_while(PUBLISH, &begins_within(1)).await.unwrap();
    assert_eq!(scene.called(PUBLISH).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_up_at_once_and_stays_so_when_it_is_restarted() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.starts(MAIN);
    let mut changes = scene.drivers.changes();
    scene.until(HealthState::Up).await;
    for _ in 0..2 {
        changes.mark_unchanged();
        scene.process.dies(MAIN);
        sleep(Duration::from_millis(1500)).await;
        assert!(!changes.has_changed().unwrap(), "nobody is told");
        scene.process.starts(MAIN);
        changes.changed().await.unwrap();
        assert_eq!(scene.driver.health().state, HealthState::Up);
        sleep(Duration::from_secs(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_fails_or_hangs_when_it_is_probed_is_failing() {
    for (does, why) in [
        (Does::Fail(Code::Internal), "/d.sock: it answers Probe with Internal (\"the reason\")"),
        (Does::Hang, "/d.sock: it does not answer Probe within 30s"),
    ] {
        let scene = Scene::new(PathBuf::from(MAIN));
        scene.process.starts(MAIN);
        scene.until(HealthState::Up).await;
        scene.process.does(PROBE, does);
        assert_eq!(scene.until(HealthState::Failing).await.why, why);
        scene.process.does(PROBE, Does::Ok(ready));
        scene.until(HealthState::Starting).await;
        scene.until(HealthState::Up).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_says_that_it_is_not_ready_is_starting() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(PROBE, Does::Ok(not_ready));
    scene.process.starts(MAIN);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.driver.health().state, HealthState::Starting);
    scene.process.does(PROBE, Does::Ok(ready));
    scene.until(HealthState::Up).await;
    scene.process.does(PROBE, Does::Ok(not_ready));
    let health = scene.until(HealthState::Starting).await;
    assert!(health.why.contains("not ready"), "{}", health.why);
    assert!(scene.call(CREATE).await.is_ok(), "it is asked all the same");
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_unavailable_say_nothing_of_the_driver_and_have_it_probed() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    let probes = scene.called(PROBE).len();
    for code in [Code::Internal, Code::Unavailable] {
        scene.process.does(CREATE, Does::Fail(code));
        for _ in 0..3 {
            let answer = scene.call(CREATE).await.unwrap();
            assert_eq!(answer.failure().map(|status| status.code()), Some(code));
            sleep(Duration::from_millis(1100)).await;
        }
        assert_eq!(scene.driver.health().state, HealthState::Up, "{code:?}");
    }
    assert!(scene.called(PROBE).len() >= probes + 3, "each of them has it probed at once");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_introduces_itself_slowly_is_usable_before_it_has() {
    let scene = Scene::new(PathBuf::from(MAIN));
    const INFO: &str = "/csi.v1.Node/NodeGetInfo";
    scene.process.does(INFO, Does::Late(Duration::from_secs(8)));
    scene.process.starts(MAIN);
    scene.call(CREATE).await.unwrap();
    assert!(scene.driver.hello().answers.is_empty());
    sleep(Duration::from_secs(10)).await;
    assert!(!scene.driver.hello().answers.is_empty());
    assert_eq!(scene.called(INFO).len(), 2, "it is asked once more, and not anew meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_dies_again_and_again_is_failing_though_it_answers_probe_each_time() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    for _ in 0..3 {
        scene.process.dies(MAIN);
        scene.process.starts(MAIN);
        sleep(Duration::from_millis(1500)).await;
    }
    assert_eq!(scene.driver.health().state, HealthState::Failing);
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_six_seconds_is_no_failure() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(PROBE, Does::Late(Duration::from_secs(6)));
    scene.process.starts(MAIN);
    sleep(Duration::from_secs(10)).await;
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.driver.health().state, HealthState::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_ended_at_its_deadline_and_a_create_is_not() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    scene.process.does(PUBLISH, Does::Hang);
    let ends = Instant::now() + Duration::from_secs(3);
    let validity = Validity::until(Some(ends)).of_run(Method::NodePublishVolume);
    let answered = scene.call_while(PUBLISH, &validity).await;
    assert!(matches!(answered, Err(Error::Ended { .. })));
    assert_eq!(Instant::now(), ends);
    let validity = Validity::until(Some(ends)).of_run(Method::CreateVolume);
    assert_eq!((validity.ends(), validity.drivers_deadline()), (None, None));
    let without = Validity::until(None).of_run(Method::NodePublishVolume);
    assert!(without.ends().is_some_and(|ends| ends > Instant::now()));
    assert_eq!(scene.driver.health().state, HealthState::Up, "it is no failure of the driver");
}

#[tokio::test(start_paused = true)]
async fn a_controller_at_a_socket_of_its_own_gets_its_calls() {
    let scene = Scene::new(split());
    scene.process.does(CREATE, Does::Ok(Vec::new));
    scene.process.does(PUBLISH, Does::Ok(Vec::new));
    scene.process.starts(MAIN);
    // What one half says must not be taken for all.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.driver.hello().answers.len(), 0);
    scene.process.starts(CONTROLLER);
    scene.until(HealthState::Up).await;
    assert_eq!(scene.driver.hello().answers.len(), 1);
    scene.call(CREATE).await.unwrap();
    scene.call(PUBLISH).await.unwrap();
    assert_eq!(scene.called(CREATE), [CONTROLLER]);
    assert_eq!(scene.called(PUBLISH), [MAIN]);
    let asked = |method: &str, service: &str| scene.called(&format!("/csi.v1.{service}/{method}"));
    assert_eq!(asked("NodeGetCapabilities", "Node"), [MAIN]);
    assert_eq!(asked("ControllerGetCapabilities", "Controller"), [CONTROLLER]);
    assert_eq!(asked("GetPluginCapabilities", "Identity"), [CONTROLLER]);
    scene.process.dies(CONTROLLER);
    let health = scene.until(HealthState::Gone).await;
    assert!(health.why.starts_with(CONTROLLER), "the worse one counts: {}", health.why);
    assert!(scene.call(PUBLISH).await.is_ok());
    let error = scene.call(CREATE).await.err().unwrap().to_string();
    assert!(error.starts_with("node n1: driver d.example at /c.sock "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_added_once_and_by_one_socket() {
    let scene = Scene::new(PathBuf::from(MAIN));
    let mut changes = scene.drivers.changes();
    changes.mark_unchanged();
    let add = |name: &str, socket: &str| {
        let registrar = FoundBy::Registration("/r.sock".into());
        scene.drivers.add(name.parse().unwrap(), PathBuf::from(socket), registrar)
    };
    assert!(Arc::ptr_eq(&add(NAME, MAIN).unwrap(), &scene.driver));
    assert!(!changes.has_changed().unwrap());
    let text = add(NAME, "/other.sock").err().unwrap().to_string();
    assert!(text.contains(MAIN) && text.contains("/other.sock"), "{text}");
    scene.process.starts("/a.sock");
    add("a.example", "/a.sock").unwrap();
    assert!(changes.has_changed().unwrap(), "the cloud is told");
    let names: Vec<_> = scene.drivers.hello().into_iter().map(|d| d.name.to_string()).collect();
    assert_eq!(names, ["a.example", NAME]);
    assert!(scene.drivers.of_name("b.example").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_was_announced_moves_unless_it_is_served_where_it_is() {
    let [first, second] = ["/r.sock", "/s.sock"].map(PathBuf::from);
    let scene = Scene::found(PathBuf::from(MAIN), FoundBy::Registration(first.clone()));
    let moves = |driver: &Driver| driver.relocate("/new.sock".into(), second.clone());
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    assert!(!moves(&scene.driver), "calls may be in flight there");
    assert_eq!(scene.driver.found_by(), FoundBy::Registration(first));
    scene.process.dies(MAIN);
    scene.until(HealthState::Gone).await;
    let mut changes = scene.drivers.changes();
    assert!(moves(&scene.driver));
    assert!(changes.has_changed().unwrap(), "the cloud is told");
    assert_eq!(scene.driver.sockets(), "/new.sock".into());
    assert_eq!(scene.driver.found_by(), FoundBy::Registration(second.clone()));
    changes.mark_unchanged();
    // Whoever comes back there later gets no call.
    scene.process.starts(MAIN);
    scene.process.starts("/new.sock");
    scene.until(HealthState::Up).await;
    assert!(scene.call(CREATE).await.is_ok());
    assert_eq!(scene.called(CREATE), ["/new.sock"]);
    let configured = Scene::new(PathBuf::from(MAIN));
    configured.until(HealthState::Gone).await;
    assert!(!moves(&configured.driver));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_late_driver_finds_it_where_it_moved() {
    let found_by = FoundBy::Registration("/r.sock".into());
    let scene = Scene::found(PathBuf::from(MAIN), found_by);
    scene.process.starts("/new.sock");
    let moving = async {
        sleep(Duration::from_secs(10)).await;
        assert!(!scene.driver.was_reached());
        assert!(scene.driver.relocate("/new.sock".into(), "/r.sock".into()));
    };
    let (answered, ()) = tokio::join!(scene.call(PUBLISH), moving);
    assert!(answered.is_ok());
    assert_eq!(scene.called(PUBLISH), ["/new.sock"]);
    assert!(scene.driver.was_reached());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_being_made_when_the_driver_moved_is_not_used() {
    let found_by = FoundBy::Registration("/r.sock".into());
    let scene = Scene::found(PathBuf::from(MAIN), found_by);
    const INFO: &str = "/csi.v1.Identity/GetPluginInfo";
    scene.process.starts(MAIN);
    scene.process.does(INFO, Does::Named(Duration::from_secs(1)));
    while scene.called(INFO).is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(scene.driver.relocate("/new.sock".into(), "/r.sock".into()));
    scene.process.starts("/new.sock");
    while !scene.driver.is_here() {
        sleep(Duration::from_millis(10)).await;
    }
    scene.call(CREATE).await.unwrap();
    assert_eq!(scene.called(CREATE), ["/new.sock"]);
}
