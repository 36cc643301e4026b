//! The places of a node's direct volumes, as `serve` reads them: flags, over edge.toml.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use edge_calls::state_format;
use edge_direct::Nvme;
use edge_direct::runtimes::prerequisites::Checks;
use edge_direct::runtimes::{PATIENCE, Roots, Runtimes};
use proto::config::Reader;
use proto::config::places::Places;

use super::target_directory;

/// The flags that say where to look for direct volumes.
#[derive(Debug, Args)]
pub struct At {
    /// The configuration of csi-edge [default: /etc/edge-csi/edge.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The state directory of csi-edge, as in `serve --state` [default: what the configuration
    /// says, else the only one of a checkout]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The entries that runtimes read [default: what the configuration says]
    #[arg(long, value_name = "DIR")]
    entries: Option<PathBuf>,
    /// The sandboxes of Kata's Go runtime [default: what the configuration says]
    #[arg(long, value_name = "DIR")]
    kata_go: Option<PathBuf>,
    /// The sandboxes of Kata's runtime-rs [default: what the configuration says]
    #[arg(long, value_name = "DIR")]
    kata_rs: Option<PathBuf>,
    /// The sandboxes of runtimes that serve our own contract [default: what the configuration says]
    #[arg(long, value_name = "DIR")]
    sandboxes: Option<PathBuf>,
}

/// Where a node has its direct volumes.
#[derive(Debug)]
pub(super) struct DirectPlace {
    /// The state directory of csi-edge, which is there and has a format that can be read.
    pub(super) state: PathBuf,
    roots: Roots,
}

impl DirectPlace {
    pub(super) fn runtimes(&self) -> Runtimes {
        Runtimes::new(self.roots(), PATIENCE)
    }

    pub(super) fn roots(&self) -> Roots {
        self.roots.clone()
    }
}

impl At {
    /// Finds the place. Mistakes in other keys of the configuration do not matter.
    ///
    /// # Errors
    /// The configuration cannot be read, no state directory is known, or it cannot be used.
    pub(super) fn find(self, places: &Places) -> anyhow::Result<DirectPlace> {
        let Self { config, state, entries, kata_go, kata_rs, sandboxes } = self;
        let config = places.configuration(config);
        let mut file = Reader::open(config.as_deref());
        let configured = file.path("state");
        let found = runtimes(&mut file, entries, sandboxes);
        file.finish_part()?;
        let roots = Roots {
            kata_go: kata_go.unwrap_or(found.kata_go),
            kata_rs: kata_rs.unwrap_or(found.kata_rs),
            ..found
        };
        let state = match (state.or(configured), config) {
            (Some(state), _) => state,
            (None, Some(config)) => bail!(
                "{} has no `state`, so csi-edge keeps nothing on this disk, and has no direct \
                 volumes unless it is started with --state; then give the same --state here",
                config.display()
            ),
            (None, None) => only(places.states_of_checkout())?,
        };
        // With a wrong path every command would say that there is nothing.
        if !state.is_dir() {
            bail!("{} is not a directory; where does csi-edge keep its state?", state.display());
        }
        state_format::check(&state)?;
        Ok(DirectPlace { state, roots })
    }
}

/// The state directory of a checkout, if it has one only.
fn only(found: Vec<PathBuf>) -> anyhow::Result<PathBuf> {
    let mut found = found.into_iter();
    let first = found.next().context(
        "the state directory of csi-edge is not known: neither /etc/edge-csi/edge.toml is there, \
         nor run/NODE/state here; name the configuration with --config, or the directory with \
         --state",
    )?;
    let others: Vec<_> = found.map(|state| state.display().to_string()).collect();
    if !others.is_empty() {
        bail!(
            "several nodes have their state here; choose one with --state: {}, {}",
            first.display(),
            others.join(", ")
        );
    }
    Ok(first)
}

/// The root of the host's files: the flag, else what the configuration says. And the state
/// directory, if the configuration names one.
///
/// # Errors
/// The configuration cannot be read.
pub(super) fn host_root(
    root: Option<PathBuf>,
    config: Option<PathBuf>,
    places: &Places,
) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let mut file = Reader::open(places.configuration(config).as_deref());
    let state = file.path("state");
    let (checks, ..) = direct(&mut file);
    file.finish_part()?;
    Ok((root.unwrap_or(checks.root), state))
}

/// The directories of the runtimes: `direct_volumes`, and each runtime's sandboxes in `[runtimes]`.
pub(crate) fn runtimes(
    file: &mut Reader,
    entries: Option<PathBuf>,
    sandboxes: Option<PathBuf>,
) -> Roots {
    let listed = file.path("direct_volumes");
    let read =
        |section: &mut Reader| ["kata_go", "kata_rs", "reference"].map(|name| section.path(name));
    let [kata_go, kata_rs, reference] = file.section("runtimes", read).unwrap_or_default();
    let usual = Roots::default();
    Roots {
        entries: entries.or(listed).unwrap_or(usual.entries),
        kata_go: kata_go.unwrap_or(usual.kata_go),
        kata_rs: kata_rs.unwrap_or(usual.kata_rs),
        reference: sandboxes.or(reference).unwrap_or(usual.reference),
    }
}

