use super::*;
use crate::commands::{Cli, Command};
use clap::Parser;
use proto::host::publish::{Existing, publish};
use proto::link::KeepAlive;

fn load(file: &str, flags: &[&str]) -> Result<Config, Problems> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.toml");
    publish(&path, file.as_bytes(), 0o600, Existing::Keep).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let args = ["csi-edge", "serve", "--config", &path].into_iter().chain(flags.iter().copied());
    let Command::Serve { flags, .. } = Cli::try_parse_from(args).unwrap().command else {
        panic!("not serve")
    };
    Config::load(*flags).map(|mut config| {
        config.tls.ca = config.tls.ca.strip_prefix(dir.path()).unwrap_or(&config.tls.ca).to_owned();
        config
    })
}

const WHOLE: &str = "cloud = \"wss://cloud.example:7443\"\nfronts = \"/run/x\"\n\
    [tls]\nca = \"ca.crt\"\n\
    cert = \"/c\"\nkey = \"/k\"\n[[drivers]]\nname = \"d.example\"\nsocket = \"/d.sock\"\n";

#[test]
fn a_flag_overrides_the_file() {
    let config =
        load(WHOLE, &["--cloud", "quic://other:1", "--driver", "e.example=/e.sock"]).unwrap();
    assert_eq!(
        config.cloud.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["quic://other:1"]
    );
    assert_eq!(config.tls.ca, PathBuf::from("ca.crt"), "relative to the file");
    assert_eq!(config.drivers.keys().map(DriverName::as_str).collect::<Vec<_>>(), ["e.example"]);
    let defaults = (config.common.workers, config.common.grace, config.common.keep_alive);
    assert_eq!(defaults, (1, Duration::from_secs(30), KeepAlive::default()));
}

#[test]
fn ways_are_kept_in_their_order_and_times_are_read() {
    let listed = "cloud = [\"quic://a:1\", \"wss://a:1\", \"quic://a:1\"]\n\
        grace_s = 5\n[link]\n\
        dead_after_s = 6\nreturn_after_s = 7\n[tls]";
    let (_, rest) = WHOLE.split_once("[tls]").unwrap();
    let config = load(&format!("{listed}{rest}"), &["--grace", "8"]).unwrap();
    assert_eq!(
        config.cloud.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["quic://a:1", "wss://a:1"]
    );
    assert_eq!(config.common.grace, Duration::from_secs(8), "the flag's");
    assert_eq!(config.state, None);
    assert_eq!(config.common.keep_alive.every, Duration::from_secs(2));
    assert_eq!(config.return_after, Duration::from_secs(7));
}

#[test]
fn runtimes_are_where_they_always_are_unless_it_is_said() {
    assert_eq!(load(WHOLE, &[]).unwrap().runtimes, Roots::default());
    let file = format!(
        "direct_volumes = \"/d\"\n{WHOLE}[runtimes]\nkata_go = \"/go\"\nreference = \"/r\"\n"
    );
    let expected = Roots {
        entries: "/d".into(),
        kata_go: "/go".into(),
        reference: "/r".into(),
        ..Roots::default()
    };
    assert_eq!(load(&file, &[]).unwrap().runtimes, expected);
    let flags = ["--direct-volumes", "/e", "--sandboxes", "/s"];
    let expected = Roots { entries: "/e".into(), reference: "/s".into(), ..expected };
    assert_eq!(load(&file, &flags).unwrap().runtimes, expected);
}

#[test]
fn a_check_of_the_runtimes_may_be_required() {
    assert_eq!(load(WHOLE, &[]).unwrap().checks, Checks::default());
    let file = format!("{WHOLE}[direct]\nrequire_runtime_check = true\nruntime_root = \"/host\"\n");
    let expected = Checks { root: "/host".into(), required: true };
    assert_eq!(load(&file, &[]).unwrap().checks, expected);
    let wrong = format!("{WHOLE}[direct]\nrequire_runtime_check = 1\n");
    assert!(load(&wrong, &[]).unwrap_err().to_string().contains("true or false"));
}

#[test]
fn nvme_controllers_stay_at_the_host_unless_it_is_said() {
    let nvme = |more: &str| load(&format!("{WHOLE}{more}"), &[]).unwrap().nvme;
    assert_eq!(nvme(""), Nvme::Refused);
    assert_eq!(nvme("[direct]\nvfio_nvme = false\n"), Nvme::Refused);
    assert_eq!(nvme("[direct]\nvfio_nvme = true\n"), Nvme::Taken);
}

