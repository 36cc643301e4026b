//! Registrars at real sockets, as a vendor's would be.

mod kept;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edge_calls::drivers;
use edge_calls::drivers::{Drivers, FoundBy};
use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message;
use proto::control::health::HealthState;
use proto::csi::frame;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::http2::serve;
use proto::registration::{PluginInfo, RegistrationStatus};
use tempfile::TempDir;

use super::keep::Discovery;
use super::settings::Settings;
use super::table::{AnnouncementState, Registration};

const DRIVER: &str = "d.example";

/// A registrar, and what it was told.
#[derive(Clone)]
struct Registrar {
    info: PluginInfo,
    delay: Duration,
    told: Arc<Mutex<Vec<RegistrationStatus>>>,
}

impl Registrar {
    fn new(driver: &str, endpoint: &Path) -> Self {
        let info = PluginInfo {
            r#type: "CSIPlugin".into(),
            name: driver.into(),
            endpoint: endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        };
        Self { info, delay: Duration::ZERO, told: Arc::default() }
    }

    /// Serves in place of who served there, until the tasks are stopped.
    fn serve(&self, socket: &Path) -> Tasks {
        let _ = std::fs::remove_file(socket);
        let tasks = Tasks::default();
        let registrar = self.clone();
        let answer = move |request| registrar.clone().answer(request);
        let served = serve::serve_socket(Socket::bind(socket).unwrap(), answer, tasks.clone());
        tasks.spawn("registrar", served);
        tasks
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = frame::collect(request.into_body()).await.unwrap();
        let answer = match path.as_str() {
            "/pluginregistration.Registration/GetInfo" => {
                tokio::time::sleep(self.delay).await;
                self.info.encode_to_vec()
            }
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                let message = frame::message(&body).unwrap();
                self.told.lock().push(RegistrationStatus::decode(message).unwrap());
                Vec::new()
            }
            other => panic!("{other}"),
        };
        Ok(Answer::of(frame::frame(&answer)).response())
    }

    /// What it was told: whether its driver is used, and else why not.
    fn told(&self) -> Vec<(bool, String)> {
        let told = self.told.lock();
        told.iter().map(|status| (status.plugin_registered, status.error.clone())).collect()
    }
}

fn settings(dir: &Path) -> Settings {
    Settings {
        directory: Some(dir.join("ours")),
        kubelet: Some(dir.join("kubelet")),
        allow: vec!["*.example".parse().unwrap()],
    }
}