/// `[direct]`: how the installed runtimes are checked, whether they take NVMe controllers, and
/// where targets may be.
pub(crate) fn direct(file: &mut Reader) -> (Checks, Nvme, Vec<PathBuf>) {
    let read = |section: &mut Reader| {
        let required = section.yes_no("require_runtime_check").unwrap_or_default();
        let root = section.path("runtime_root").unwrap_or_else(|| Checks::default().root);
        let taken = section.yes_no("vfio_nvme") == Some(true);
        let nvme = if taken { Nvme::Taken } else { Nvme::Refused };
        let targets = section.one_or_list("targets", target_directory);
        (Checks { root, required }, nvme, targets)
    };
    file.section("direct", read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proto::host::publish::{Existing, publish};
    use std::path::Path;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        at: At,
    }

    /// A host: its files, and the working directory's `run`.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, text: &str) -> PathBuf {
            let path = self.at(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
            path
        }

        fn state(&self, path: &str) -> PathBuf {
            let path = self.at(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        }

        fn places(&self) -> Places {
            Places::edge_below(&self.at("root"), &self.at("run"))
        }

        fn find(&self, flags: &[&str]) -> anyhow::Result<DirectPlace> {
            let line = ["direct"].iter().chain(flags);
            Line::parse_from(line).at.find(&self.places())
        }

        fn refusal(&self, flags: &[&str]) -> String {
            self.find(flags).unwrap_err().to_string()
        }
    }

    const USUAL: &str = "root/etc/edge-csi/edge.toml";

    #[test]
    fn the_usual_configuration_says_where_direct_volumes_are() {
        let host = Host::new();
        let state = host.state("root/etc/edge-csi/kept");
        host.write(
            USUAL,
            "state = \"kept\"\ndirect_volumes = \"/e\"\n[runtimes]\nkata_go = \"/g\"",
        );
        let place = host.find(&[]).unwrap();
        assert_eq!(place.state, state, "relative to the file");
        let expected = Roots { entries: "/e".into(), kata_go: "/g".into(), ..Roots::default() };
        assert_eq!(place.roots(), expected);
        let flags = ["--entries", "/f", "--kata-go", "/h", "--sandboxes", "/s"];
        let place = host.find(&flags).unwrap();
        assert_eq!((place.state, place.roots.entries), (state, "/f".into()));
        assert_eq!((place.roots.kata_go, place.roots.reference), ("/h".into(), "/s".into()));
    }

    #[test]
    fn a_named_configuration_comes_before_the_usual_one() {
        let host = Host::new();
        host.write(USUAL, "state = \"/none\"");
        let state = host.state("here");
        let named = host.write("other.toml", "state = \"here\"\ncloud = 7");
        assert_eq!(host.find(&["--config", named.to_str().unwrap()]).unwrap().state, state);
        let missing = host.refusal(&["--config", "/none.toml"]);
        assert!(missing.contains("/none.toml") && missing.contains("cannot be read"), "{missing}");
    }

    #[test]
    fn the_flag_for_the_state_overrides_the_file_and_needs_none() {
        let host = Host::new();
        let state = host.state("here");
        let flags = ["--state", state.to_str().unwrap()];
        assert_eq!(host.find(&flags).unwrap().roots(), Roots::default(), "without a file");
        host.write(USUAL, "state = \"/none\"\ndirect_volumes = \"/e\"");
        let place = host.find(&flags).unwrap();
        assert_eq!((place.state, place.roots.entries), (state, "/e".into()));
        let refusal = host.refusal(&[]);
        assert!(refusal.contains("/none is not a directory"), "{refusal}");
        host.write(USUAL, "cloud = \"wss://h:1\"");
        let refusal = host.refusal(&[]);
        assert!(refusal.contains("edge.toml has no `state`"), "{refusal}");
    }

    #[test]
    fn in_a_checkout_the_only_nodes_state_is_taken_and_none_is_guessed() {
        let host = Host::new();
        let refusal = host.refusal(&[]);
        assert!(refusal.contains("--config") && refusal.contains("--state"), "{refusal}");
        let state = host.state("run/node-1/state");
        host.state("run/cloud/state");
        host.state("run/state");
        assert_eq!(host.find(&[]).unwrap().state, state);
        let other = host.state("run/node-2/state");
        let refusal = host.refusal(&[]);
        for state in [&state, &other] {
            assert!(refusal.contains(state.to_str().unwrap()), "{refusal}");
        }
    }

    #[test]
    fn the_check_takes_the_hosts_root_of_the_configuration() {
        let host = Host::new();
        let root = |flag: Option<&str>| host_root(flag.map(Into::into), None, &host.places());
        assert_eq!(root(None).unwrap().0, Checks::default().root);
        host.write(USUAL, "[direct]\nruntime_root = \"/host\"");
        assert_eq!(root(None).unwrap().0, Path::new("/host"));
        assert_eq!(root(Some("/other")).unwrap().0, Path::new("/other"));
    }
}
