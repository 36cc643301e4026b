//! The files of a checkout, read once.
//!
//! Everything else works on this value, so a test can write a whole checkout in memory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;

/// The text of each file that the checks need, by its path from the top of the checkout.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the Rust sources, manifests, scripts, Markdown and protobuf files below a directory.
    ///
    /// # Errors
    /// A directory or file cannot be read.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        Ok(tree)
    }

    fn read_directory(&mut self, root: &Path, below: &str) -> anyhow::Result<()> {
        let directory = root.join(below);
        let entries = std::fs::read_dir(&directory)
            .with_context(|| format!("cannot read the directory {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() && is_read(&name) {
                self.read_directory(root, &path)?;
            } else if kind.is_file() && is_needed(&name) {
                let text = std::fs::read_to_string(entry.path())
                    .with_context(|| format!("cannot read {path}"))?;
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// The text of one file.
    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// The paths of all files whose path starts so, sorted.
    pub(crate) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let from = self.files.range(prefix.to_owned()..);
        from.map(|(path, _)| path.as_str()).take_while(move |path| path.starts_with(prefix))
    }

    /// A checkout in memory.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self { files: files.iter().map(own).collect() }
    }
}

/// Directories of tools are not read, but for the templates of pull requests.
fn is_read(directory: &str) -> bool {
    directory == ".github" || (!directory.starts_with('.') && directory != "target")
}

fn is_needed(name: &str) -> bool {
    let ends = [".rs", ".md", ".proto"];
    name == "Cargo.toml" || ends.iter().chain(&SCRIPTS).any(|end| name.ends_with(end))
}

/// The ends of the names of scripts, style sheets and templates, which are product code, too.
pub(crate) const SCRIPTS: [&str; 3] = [".js", ".css", ".html"];
