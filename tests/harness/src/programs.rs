//! The paths of the programs that a test starts. They stand in the directory of the running one, so
//! build the workspace first.
//!
//! The tests' own programs may be built with the profile `measure`. The products are always the
//! users' build, so that measurements hold for users.
//!
//! A variable of the environment may name another build of a product, as of an older version.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// The programs that users get, and the variables that name other builds of them.
const PRODUCTS: [(&str, &str); 3] =
    [("csi-cloud", "EDGE_CSI_CLOUD"), ("csi-edge", "EDGE_CSI_EDGE"), ("csi-page", "EDGE_CSI_PAGE")];
/// The directory of programs that are built to measure others.
const MEASURE: &str = "measure";
/// The directory of the products then.
const RELEASE: &str = "release";

/// The directories of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    own: PathBuf,
    products: PathBuf,
    /// Products of other builds.
    others: BTreeMap<&'static str, PathBuf>,
}

impl Programs {
    /// The programs of the running one's build.
    ///
    /// # Errors
    /// The system does not say which one runs.
    pub fn beside_this() -> anyhow::Result<Self> {
        let me = std::env::current_exe()?;
        let programs = Self::of(&me).with_context(|| format!("{} has no directory", me.display()));
        Ok(programs?.with(|variable| std::env::var_os(variable)))
    }

    fn of(me: &Path) -> Option<Self> {
        let dir = me.parent()?;
        // A test runs in a directory below the programs'.
        let own = if dir.ends_with("deps") { dir.parent()? } else { dir };
        let measure = own.ends_with(MEASURE);
        let products = if measure { own.with_file_name(RELEASE) } else { own.to_owned() };
        Some(Self { own: own.to_owned(), products, others: BTreeMap::new() })
    }

    /// The same with the builds that these variables name.
    fn with(self, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let named = |(name, from): (&'static str, _)| Some((name, variable(from)?.into()));
        Self { others: PRODUCTS.into_iter().filter_map(named).collect(), ..self }
    }

    /// The path of this build's program, whatever the environment names.
    pub fn newest(&self, name: &str) -> PathBuf {
        let is_product = PRODUCTS.iter().any(|(product, _)| *product == name);
        if is_product { self.products.join(name) } else { self.own.join(name) }
    }

    /// The path of a program, whether or not it has been built.
    pub fn path(&self, name: &str) -> PathBuf {
        self.others.get(name).cloned().unwrap_or_else(|| self.newest(name))
    }

    /// The path of a program that is there.
    ///
    /// # Errors
    /// It has not been built.
    pub fn built(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        ensure!(path.exists(), "{} is not there; run `make build` first", path.display());
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_never_of_the_profile_that_measures() {
        let at = |me: &str, name: &str| {
            Programs::of(Path::new(me)).unwrap().path(name).display().to_string()
        };
        assert_eq!(at("/t/measure/bench", "csi-cloud"), "/t/release/csi-cloud");
        assert_eq!(at("/t/measure/bench", "csi-edge"), "/t/release/csi-edge");
        assert_eq!(at("/t/measure/bench", "csi-page"), "/t/release/csi-page");
        assert_eq!(at("/t/measure/bench", "testdriver"), "/t/measure/testdriver");
        assert_eq!(at("/t/debug/deps/all-0123", "csi-cloud"), "/t/debug/csi-cloud");
        assert_eq!(at("/t/release/cluster", "hostdir"), "/t/release/hostdir");
    }

    #[test]
    fn a_product_of_another_build_is_the_one_that_is_named() {
        let named = |variable: &str| (variable == "EDGE_CSI_EDGE").then(|| "/old/csi-edge".into());
        let programs = Programs::of(Path::new("/t/debug/cluster")).unwrap().with(named);
        assert_eq!(programs.path("csi-edge"), Path::new("/old/csi-edge"));
        assert_eq!(programs.newest("csi-edge"), Path::new("/t/debug/csi-edge"));
        for other in ["csi-cloud", "hostdir"] {
            assert_eq!(programs.path(other), programs.newest(other));
        }
    }
}
