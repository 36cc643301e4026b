//! Drivers that were found before csi-edge started, and drivers that move to another socket.

use proto::csi;
use proto::host::publish::{Existing, publish};

use super::*;
use crate::discovery::file::FILE;

const REGISTRAR: &str = "ours/d-reg.sock";

impl Scene {
    /// Starts csi-edge again, with a driver that is configured if there is one.
    fn restart(&mut self, settings: Settings, configured: Option<&Path>) {
        let drivers = Arc::new(Drivers::new("n1".parse().unwrap(), drivers::unix()));
        if let Some(socket) = configured {
            let name = DRIVER.parse().unwrap();
            drivers.add(name, socket.to_owned(), FoundBy::Configuration).unwrap();
        }
        let discovery = Discovery::new(settings, Some(self.at("fronts")), drivers.clone());
        self.discovery = discovery.with_state(Some(&self.at("state")));
        self.drivers = drivers;
    }

    /// The same, with what a node has.
    fn restart_as_before(&mut self) {
        self.restart(settings(self.dir.path()), None);
    }

    /// Connects to the drivers from now on.
    fn connect(&mut self) {
        let tasks = Tasks::default();
        self.drivers.keep(&tasks);
        self._tasks.push(tasks);
    }

    fn remove(&self, socket: &str) {
        std::fs::remove_file(self.at(socket)).unwrap();
    }

    fn socket_in_use(&self) -> PathBuf {
        self.drivers.of_name(DRIVER).unwrap().sockets().socket
    }

    /// Looks until the driver is used at this socket.
    async fn until_used_at(&mut self, socket: &Path) {
        while self.socket_in_use() != socket {
            self.discovery.look().await;
            tokio::task::yield_now().await;
        }
    }
}

/// A driver that says its name.
fn serve_driver(socket: &Path) -> Tasks {
    let tasks = Tasks::default();
    let answer = async |request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        let info = csi::GetPluginInfoResponse { name: DRIVER.into(), ..Default::default() };
        let message = match path.as_str() {
            "/csi.v1.Identity/GetPluginInfo" => info.encode_to_vec(),
            // It is ready, and can do nothing.
            _ => Vec::new(),
        };
        Ok::<_, Infallible>(Answer::of(frame::frame(&message)).response())
    };
    let _ = std::fs::remove_file(socket);
    let bound = Socket::bind(socket).unwrap();
    tasks.spawn("driver", serve::serve_socket(bound, answer, tasks.clone()));
    tasks
}

/// A node whose csi-edge has found a driver, and is stopped with its registrar.
async fn found_before() -> (Scene, Registrar, PathBuf) {
    let mut scene = Scene::new();
    scene.restart_as_before();
    let socket = scene.socket("d.sock");
    let registrar = Registrar::new(DRIVER, &socket);
    scene.serve(&registrar, REGISTRAR);
    scene.discovery.look().await;
    assert_eq!(registrar.told(), [(true, String::new())]);
    scene.remove(REGISTRAR);
    (scene, registrar, socket)
}

#[tokio::test]
async fn a_driver_is_known_at_the_next_start_without_its_registrar() {
    let (mut scene, registrar, socket) = found_before().await;
    std::fs::remove_file(&socket).unwrap();
    for _ in 0..2 {
        scene.restart_as_before();
        assert_eq!(scene.names(), [DRIVER], "before anything is looked at");
        assert_eq!(scene.socket_in_use(), socket);
        assert_eq!(scene.standing(REGISTRAR), Some(AnnouncementState::Gone));
        scene.discovery.look().await;
        assert_eq!(scene.standing(REGISTRAR), Some(AnnouncementState::Gone));
    }
    drop(scene.socket("d.sock"));
    scene.serve(&registrar, REGISTRAR);
    scene.discovery.look().await;
    assert_eq!(scene.standing(REGISTRAR), Some(AnnouncementState::Used));
    assert_eq!(scene.names(), [DRIVER]);
}

#[tokio::test]
async fn what_the_configuration_says_now_counts() {
    let (mut scene, _, socket) = found_before().await;
    let other = scene.socket("other.sock");
    scene.restart(settings(scene.dir.path()), Some(&other));
    assert_eq!(scene.socket_in_use(), other);
    assert_eq!(scene.drivers.all()[0].found_by(), FoundBy::Configuration);
    assert_eq!(scene.standing(REGISTRAR), None);
    let usual = settings(scene.dir.path());
    scene.restart(Settings { directory: None, ..usual.clone() }, None);
    assert_eq!(scene.names(), [""; 0], "nobody could announce it");
    scene.restart(usual.clone(), None);
    assert_eq!(scene.socket_in_use(), socket);
    let none = Settings { allow: vec!["else.example".parse().unwrap()], ..usual };
    scene.restart(none, None);
    assert_eq!(scene.names(), [""; 0]);
    scene.discovery.look().await;
    scene.restart_as_before();
    assert_eq!(scene.names(), [""; 0], "it is forgotten");
}