#[test]
fn what_the_cloud_may_not_ask_is_named_by_its_method() {
    assert_eq!(load(WHOLE, &[]).unwrap().deny, BTreeSet::new());
    let denied = ["ControllerExpandVolume", "many-deletes"].map(|name| name.parse().unwrap());
    let file = format!("deny = [\"ControllerExpandVolume\", \"many-deletes\"]\n{WHOLE}");
    assert_eq!(load(&file, &[]).unwrap().deny, denied.into());
    let wrong = format!("deny = [\"NodeExpandVolume\"]\n{WHOLE}");
    let text = load(&wrong, &[]).unwrap_err().to_string();
    assert!(text.contains("deny: \"NodeExpandVolume\" is no method"), "{text}");
}

#[test]
fn directories_of_targets_are_absolute_and_do_not_climb() {
    let targets = |given: &str| {
        load(&format!("{WHOLE}[direct]\ntargets = {given}\n"), &[]).map(|config| config.targets)
    };
    let kubelets = [PathBuf::from("/var/lib/kubelet")];
    assert_eq!(load(WHOLE, &[]).unwrap().targets, kubelets);
    assert_eq!(targets("[]").unwrap(), kubelets);
    assert_eq!(targets("\"/a\"").unwrap(), [PathBuf::from("/a")]);
    assert_eq!(targets("[\"/a\", \"/b\"]").unwrap().len(), 2);
    let file = format!("{WHOLE}[direct]\ntargets = \"/a\"\n");
    let flags = ["--targets", "/b", "--targets", "/c"];
    assert_eq!(load(&file, &flags).unwrap().targets, ["/b", "/c"].map(PathBuf::from));
    for wrong in ["\"a\"", "\"/a/../b\"", "[\"\"]"] {
        let text = targets(wrong).unwrap_err().to_string();
        assert!(text.contains("is no absolute path without .."), "{text}");
    }
}

#[test]
fn what_is_kept_has_a_directory_if_one_is_named() {
    let state = |file: &str, flags: &[&str]| load(file, flags).unwrap().state;
    let file = format!("state = \"/s\"\n{WHOLE}");
    assert_eq!(state(&file, &[]), Some("/s".into()));
    assert_eq!(state(&file, &["--state", "/t"]), Some("/t".into()));
}

#[test]
fn csi_edge_expands_volumes_on_the_node_only_if_it_can_remember_them() {
    let of = |more: &str| load(&format!("{more}{WHOLE}"), &[]);
    assert_eq!(of("").unwrap().node_expansion, NodeExpansion::Kubelet);
    let kubelet = of("node_expansion = \"kubelet\"\n").unwrap();
    assert_eq!(kubelet.node_expansion, NodeExpansion::Kubelet);
    let edge = of("node_expansion = \"edge\"\nstate = \"/s\"\n").unwrap();
    assert_eq!(edge.node_expansion, NodeExpansion::Edge);
    let text = of("node_expansion = \"edge\"\n").unwrap_err().to_string();
    assert!(text.contains("needs state (--state)"), "{text}");
    let fronts = WHOLE.replace("fronts = \"/run/x\"\n", "");
    let more = "node_expansion = \"edge\"\nstate = \"/s\"\n";
    let text = load(&format!("{more}{fronts}"), &[]).unwrap_err().to_string();
    assert!(text.contains("needs fronts (--fronts)"), "{text}");
    let text = of("node_expansion = \"yes\"\n").unwrap_err().to_string();
    assert!(text.contains("neither \"kubelet\" nor \"edge\""), "{text}");
}

const IDENTITY: &str = "cloud = [\"quic://a:1\", \"wss://a:2\"]\nidentity = \"id\"\n\
    [[drivers]]\nname = \"d.example\"\nsocket = \"/d.sock\"\n";

#[test]
fn an_identity_takes_the_place_of_three_files() {
    let config = load(IDENTITY, &["--identity", "/etc/edge-csi"]).unwrap();
    assert_eq!(config.tls, Files::identity("/etc/edge-csi".as_ref()));
    assert_eq!(config.join, None);
    let text = load(WHOLE, &["--identity", "/i"]).unwrap_err().to_string();
    assert!(text.contains("leave out [tls]"), "{text}");
}

