//! The paths of the programs that a test starts. They stand in the directory of the running one, so
//! build the workspace first.
//!
//! The tests' own programs may be built with the profile `measure`. The products are always the
//! users' build, so that measurements hold for users.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// The programs that users get.
const PRODUCTS: [&str; 2] = ["csi-cloud", "csi-edge"];
/// The directory of programs that are built to measure others.
const MEASURE: &str = "measure";
/// The directory of the products then.
const RELEASE: &str = "release";

/// The directories of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    own: PathBuf,
    products: PathBuf,
}

impl Programs {
    /// The programs of the running one's build.
    ///
    /// # Errors
    /// The system does not say which one runs.
    pub fn beside_this() -> anyhow::Result<Self> {
        let me = std::env::current_exe()?;
        Self::of(&me).with_context(|| format!("{} has no directory", me.display()))
    }

    fn of(me: &Path) -> Option<Self> {
        let dir = me.parent()?;
        // A test runs in a directory below the programs'.
        let own = if dir.ends_with("deps") { dir.parent()? } else { dir };
        let measure = own.ends_with(MEASURE);
        let products = if measure { own.with_file_name(RELEASE) } else { own.to_owned() };
        Some(Self { own: own.to_owned(), products })
    }

    /// The path of a program, whether or not it has been built.
    pub fn path(&self, name: &str) -> PathBuf {
        let dir = if PRODUCTS.contains(&name) { &self.products } else { &self.own };
        dir.join(name)
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
        assert_eq!(at("/t/measure/bench", "testdriver"), "/t/measure/testdriver");
        assert_eq!(at("/t/debug/deps/all-0123", "csi-cloud"), "/t/debug/csi-cloud");
        assert_eq!(at("/t/release/cluster", "hostdir"), "/t/release/hostdir");
    }
}
