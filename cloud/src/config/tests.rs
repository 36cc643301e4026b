//! Configurations as operators write them, and the mistakes that are reported.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use proto::admin::http1::SOCKET_NAME;
use proto::config::Problems;
use proto::names::{DriverName, NodeName};

use crate::cli::{Cli, Command};
use crate::config::Config;
use crate::kubernetes::csidriver::CsiDriverSettings;
use crate::kubernetes::settings::{ApiAt, Kubernetes, Publish};
use crate::pki::issuer::DAY;
use crate::pki::issuers::CaSettings;
use crate::state::policy::{Placement, Policy, Scope};
use crate::state::quotas::Quotas;
use crate::state::store::url::StoreAt;

fn load(file: &str, flags: &[&str]) -> Result<Config, Problems> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cloud.toml");
    proto::host::publish::publish(
        &path,
        file.as_bytes(),
        0o600,
        proto::host::publish::Existing::Keep,
    )
    .unwrap();
    let path = path.to_str().unwrap().to_owned();
    let args = ["csi-cloud", "serve", "--config", &path].into_iter().chain(flags.iter().copied());
    match Cli::try_parse_from(args).unwrap().command {
        Command::Serve { flags, .. } => Config::load(*flags),
        Command::Other(_) => unreachable!(),
    }
}

const WHOLE: &str = "listen = [\"wss://0.0.0.0:7443\"]\n\
    drivers = [\"b.example\", \"a.example\", \"b.example\"]\n\
    fronts = \"/run/x\"\ndefault_node = \"n1\"\nworkers = 3\nstore = \"file:/s\"\n\
    [tls]\nca = \"/ca\"\ncert = \"/c\"\nkey = \"/k\"\n";

fn with(sections: &str) -> String {
    format!("{WHOLE}{sections}")
}

fn policy(file: &str, driver: &str) -> Policy {
    load(file, &[]).unwrap().policies.remove(&driver.parse().unwrap()).unwrap()
}

fn object(file: &str, driver: &str) -> CsiDriverSettings {
    load(file, &[]).unwrap().csidrivers.remove(&driver.parse().unwrap()).unwrap()
}

fn pinned(node: &str) -> Placement {
    Placement::Pinned(node.parse().unwrap())
}

#[test]
fn a_ca_has_a_certificate_and_a_key_and_its_lives_have_defaults() {
    assert_eq!(load(WHOLE, &[]).unwrap().ca, None);
    let ca = load(&with("[ca]\ncert = \"/i\"\nkey = \"/j\"\nnode_days = 7\n"), &[]).unwrap().ca;
    let of = |node_life| CaSettings {
        cert: "/i".into(),
        key: "/j".into(),
        node_life,
        cloud_days: 90,
        renew_after_end: DAY * 90,
    };
    let expected = of(DAY * 7);
    assert_eq!(ca, Some(expected));
    let lives = |more: &str| {
        let section = format!("[ca]\ncert = \"/i\"\nkey = \"/j\"\n{more}");
        load(&with(&section), &[])
    };
    assert_eq!(lives("").unwrap().ca, Some(of(DAY * 30)));
    let life = lives("node_life = \"2m\"\n").unwrap().ca;
    assert_eq!(life, Some(of(Duration::from_secs(120))));
    let shorter = lives("renew_after_end = \"12h\"\n").unwrap().ca.unwrap();
    assert_eq!(shorter.renew_after_end, DAY / 2);
    for (more, why) in [
        ("renew_after_end = \"91d\"\n", "for 90d at most"),
        ("node_life = \"119s\"\n", "for 2m to 3650d"),
        ("node_life = \"3651d\"\n", "for 2m to 3650d"),
        ("node_life = \"7\"\n", "is no duration"),
        ("node_life = \"7d\"\nnode_days = 7\n", "both node_days and node_life"),
    ] {
        let error = lives(more).unwrap_err().to_string();
        assert!(error.contains(why), "{more}: {error}");
    }
    let text = load(&with("[ca]\ncert = \"/i\"\nnode_days = 0\n"), &[]).unwrap_err().to_string();
    assert!(text.contains("[ca] key is missing") && text.contains("from 1 to 3650"), "{text}");
    let file = WHOLE.replace("[tls]", "advertise = \"wss://cloud.example:7443\"\n[tls]");
    let advertise = load(&file, &[]).unwrap().advertise.unwrap();
    assert_eq!(advertise.to_string(), "wss://cloud.example:7443");
}

