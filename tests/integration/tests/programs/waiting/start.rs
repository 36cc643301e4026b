//! The errors of a program that cannot start, and the files that it leaves alone.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use anyhow::Context;
use harness::process::Process;
use harness::raw::RawClient;
use harness::stand::Stand;
use harness::wait::{START, STOP};
use harness::world::{DRIVER, TRANSPORTS, World};
use proto::host::publish::{Existing, publish};

/// Runs a program that must fail, and returns its stderr.
async fn refused(stand: &Stand, name: &str, args: &[&str]) -> String {
    match stand.run(name, args).await {
        Ok(output) => panic!("{name} {args:?} did not fail: {output}"),
        Err(error) => error.to_string(),
    }
}

/// Starts a cloud that must fail to start, and returns its error; none if it started.
async fn no_cloud(stand: &Stand, listen: &[&str], drivers: &[&str], more: &[&str]) -> String {
    stand
        .cloud(listen, drivers, more)
        .await
        .err()
        .map(|error| format!("{error:#}"))
        .unwrap_or_default()
}

fn write(stand: &Stand, name: &str, text: &str) -> String {
    publish(&stand.dir().join(name), text.as_bytes(), 0o600, Existing::Replace).unwrap();
    stand.at(name)
}

/// The names of all that is in a directory.
fn names(stand: &Stand) -> Vec<std::ffi::OsString> {
    let entries = stand.dir().read_dir().unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// A chart's test has neither certificates nor a store, and the configuration of a running program
/// may be checked beside it.
#[tokio::test]
async fn a_configuration_can_be_checked_without_touching_anything_else() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let tls = "[tls]\nca = \"ca.crt\"\ncert = \"own.crt\"\nkey = \"own.key\"\n";
    let cloud = format!(
        "listen = [\"wss://127.0.0.1:7443\"]\ndrivers = [\"a.example\"]\nfronts = \"fronts\"\n\
         store = \"file:store.redb\"\n{tls}"
    );
    let edge = format!(
        "cloud = \"wss://h:1\"\nfronts = \"fronts\"\nstate = \"state\"\n{tls}\
         [[drivers]]\nname = \"a.example\"\nsocket = \"d.sock\"\n"
    );
    for (program, file, text) in
        [("csi-cloud", "cloud.toml", &cloud), ("csi-edge", "edge.toml", &edge)]
    {
        let file = write(&stand, file, text);
        let before = names(&stand);
        let output = stand.run(program, &["serve", "--check", "--config", &file]).await?;
        assert_eq!(output.trim(), "ok", "{program}");
        assert_eq!(names(&stand), before, "{program} made a file");
        let flags = ["serve", "--check", "--config", &file, "--workers", "2"];
        assert_eq!(stand.run(program, &flags).await?.trim(), "ok", "{program} with a flag");
        let wrong = write(&stand, "wrong.toml", &format!("worker = 1\nadmin = 2\n{text}"));
        let text = refused(&stand, program, &["serve", "--check", "--config", &wrong]).await;
        for expected in ["worker", "admin"] {
            assert!(text.contains(expected), "{program}: {expected} is not in {text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn all_that_is_wrong_with_a_configuration_is_said_at_once() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let file = write(
        &stand,
        "cloud.toml",
        "listen = [\"ws://h:1\", 7]\nlisten_on = 1\n[tls]\nca = 1\nkee = \"k\"\n",
    );
    let text = refused(&stand, "csi-cloud", &["serve", "--config", &file]).await;
    for expected in [
        "without TLS",
        "here it is: 7",
        "\"listen_on\"",
        "ca is a text",
        "\"kee\"",
        "(--driver) is missing",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    let file = write(&stand, "edge.toml", "cloud = \"tcp://h:1\"\n[[drivers]]\nname = \"a_b\"\n");
    let text = refused(&stand, "csi-edge", &["serve", "--config", &file]).await;
    for expected in
        ["wss://HOST:PORT", "no CSI driver name", "a name and a socket", "(--cert) is missing"]
    {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    let text = refused(&stand, "csi-edge", &["serve", "--config", "/does/not/exist.toml"]).await;
    assert!(text.contains("/does/not/exist.toml"), "{text}");
    let text = refused(&stand, "csi-cloud", &["serve", "--listen", "http://h:1"]).await;
    assert!(text.contains("without TLS"), "{text}");
    Ok(())
}

#[tokio::test]
async fn the_configurations_in_deploy_are_good() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (name, file) in [("csi-cloud", "cloud.toml"), ("csi-edge", "edge.toml")] {
        let config = deploy.join(file).display().to_string();
        // They are read whole: what is missing then are the certificates.
        let text = refused(&stand, name, &["serve", "--config", &config]).await;
        assert!(text.contains("no certificate can be read") && text.contains("pki"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_front_that_is_taken_or_is_no_socket_is_left_alone() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let first = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let text = no_cloud(&stand, &[TRANSPORTS[0]], &[DRIVER], &[]).await;
    assert!(text.contains("is being served by another process"), "{text}");
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    front.call("/csi.v1.Identity/Probe", &[]).await?;
    first.process.stop(START).await?;
    assert!(!Path::new(&stand.cloud_front(DRIVER)).exists());

    write(&stand, &format!("cloud/{DRIVER}.sock"), "precious");
    let text = no_cloud(&stand, &[TRANSPORTS[0]], &[DRIVER], &[]).await;
    assert!(text.contains("is no socket"), "{text}");
    assert_eq!(std::fs::read(stand.cloud_front(DRIVER))?, b"precious");
    Ok(())
}

#[tokio::test]
async fn a_socket_path_too_long_is_named_with_its_length() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let long = stand.at(&"x".repeat(100));
    let text = no_cloud(&stand, &[TRANSPORTS[0]], &[DRIVER], &["--fronts", &long]).await;
    assert!(
        text.contains("cannot be used multiple times") || text.contains("107 is the most"),
        "{text}"
    );
    let pki = stand.pki();
    let fronts = long.as_str();
    let tls = ["ca", "cert", "key"].map(|end| {
        let name = if end == "ca" {
            "ca.crt".into()
        } else {
            format!("cloud.{}", if end == "cert" { "crt" } else { end })
        };
        format!("--{end}={pki}/{name}")
    });
    let mut args = vec!["serve", "--listen", TRANSPORTS[0], "--driver", DRIVER, "--fronts", fronts];
    args.extend(["--store", "memory:"]);
    args.extend(tls.iter().map(String::as_str));
    let text = refused(&stand, "csi-cloud", &args).await;
    assert!(text.contains("107 is the most") && text.contains(DRIVER), "{text}");
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let first = stand.cloud(&TRANSPORTS, &[DRIVER], &[]).await?;
    for url in &first.urls {
        let other = Stand::new().await?;
        let text = other
            .cloud(&[url], &[DRIVER], &[])
            .await
            .err()
            .map(|e| format!("{e:#}"))
            .unwrap_or_default();
        assert!(text.contains("cannot listen on") && text.contains(url.as_str()), "{text}");
    }
    first.process.stop(START).await
}

#[tokio::test]
async fn certificates_of_the_wrong_kind_are_named() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    stand.run("csi-cloud", &["ca", "issue", "n1", "--dir", &stand.pki()]).await?;
    let pki = stand.pki();
    let edge = |cert: &str, key: &str| {
        let tls = [
            format!("--ca={pki}/ca.crt"),
            format!("--cert={pki}/{cert}"),
            format!("--key={pki}/{key}"),
        ];
        let fixed = ["serve", "--cloud", "wss://127.0.0.1:1", "--driver", "d.example=/x.sock"]
            .map(str::to_owned);
        fixed.into_iter().chain(tls).collect::<Vec<_>>()
    };
    for (cert, key, expected) in [
        ("cloud.crt", "cloud.key", "not made for this end of the link"),
        ("none.crt", "n1.key", "none.crt"),
        ("n1.key", "n1.key", "no certificate can be read"),
        ("ca.crt", "none.key", "none.key"),
        ("ca.crt", "ca.key", "is a CA's own"),
    ] {
        let args = edge(cert, key);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let text = refused(&stand, "csi-edge", &args).await;
        assert!(text.contains(expected), "{cert} {key}: {expected} is not in {text}");
    }
    // What the certificate names is served, whatever is wrong with its key.
    for (cert, key, expected) in [
        ("n1.crt", "cloud.key", "does not belong to the certificate"),
        ("n1.crt", "n1.crt", "has mode 0644"),
    ] {
        let mut command = stand.program("csi-edge")?;
        command.args(edge(cert, key));
        let process = Process::start(&format!("edge-{key}"), command, stand.dir())?;
        process.logged(expected).await?;
        process.stop(STOP).await?;
    }
    Ok(())
}

/// A core would have keys and requests in it.
#[tokio::test]
async fn both_programs_forbid_core_dumps() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    for process in [&world.cloud.process, &world.edge] {
        let pid = process.pid().context("it ended")?;
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
        let words: Vec<_> = core.context("no limit of cores")?.split_whitespace().collect();
        assert_eq!(words, ["0", "0", "bytes"]);
    }
    world.stop().await
}

/// With `[ca] hosts` a node can join a csi-cloud for which nobody has made a certificate. A lost CA
/// is not replaced.
#[tokio::test]
async fn the_first_start_makes_a_ca_and_later_ones_use_it() -> anyhow::Result<()> {
    const LISTEN: [&str; 1] = ["wss://127.0.0.1:0"];
    let stand = Stand::new().await?;
    let pki = stand.pki();
    std::fs::remove_dir_all(&pki)?;
    let config = stand.issuing("hosts = [\"127.0.0.1\"]\n")?;
    // The stand's own store would be there before csi-cloud.
    let store = format!("--store=file:{}", stand.at("first.redb"));
    let more = ["--config", config.as_str(), &store];
    let admin = stand.at("cloud/_admin.sock");
    let mut joins = Vec::new();
    for dir in ["first", "second"] {
        let cloud = stand.cloud(&LISTEN, &[DRIVER], &more).await?;
        let token = ["token", "create", dir, "--cloud", &cloud.urls[0], "--admin", &admin];
        let join = stand.run("csi-cloud", &token).await?;
        stand.join(&join, dir).await?;
        joins.push(join);
        cloud.process.stop(START).await?;
    }
    let hash =
        |join: &String| join.split(' ').find(|word| word.starts_with("sha256:")).map(str::to_owned);
    assert!(hash(&joins[0]).is_some() && hash(&joins[0]) == hash(&joins[1]), "{joins:?}");
    std::fs::remove_file(format!("{pki}/ca.key"))?;
    let text = no_cloud(&stand, &LISTEN, &[DRIVER], &more).await;
    assert!(text.contains("and ca.key not") && text.contains("from a backup"), "{text}");
    std::fs::remove_dir_all(&pki)?;
    let text = no_cloud(&stand, &LISTEN, &[DRIVER], &more).await;
    assert!(text.contains("lock all of them out"), "{text}");
    assert!(!Path::new(&pki).exists());
    Ok(())
}