#[test]
fn joining_by_itself_needs_all_of_it() {
    let hash = format!("sha256:{}", "0".repeat(64));
    let section = format!("{IDENTITY}[join]\nca_hash = \"{hash}\"\ntoken_file = \"/t\"\n");
    let join = load(&section, &[]).unwrap().join.unwrap();
    let [cloud] = &join.clouds[..] else { panic!("tokens go over WebSocket") };
    assert_eq!(cloud.endpoint.to_string(), "wss://a:2");
    assert_eq!((cloud.ca.to_string(), join.token_file), (hash.clone(), "/t".into()));
    for (file, flags, words) in [
        (IDENTITY, ["--ca-hash", &hash], "(--token-file) is missing"),
        (IDENTITY, ["--token-file", "/t"], "(--ca-hash) is missing"),
        (WHOLE, ["--ca-hash", &hash], "needs identity"),
        (&section, ["--cloud", "quic://a:1"], "a wss:// endpoint"),
    ] {
        let text = load(file, &flags).unwrap_err().to_string();
        assert!(text.contains(words), "{text} has no {words:?}");
    }
}

#[test]
fn all_that_is_missing_is_named() {
    let text = load("clod = 1\n", &[]).unwrap_err().to_string();
    for expected in
        ["cloud (--cloud)", "(--ca)", "(--cert)", "(--key)", "no driver is named", "\"clod\""]
    {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

const DISCOVERY: &str = "[discovery]\ndirectory = \"/r\"\nallow = [\"*.example\"]\n";

#[test]
fn drivers_may_be_found_instead_of_named() {
    let (named, _) = WHOLE.split_once("[[drivers]]").unwrap();
    let config = load(&format!("{named}{DISCOVERY}"), &[]).unwrap();
    assert_eq!(config.drivers, BTreeMap::new());
    let discovery = config.discovery.unwrap();
    assert_eq!((discovery.directory, discovery.kubelet), (Some("/r".into()), None));
    assert_eq!(load(WHOLE, &[]).unwrap().discovery, None);
    for (section, words) in [
        ("[discovery]\nallow = [\"a.example\"]\n", "needs directory"),
        ("[discovery]\nkubelet = \"/k\"\n", "allow"),
        ("[discovery]\nkubelet = \"/k\"\nallow = []\n", "allow is empty"),
        ("[discovery]\nkubelet = \"/k\"\nallow = [\"a/b\"]\n", "a/b"),
        ("[discovery]\nkubelet = \"/k\"\ndirectory = \"/k\"\nallow = \"a.b\"\n", "the kubelet's"),
    ] {
        let text = load(&format!("{WHOLE}{section}"), &[]).unwrap_err().to_string();
        assert!(text.contains(words), "{text} has no {words:?}");
    }
}

#[test]
fn a_controller_may_have_a_socket_of_its_own() {
    let file = format!("{WHOLE}controller_socket = \"/c.sock\"\n");
    let config = load(&file, &[]).unwrap();
    let sockets = config.drivers.into_values().next().unwrap();
    let expected = Sockets { socket: "/d.sock".into(), controller: Some("/c.sock".into()) };
    assert_eq!(sockets, expected);
}

#[test]
fn a_driver_named_twice_is_refused() {
    let twice = format!("{WHOLE}[[drivers]]\nname = \"d.example\"\nsocket = \"/other.sock\"\n");
    assert!(load(&twice, &[]).unwrap_err().to_string().contains("d.example is named twice"));
    let half = format!("{WHOLE}[[drivers]]\nname = \"x.example\"\nsoket = \"/other.sock\"\n");
    let text = load(&half, &[]).unwrap_err().to_string();
    assert!(text.contains("a name and a socket") && text.contains("\"soket\""), "{text}");
}

#[test]
fn a_proxy_is_read_and_a_password_is_in_no_problem() {
    let proxy = |line: &str, flags: &[&str]| load(&format!("{line}\n{WHOLE}"), flags);
    assert_eq!(proxy("", &[]).unwrap().proxy, ProxySetting::Environment);
    assert_eq!(proxy("proxy = \"none\"", &[]).unwrap().proxy, ProxySetting::None);
    let listed = proxy("proxy = \"http://u:secret@p:3128\"", &[]).unwrap();
    assert!(!format!("{listed:?}").contains("secret"), "{listed:?}");
    let flagged = proxy("proxy = \"none\"", &["--proxy", "http://u:secret@p:3128"]).unwrap();
    assert_eq!(flagged.proxy, listed.proxy, "the flag's");
    for (line, flags, text) in [
        ("proxy = \"socks5://u:secret@p:1\"", &[][..], "write http://HOST:PORT"),
        ("", &["--proxy", "https://u:secret@p:1"], "write http://HOST:PORT"),
        ("proxy = [\"http://u:secret@p:1\"]", &[], "proxy is a text"),
        ("\nproxy = \"http://u:secret@p:1", &[], "line 2: it is no TOML"),
    ] {
        let problems = proxy(line, flags).unwrap_err().to_string();
        assert!(problems.contains(text) && !problems.contains("secret"), "{problems}");
    }
}