#[test]
fn a_ca_is_made_for_named_hosts_in_one_directory_and_beside_a_store_in_a_file() {
    let of = |ca: &str, hosts: &str, store: &[&str]| {
        load(&with(&format!("[ca]\ncert = \"{ca}\"\nkey = \"/j\"\nhosts = {hosts}\n")), store)
    };
    let config = of("/ca", "[\"cloud.example\", \"10.0.0.1\"]", &[]).unwrap();
    assert!(config.first_start.is_some());
    assert!(of("/ca", "\"cloud.example\"", &["--store", "memory:"]).is_ok());
    let etcd = ["--store", "etcd://e:1/p"];
    for (ca, hosts, store, why) in [
        ("/i", "[\"h\"]", &[][..], "in one directory"),
        ("/ca", "[]", &[], "hosts is empty"),
        ("/ca", "[\"a b\"]", &[], "\"a b\" is neither a DNS name nor an IP address"),
        ("/ca", "[\"h\"]", &etcd, "share one CA"),
    ] {
        let problems = of(ca, hosts, store).unwrap_err().0;
        assert!(problems.len() == 1 && problems[0].contains(why), "{why}: {problems:?}");
    }
    let without = load(&with("[ca]\ncert = \"/i\"\nkey = \"/j\"\n"), &[]).unwrap();
    assert_eq!(without.first_start, None);
}

#[test]
fn a_flag_overrides_the_file() {
    let flags =
        ["--listen", "quic://[::1]:1", "--workers", "4", "--store", "memory:", "--http", "[::1]:0"];
    let config = load(WHOLE, &flags).unwrap();
    assert_eq!(
        config.listen.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["quic://[::1]:1"]
    );
    assert_eq!(
        config.drivers.iter().map(DriverName::as_str).collect::<Vec<_>>(),
        ["a.example", "b.example"]
    );
    assert_eq!((config.common.workers, config.default_node.unwrap().as_str()), (4, "n1"));
    assert_eq!((config.store, config.http), (StoreAt::Memory, Some("[::1]:0".parse().unwrap())));
}