#[tokio::test]
async fn a_front_in_the_file_is_no_driver() {
    let (mut scene, _, socket) = found_before().await;
    let file = scene.at("state").join(FILE);
    let text = std::fs::read_to_string(&file).unwrap();
    let front = scene.at("fronts/d.example.sock");
    let text = text.replace(socket.to_str().unwrap(), front.to_str().unwrap());
    publish(&file, text.as_bytes(), 0o600, Existing::Replace).unwrap();
    scene.restart_as_before();
    assert_eq!(scene.names(), [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_damaged_or_another_nodes_says_nothing_and_is_written_anew() {
    let (mut scene, registrar, _) = found_before().await;
    let file = scene.at("state").join(FILE);
    let good = std::fs::read_to_string(&file).unwrap();
    let half = &good[..good.len() / 2];
    let copy = good.replace("\"n1\"", "\"n2\"");
    for text in [half, "", "[]", &copy] {
        publish(&file, text.as_bytes(), 0o600, Existing::Replace).unwrap();
        scene.restart_as_before();
        assert_eq!(scene.names(), [""; 0], "{text}");
        scene.serve(&registrar, REGISTRAR);
        scene.discovery.look().await;
        assert_eq!(scene.names(), [DRIVER]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), good);
        scene.remove(REGISTRAR);
    }
    // Something that cannot be replaced is in its place; the driver is used all the same.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    scene.restart_as_before();
    scene.serve(&registrar, REGISTRAR);
    scene.discovery.look().await;
    assert_eq!(scene.names(), [DRIVER]);
    std::fs::remove_dir(&file).unwrap();
    scene.discovery.look().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), good, "it is tried again");
}

#[tokio::test]
async fn a_driver_of_an_earlier_start_moves_with_its_registrar() {
    let (mut scene, _, _) = found_before().await;
    let moved = scene.socket("moved.sock");
    scene.restart_as_before();
    let registrar = Registrar::new(DRIVER, &moved);
    scene.serve(&registrar, REGISTRAR);
    scene.discovery.look().await;
    assert_eq!(scene.socket_in_use(), moved);
    assert_eq!(registrar.told(), [(true, String::new())]);
    scene.restart_as_before();
    assert_eq!(scene.socket_in_use(), moved, "it is kept");
}

#[tokio::test]
async fn a_driver_moves_when_it_is_gone_and_its_registrar_has_left() {
    let mut scene = Scene::new();
    let [used, other] = ["a.sock", "b.sock"].map(|name| scene.at(name));
    let driver = serve_driver(&used);
    scene.serve(&Registrar::new(DRIVER, &used), REGISTRAR);
    scene.connect();
    scene.discovery.look().await;
    let mut changes = scene.drivers.changes();
    while !scene.drivers.of_name(DRIVER).unwrap().is_here() {
        changes.changed().await.unwrap();
    }
    // A second vendor, while the first one is there.
    let _other = serve_driver(&other);
    let second = Registrar::new(DRIVER, &other);
    scene.serve(&second, "ours/e-reg.sock");
    scene.discovery.look().await;
    let why = scene.why("ours/e-reg.sock");
    let names_both = [&used, &other].iter().all(|path| why.contains(path.to_str().unwrap()));
    assert!(names_both, "{why}");
    assert_eq!(second.told(), [(false, why)]);
    // It is gone, and its registrar has not left.
    driver.give_up();
    drop(driver);
    let _ = std::fs::remove_file(&used);
    while scene.drivers.of_name(DRIVER).unwrap().health().state != HealthState::Gone {
        changes.changed().await.unwrap();
    }
    scene.serve(&second, "ours/e-reg.sock");
    scene.discovery.look().await;
    assert_eq!(scene.standing("ours/e-reg.sock"), Some(AnnouncementState::Refused));
    assert_eq!(scene.socket_in_use(), used);
    scene.remove(REGISTRAR);
    scene.serve(&second, "ours/e-reg.sock");
    scene.until_used_at(&other).await;
    assert_eq!(scene.standing("ours/e-reg.sock"), Some(AnnouncementState::Used));
    while !scene.drivers.of_name(DRIVER).unwrap().is_here() {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn the_socket_of_a_killed_registrar_does_not_hold_the_drivers_name() {
    let mut scene = Scene::new();
    let [used, other] = ["a.sock", "b.sock"].map(|name| scene.socket(name));
    // It is not removed with whom it was made for.
    scene.serve(&Registrar::new(DRIVER, &used), "ours/.made.sock");
    std::fs::rename(scene.at("ours/.made.sock"), scene.at(REGISTRAR)).unwrap();
    scene.connect();
    scene.discovery.look().await;
    let mut changes = scene.drivers.changes();
    while scene.drivers.of_name(DRIVER).unwrap().health().state != HealthState::Gone {
        changes.changed().await.unwrap();
    }
    scene._tasks.remove(0).give_up();
    while std::os::unix::net::UnixStream::connect(scene.at(REGISTRAR)).is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(scene.at(REGISTRAR).exists());
    let second = Registrar::new(DRIVER, &other);
    for _ in 0..2 {
        scene.serve(&second, "ours/e-reg.sock");
        scene.discovery.look().await;
    }
    scene.until_used_at(&other).await;
}