/// A node with a directory of ours, a kubelet's, and one of fronts.
struct Scene {
    dir: TempDir,
    drivers: Arc<Drivers>,
    discovery: Discovery,
    _tasks: Vec<Tasks>,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["ours", "kubelet", "fronts"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let settings = settings(dir.path());
        let drivers = Arc::new(Drivers::new("n1".parse().unwrap(), drivers::unix()));
        let discovery = Discovery::new(settings, Some(at("fronts")), drivers.clone());
        Self { dir, drivers, discovery, _tasks: Vec::new() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A driver's socket; nobody needs to answer there.
    fn socket(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        path.canonicalize().unwrap()
    }

    fn serve(&mut self, registrar: &Registrar, socket: &str) {
        let tasks = registrar.serve(&self.at(socket));
        self._tasks.push(tasks);
    }

    fn found(&self, socket: &str) -> Option<Registration> {
        let socket = self.at(socket);
        self.discovery.found().all().into_iter().find(|found| found.socket == socket)
    }

    fn standing(&self, socket: &str) -> Option<AnnouncementState> {
        self.found(socket).map(|found| found.standing)
    }

    fn why(&self, socket: &str) -> String {
        self.found(socket).unwrap().why
    }

    fn names(&self) -> Vec<String> {
        self.drivers.all().iter().map(|driver| driver.name.to_string()).collect()
    }
}

#[tokio::test]
async fn a_driver_that_announces_itself_is_used_and_its_registrar_told() {
    let mut scene = Scene::new();
    let registrar = Registrar::new(DRIVER, &scene.socket("d.sock"));
    scene.serve(&registrar, "ours/d-reg.sock");
    scene.discovery.look().await;
    assert_eq!(scene.names(), [DRIVER]);
    assert_eq!(registrar.told(), [(true, String::new())]);
    scene.discovery.look().await;
    assert_eq!(registrar.told().len(), 1, "it is told once");
    // A registrar that is started again is asked and told again, and nothing else changes.
    scene.serve(&registrar, "ours/d-reg.sock");
    scene.discovery.look().await;
    assert_eq!(registrar.told().len(), 2);
    assert_eq!(scene.names(), [DRIVER]);
    let found_by = FoundBy::Registration(scene.at("ours/d-reg.sock"));
    assert_eq!(scene.drivers.all()[0].found_by(), found_by);
}

#[tokio::test]
async fn beside_a_kubelet_nobody_is_told() {
    let mut scene = Scene::new();
    let registrar = Registrar::new(DRIVER, &scene.socket("d.sock"));
    scene.serve(&registrar, "kubelet/d-reg.sock");
    let denied = Registrar::new("d.other", &scene.socket("other.sock"));
    scene.serve(&denied, "kubelet/other-reg.sock");
    scene.discovery.look().await;
    assert_eq!(scene.names(), [DRIVER]);
    assert_eq!(scene.standing("kubelet/other-reg.sock"), Some(AnnouncementState::NotAllowed));
    assert!(registrar.told().is_empty() && denied.told().is_empty());
}

#[tokio::test]
async fn our_own_front_is_no_driver() {
    let mut scene = Scene::new();
    // By its own path, by a link to it, and before there is a socket.
    let front = scene.socket("fronts/d.example.sock");
    std::os::unix::fs::symlink(scene.at("fronts"), scene.at("elsewhere")).unwrap();
    let linked = scene.at("elsewhere/d.example.sock");
    let missing = scene.at("fronts/e.example.sock");
    for (index, endpoint) in [front, linked, missing].iter().enumerate() {
        scene.serve(&Registrar::new(DRIVER, endpoint), &format!("kubelet/{index}.sock"));
    }
    scene.discovery.look().await;
    assert_eq!(scene.names(), [""; 0]);
    for index in 0..3 {
        assert_eq!(
            scene.standing(&format!("kubelet/{index}.sock")),
            Some(AnnouncementState::Ignored)
        );
    }
}

#[tokio::test]
async fn two_sockets_of_one_name_are_an_error_that_names_both() {
    let mut scene = Scene::new();
    let [used, other] = ["a.sock", "b.sock"].map(|name| scene.socket(name));
    let name = || DRIVER.parse().unwrap();
    scene.drivers.add(name(), used.clone(), FoundBy::Configuration).unwrap();
    let second = Registrar::new(DRIVER, &other);
    scene.serve(&second, "ours/b-reg.sock");
    // The configured socket by another path is the same one.
    std::os::unix::fs::symlink(&used, scene.at("link.sock")).unwrap();
    let same = Registrar::new(DRIVER, &scene.at("link.sock"));
    scene.serve(&same, "ours/same-reg.sock");
    scene.discovery.look().await;
    let why = scene.why("ours/b-reg.sock");
    let names_both = [&used, &other].iter().all(|path| why.contains(path.to_str().unwrap()));
    assert!(names_both, "{why}");
    assert_eq!(second.told(), [(false, why)]);
    assert_eq!(same.told(), [(true, String::new())]);
    assert_eq!(scene.drivers.all()[0].sockets().socket, used);
}

#[tokio::test]
async fn what_cannot_be_used_says_why() {
    let mut scene = Scene::new();
    let socket = scene.socket("d.sock");
    let file = scene.at("file");
    drop(std::fs::File::create(&file).unwrap());
    let old = Registrar {
        info: PluginInfo {
            supported_versions: vec!["0.3.0".into(), "2.0.0".into()],
            ..Registrar::new(DRIVER, &socket).info
        },
        ..Registrar::new(DRIVER, &socket)
    };
    let device = Registrar {
        info: PluginInfo { r#type: "DevicePlugin".into(), ..old.info.clone() },
        ..Registrar::new(DRIVER, &socket)
    };
    let slow = Registrar { delay: Duration::from_secs(5), ..Registrar::new(DRIVER, &socket) };
    for (registrar, standing, words) in [
        (old, AnnouncementState::Refused, "\"0.3.0, 2.0.0\", and csi-edge speaks 1.x"),
        (device, AnnouncementState::Ignored, "DevicePlugin"),
        (Registrar::new("d_", &socket), AnnouncementState::Refused, "d_"),
        (
            Registrar::new(DRIVER, Path::new("d.sock")),
            AnnouncementState::Refused,
            "no absolute path",
        ),
        (Registrar::new("d.other", &socket), AnnouncementState::NotAllowed, "[discovery] allow"),
        (Registrar::new(DRIVER, &scene.at("none")), AnnouncementState::Waiting, "cannot be found"),
        (Registrar::new(DRIVER, &file), AnnouncementState::Waiting, "is no socket"),
        (slow, AnnouncementState::Waiting, "does not answer within 1s"),
    ] {
        scene.serve(&registrar, "ours/x.sock");
        scene.discovery.look().await;
        assert_eq!(scene.standing("ours/x.sock"), Some(standing), "{words}");
        let why = scene.why("ours/x.sock");
        assert!(why.contains(words), "{why} has no {words:?}");
        let told = registrar.told();
        let expected =
            if standing == AnnouncementState::Waiting { vec![] } else { vec![(false, why)] };
        assert_eq!(told, expected);
    }
    assert_eq!(scene.names(), [""; 0]);
}

#[tokio::test]
async fn a_registrar_that_is_not_ready_is_asked_again() {
    let mut scene = Scene::new();
    let endpoint = scene.at("d.sock");
    let registrar = Registrar::new(DRIVER, &endpoint);
    scene.serve(&registrar, "ours/d-reg.sock");
    scene.discovery.look().await;
    assert_eq!(scene.standing("ours/d-reg.sock"), Some(AnnouncementState::Waiting));
    scene.socket("d.sock");
    while scene.names().is_empty() {
        scene.discovery.look().await;
        tokio::task::yield_now().await;
    }
    assert_eq!(registrar.told(), [(true, String::new())]);
}

#[tokio::test]
async fn who_goes_is_not_forgotten_while_it_may_have_volumes() {
    let mut scene = Scene::new();
    let registrar = Registrar::new(DRIVER, &scene.socket("d.sock"));
    scene.serve(&registrar, "ours/d-reg.sock");
    let denied = Registrar::new("d.other", &scene.socket("other.sock"));
    scene.serve(&denied, "ours/other-reg.sock");
    scene.discovery.look().await;
    for socket in ["ours/d-reg.sock", "ours/other-reg.sock"] {
        std::fs::remove_file(scene.at(socket)).unwrap();
    }
    scene.discovery.look().await;
    assert_eq!(scene.standing("ours/d-reg.sock"), Some(AnnouncementState::Gone));
    assert_eq!(scene.standing("ours/other-reg.sock"), None);
    assert_eq!(scene.names(), [DRIVER]);
    scene.serve(&registrar, "ours/d-reg.sock");
    scene.discovery.look().await;
    assert_eq!(scene.standing("ours/d-reg.sock"), Some(AnnouncementState::Used));
}

#[tokio::test]
async fn new_registrars_are_noticed_by_themselves() {
    let mut scene = Scene::new();
    std::fs::create_dir(scene.at("ours/below")).unwrap();
    drop(std::fs::File::create(scene.at("ours/file")).unwrap());
    let registrar = Registrar::new(DRIVER, &scene.socket("d.sock"));
    let hidden = Registrar::new("h.example", &scene.socket("h.sock"));
    let deep = Registrar::new("deep.example", &scene.socket("deep.sock"));
    scene.serve(&hidden, "ours/.h-reg.sock");
    scene.serve(&deep, "ours/below/deep-reg.sock");
    let Scene { discovery, drivers, dir, _tasks: _keep } = scene;
    let tasks = Tasks::default();
    tasks.spawn_until_stop("discovery", discovery.keep());
    let mut changes = drivers.changes();
    let _registrar = registrar.serve(&dir.path().join("ours/d-reg.sock"));
    while drivers.all().len() < 2 {
        changes.changed().await.unwrap();
    }
    let names: Vec<_> = drivers.all().iter().map(|driver| driver.name.to_string()).collect();
    assert_eq!(names, [DRIVER, "deep.example"]);
    tasks.stop();
}