#[test]
fn all_that_is_wrong_is_named_at_once() {
    let file = "listen = [\"ws://h:1\"]\ndefault_node = \"N 1\"\nworkers = \"two\"\nworker = 1\n\
        http = \"here\"\n\
        node_fronts = 1\nnew_leases = 1\n\
        [tls]\ncrt = \"\"\n[limits]\nconnections_per_address = 0\n";
    let text = load(file, &[]).unwrap_err().to_string();
    for expected in [
        "link without TLS",
        "\"N 1\" is no node name",
        "workers is a whole number",
        "unknown key \"worker\"",
        "unknown key \"crt\"",
        "connections_per_address is a whole number from 1 to 65535",
        "http: invalid socket address",
        "node_fronts is true or false",
        "new_leases is true or false",
        "drivers (--driver) is missing",
        "fronts (--fronts) is missing",
        "store (--store)",
        "(--ca)",
        "(--cert)",
        "(--key)",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn a_quota_is_set_by_itself_and_the_others_keep_their_defaults() {
    let quotas = load(&with("[quotas]\ndrivers = 3\n"), &[]).unwrap().quotas;
    assert_eq!(quotas, Quotas { drivers: 3, ..Quotas::default() });
    let messages = "[quotas]\ncontrol_messages_per_s = 5\ncontrol_messages_at_once = 7\n";
    let quotas = load(&with(messages), &[]).unwrap().quotas;
    assert_eq!((quotas.control_messages_per_s, quotas.control_messages_at_once), (5, 7));
    let text = load(&with("[quotas]\ndrivers = 0\nvolume = 1\n"), &[]).unwrap_err().to_string();
    for expected in ["[quotas] drivers is a whole number from 1", "unknown key \"volume\""] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn a_relays_section_names_its_drivers() {
    let config = load(&with("[relay.\"one\"]\ndrivers = [\"a.example\"]\n"), &[]).unwrap();
    let drivers = config.drivers_of_relays.get(&"one".parse().unwrap()).unwrap();
    assert_eq!(drivers.iter().map(|driver| driver.as_str()).collect::<Vec<_>>(), ["a.example"]);
    let wrong = "[relay.\"one\"]\n[relay.\"two\"]\ndrivers = [\"z.example\"]\n[relay.\"-\"]\n\
                 drivers = [\"a.example\"]\n";
    let problems = load(&with(wrong), &[]).unwrap_err().to_string();
    for expected in [
        "[relay.\"one\"] drivers is missing or empty",
        "[relay.\"two\"] names z.example, which is not among the drivers (drivers, --driver)",
        "[relay.\"-\"] ",
    ] {
        assert!(problems.contains(expected), "{expected} is not in {problems}");
    }
}

#[test]
fn fronts_may_be_left_out_where_relays_bring_the_calls() {
    let text = "relays = [\"unix:/h.sock\", \"https://0.0.0.0:7444\"]\nadmin = \"/a.sock\"\n";
    let file = WHOLE.replace("fronts = \"/run/x\"\n", text);
    let config = load(&file, &[]).unwrap();
    let relays: Vec<_> = config.relays.iter().map(ToString::to_string).collect();
    assert_eq!(relays, ["unix:/h.sock", "https://0.0.0.0:7444"]);
    assert_eq!(config.fronts, None);
    let problems = load(&file.replace("admin = \"/a.sock\"\n", ""), &["--node-fronts"])
        .unwrap_err()
        .to_string();
    assert!(problems.contains("admin (--admin)") && problems.contains("node_fronts"), "{problems}");
    let beside =
        format!("{WHOLE}\n").replace("default_node", "relays = [\"unix:/h\"]\ndefault_node");
    assert_eq!(load(&beside, &[]).unwrap().fronts, Some("/run/x".into()), "beside its own");
}

#[test]
fn relays_have_their_former_name_too() {
    let relays = |file: &str, flags: &[&str]| {
        let relays = load(file, flags).unwrap().relays;
        relays.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let former = format!("holders = [\"unix:/h\"]\n{WHOLE}");
    assert_eq!(relays(&former, &[]), ["unix:/h"]);
    assert_eq!(relays(&former, &["--relays", "unix:/r"]), ["unix:/r"], "a flag overrides it");
    assert_eq!(relays(&former, &["--holders", "unix:/g"]), ["unix:/g"]);
    let both = format!("relays = [\"unix:/r\"]\n{former}");
    assert_eq!(relays(&both, &[]), ["unix:/r", "unix:/h"]);
}

#[test]
fn a_store_must_be_named_and_is_relative_to_the_file() {
    let file = WHOLE.replace("file:/s", "file:s.redb");
    let StoreAt::File(path) = load(&file, &[]).unwrap().store else { panic!("no file") };
    assert!(path.is_absolute() && path.ends_with("s.redb"), "{}", path.display());
    let text = load(&WHOLE.replace("file:/s", "redis:x"), &[]).unwrap_err().to_string();
    assert!(text.contains("store: \"redis\" is no kind of store"), "{text}");
    let text = load(&WHOLE.replace("store = \"file:/s\"\n", ""), &[]).unwrap_err().to_string();
    assert!(text.contains("store (--store)") && text.contains("is missing"), "{text}");
}

#[test]
fn several_csi_clouds_have_names_and_say_how_etcd_is_reached() {
    let file = WHOLE.replace("file:/s", "etcd://a:1,b:2/p");
    let etcd =
        "[etcd]\nca = \"ca\"\ncert = \"/c\"\nkey = \"/k\"\nuser = \"u\"\npassword_file = \"/p\"";
    let flags = ["--replica", "r1", "--advertise", "wss://r1:1", "--advertise", "quic://r1:1"];
    let config = load(&format!("{file}{etcd}\n"), &flags).unwrap();
    let StoreAt::Etcd(at) = config.store else { panic!("no etcd") };
    assert_eq!((at.hosts.len(), &*at.prefix), (2, "/p"));
    assert!(at.settings.ca.unwrap().is_absolute());
    assert_eq!(at.settings.user, Some(("u".into(), "/p".into())));
    assert_eq!((&*config.replica.name, config.replica.endpoints.len()), ("r1", 2));
    assert_eq!(config.advertise, config.replica.endpoints.first().cloned());
    let text = load(&format!("{file}[etcd]\nuser = \"u\"\n"), &[]).unwrap_err().to_string();
    assert!(text.contains("[etcd] user and password_file belong together"), "{text}");
    assert!(!load(&file, &[]).unwrap().replica.name.is_empty(), "the host has a name");
    let calls = load(&format!("calls = \"a.calls\"\n{file}"), &[]).unwrap().calls;
    assert!(calls.unwrap().is_absolute(), "it is beside the configuration");
    let calls = load(&file, &["--calls", "/a.calls"]).unwrap().calls;
    assert_eq!((calls, load(&file, &[]).unwrap().calls), (Some("/a.calls".into()), None));
}

#[test]
fn what_is_not_said_has_a_default() {
    let config = load(WHOLE, &[]).unwrap();
    assert_eq!(config.admin, Path::new("/run/x/_admin.sock"));
    assert_eq!((config.http, config.node_fronts, config.new_leases), (None, false, true));
    assert_eq!(config.policies.len(), 2);
    let policy = policy(WHOLE, "a.example");
    assert_eq!(policy, Policy::new(Some(&"n1".parse().unwrap())));
    assert_eq!((policy.scope, policy.placement, policy.reschedule), (None, pinned("n1"), false));
    assert_eq!(policy.grace, Duration::from_secs(10));
    assert_eq!(Policy::new(None).placement, Placement::Spread);
}

/// The default admin socket is beside the drivers' sockets and the nodes' directories.
#[test]
fn the_admin_socket_can_be_no_drivers_and_no_nodes() {
    assert!(SOCKET_NAME.trim_end_matches(".sock").parse::<DriverName>().is_err());
    assert!(SOCKET_NAME.parse::<NodeName>().is_err());
}

#[test]
fn a_driver_may_have_a_policy_of_its_own() {
    let file = with(
        "[driver.\"b.example\"]\nscope = \"node\"\nplacement = \"pinned\"\nnode = \"n2\"\n\
         reschedule = true\nbeside_source = false\nask_with_secrets = true\n\
         failover_s = 60\n[driver.\"a.example\"]\nplacement = \"spread\"\n",
    );
    let b = policy(&file, "b.example");
    assert_eq!((b.scope, b.placement, b.reschedule), (Some(Scope::Node), pinned("n2"), true));
    assert_eq!((b.grace, b.beside_source), (Duration::from_secs(60), false));
    assert!(policy(&file, "a.example").beside_source);
    assert!(b.ask_with_secrets && !policy(&file, "a.example").ask_with_secrets);
    assert_eq!(policy(&file, "a.example").placement, Placement::Spread);
    // A node alone pins; "pinned" alone pins to the default node.
    assert_eq!(
        policy(&with("[driver.\"a.example\"]\nnode = \"n3\"\n"), "a.example").placement,
        pinned("n3")
    );
    let file = with("[driver.\"a.example\"]\nplacement = \"pinned\"\n");
    assert_eq!(policy(&file, "a.example").placement, pinned("n1"));
}

#[test]
fn nodes_and_controllers_are_names_patterns_or_any() {
    let node = |name: &str| name.parse::<NodeName>().unwrap();
    let section =
        |text: &str| policy(&with(&format!("[driver.\"a.example\"]\n{text}")), "a.example");
    let open = section("");
    assert!(open.allows(&node("n9")) && !open.may_elect(&node("n9")), "nobody said so");
    let any = section("scope = \"shared\"\ncontrollers = \"any\"\nnodes = [\"n*\"]\n");
    assert!(any.may_elect(&node("n9")) && !any.may_elect(&node("x")));
    let some = section("controllers = [\"n1\", \"n9\"]\nnodes = \"n[12]\"\n");
    assert!(
        some.allows(&node("n2")) && !some.may_elect(&node("n2")) && some.may_elect(&node("n1"))
    );
    assert!(
        !some.allows(&node("n9")) && !some.may_elect(&node("n9")),
        "it may not have the driver"
    );
}

#[test]
fn labels_select_nodes_with_kubernetes_only_and_not_those_that_kubelets_set() {
    let section = |label: &str| {
        with(&format!("[driver.\"a.example\"]\nnodes = [\"n1\", \"{label}\"]\n[kubernetes]\n"))
    };
    let good = section("node-restriction.kubernetes.io/storage=yes");
    let policy = policy(&good, "a.example");
    let labels = policy.labels().unwrap();
    let node = |name: &str| name.parse::<NodeName>().unwrap();
    assert!(policy.allows(&node("n1")) && !policy.allows(&node("n2")));
    assert!(policy.awaits_labels_of(&node("n2")) && !policy.awaits_labels_of(&node("n1")));
    let label = ("node-restriction.kubernetes.io/storage".to_owned(), "yes".to_owned());
    labels.set([(node("n2"), [label].into())].into());
    assert!(policy.allows(&node("n2")) && !policy.allows(&node("n3")));
    let text = load(&good, &["--kubernetes", "off"]).unwrap_err().to_string();
    assert!(text.contains("[driver.\"a.example\"] selects nodes by label"), "{text}");
    let text = load(&section("storage=yes"), &[]).unwrap_err().to_string();
    assert!(text.contains("nodes: \"storage=yes\" selects by a label that a kubelet"), "{text}");
}

#[test]
fn contradictions_are_named_at_once() {
    let sections = "[driver.\"a.example\"]\nscope = \"shared\"\nplacement = \"spread\"\n\
        node = \"n1\"\nbeside_source = false\nask_with_secrets = true\n\
        reschedule = true\n[driver.\"b.example\"]\nplacement = \"pinned\"\n\
        scope = \"node\"\ncontrollers = \"any\"\n\
        [driver.\"c.example\"]\nscope = \"both\"\nplacement = 1\nfailover_s = 0\npods = 1\n\
        nodes = []\ncontrollers = [\"N 1\"]\n";
    let file = with(sections).replace("default_node = \"n1\"\n", "");
    let text = load(&file, &[]).unwrap_err().to_string();
    for expected in [
        "[driver.\"a.example\"] placement and node are for scope \"node\"",
        "[driver.\"a.example\"] reschedule is for scope \"node\"",
        "[driver.\"a.example\"] beside_source is for scope \"node\"",
        "[driver.\"a.example\"] ask_with_secrets is for scope \"node\"",
        "[driver.\"a.example\"] placement \"spread\" goes to no single node",
        "[driver.\"b.example\"] placement \"pinned\" needs a node",
        "[driver.\"c.example\"] is not among the drivers",
        "[driver.\"c.example\"] scope: \"both\" is no scope",
        "[driver.\"c.example\"] placement is a text",
        "[driver.\"c.example\"] failover_s is a whole number from 1 to 3600",
        "[driver.\"c.example\"] unknown key \"pods\"",
        "[driver.\"a.example\"] a shared driver needs controllers",
        "[driver.\"b.example\"] controllers are for scope \"shared\"",
        "[driver.\"c.example\"] nodes is empty",
        "[driver.\"c.example\"] controllers: ",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn an_admin_socket_is_no_front() {
    let text = load(WHOLE, &["--admin", "/run/x/a.example.sock"]).unwrap_err().to_string();
    assert!(text.contains("admin") && text.contains("a.example"), "{text}");
}

#[test]
fn without_a_word_there_is_no_kubernetes() {
    let kubernetes =
        |sections: &str, flags: &[&str]| load(&with(sections), flags).unwrap().kubernetes;
    assert_eq!(kubernetes("", &[]), None);
    assert_eq!(kubernetes("", &["--publish-csinode", "on"]), None);
    let of = |api: ApiAt, publish, s| {
        Some(Kubernetes {
            api,
            publish,
            grace: Duration::from_secs(s),
            join_service_account: None,
            metadata: None,
        })
    };
    assert_eq!(kubernetes("[kubernetes]\n", &[]), of(ApiAt::InCluster, Publish::Auto, 60));
    let file = "[kubernetes]\napi = \"/k\"\npublish_csinode = \"off\"\ngrace_s = 5\n";
    assert_eq!(kubernetes(file, &[]), of(ApiAt::Kubeconfig("/k".into()), Publish::Off, 5));
    assert_eq!(kubernetes(file, &["--kubernetes", "off"]), None);
    let flags = ["--kubernetes", "in-cluster", "--publish-csinode", "on"];
    assert_eq!(kubernetes(file, &flags), of(ApiAt::InCluster, Publish::On, 5));
    let Some(Kubernetes { api: ApiAt::Kubeconfig(path), .. }) =
        kubernetes("[kubernetes]\napi = \"k\"\n", &[])
    else {
        panic!("no kubeconfig")
    };
    assert!(path.is_absolute() && path.ends_with("k"), "relative to the file: {}", path.display());
    let text = load(&with("[kubernetes]\npublish_csinode = \"yes\"\ngrace_s = 0\n"), &[])
        .unwrap_err()
        .to_string();
    for expected in ["\"yes\" is none of \"on\"", "grace_s is a whole number from 1 to 3600"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn what_a_csidriver_object_says_is_the_operators_word() {
    let file = with(
        "[driver.\"a.example\"]\npod_info_on_mount = true\nfs_group_policy = \"File\"\n\
         volume_lifecycle_modes = [\"Persistent\", \"Ephemeral\"]\nstorage_capacity = true\n\
         [[driver.\"a.example\".token_requests]]\naudience = \"vault\"\nexpiration_s = 600\n",
    );
    let object = object(&file, "a.example");
    assert_eq!((object.pod_info_on_mount, object.fs_group_policy), (Some(true), Some("File")));
    assert_eq!((object.volume_lifecycle_modes.len(), object.requires_republish), (2, None));
    assert_eq!(object.token_requests[0].expiration_s, Some(600));
    assert!(!object.attach_required);
    let file = with(
        "[driver.\"a.example\"]\nfs_group_policy = \"all\"\nattach_required = false\n\
         volume_lifecycle_modes = [\"persistent\"]\n\
         [[driver.\"a.example\".token_requests]]\nexpiration_s = 60\n",
    );
    let text = load(&file, &[]).unwrap_err().to_string();
    for expected in [
        "\"all\" is none of",
        "\"persistent\" is none of",
        "expiration_s is at least 600",
        "attach_required can only be true",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn the_page_is_csi_pages_and_reads_the_socket_view() {
    let section = "[page]\nlisten = \"https://0.0.0.0:7445\"\ntoken_file = \"tokens\"\n";
    let refused = load(&with(section), &[]).unwrap_err().to_string();
    assert!(refused.contains("csi-page") && refused.contains("view = \"PATH\""), "{refused}");
    assert!(!refused.contains("unknown key"), "{refused}");
    assert_eq!(load(WHOLE, &[]).unwrap().view, None);
    let view = load(&format!("view = \"v.sock\"\n{WHOLE}"), &[]).unwrap().view.unwrap();
    assert!(view.is_absolute() && view.ends_with("v.sock"), "it is beside the file");
    let flag = load(WHOLE, &["--view", "/v.sock"]).unwrap().view;
    assert_eq!(flag.as_deref(), Some(Path::new("/v.sock")));
}
