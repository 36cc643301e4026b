//! Reads configuration files, and the flags and settings that both programs have.
//!
//! Unknown keys are refused, and every problem is reported at once: an operator who corrects one
//! line at a time restarts a daemon ten times. May use: admin, link.

pub mod places;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use toml::{Table, Value};

use crate::admin::input;
use crate::host::{chain, socket};
use crate::link::keep_alive::KeepAlive;
use crate::link::tls::Files;

/// The default number of worker threads; `docs/performance.md` has the measurement.
const WORKERS: u16 = 1;
/// The default time for calls in flight when the program is told to stop, in seconds.
const GRACE: u16 = 30;
/// The longest time of any setting, in seconds.
pub const HOUR: u16 = 3600;

/// The flags that both programs have. A flag overrides the file.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// The configuration, TOML; relative paths in it are relative to it. - is stdin
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The CA that both ends trust, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// This end's certificate, PEM: `csi-cloud ca init` makes the cloud's,
    /// `csi-cloud ca issue NODE` a node's
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Worker threads [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// How long calls in flight may still take when told to stop; a second SIGTERM ends the wait
    /// [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub grace: Option<u16>,
    /// After how long without a sign of life the other end of a link is taken for dead
    /// [default: 15]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub dead_after: Option<u16>,
}

/// The settings of both programs, without their certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Worker threads.
    pub workers: u16,
    /// The time for calls in flight when the program is told to stop.
    pub grace: Duration,
    /// The keep-alive settings of links.
    pub keep_alive: KeepAlive,
}

/// All problems of a configuration.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used:{}", listed(.0))]
pub struct Problems(pub Vec<String>);

/// The configuration that standard input has, which may be read more than once.
fn of_stdin() -> std::io::Result<String> {
    static TEXT: OnceLock<Result<String, String>> = OnceLock::new();
    let read = || input::read(Path::new("-")).map_err(|error| chain(error.as_ref()));
    TEXT.get_or_init(read).clone().map_err(std::io::Error::other)
}

fn listed(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("\n  - {problem}")).collect()
}

/// A file that is being read, and its problems so far.
#[derive(Default)]
pub struct Reader {
    table: Table,
    /// The keys that were asked for.
    known: Vec<String>,
    /// Begins every problem, before the key.
    place: String,
    /// Relative paths in the file are relative to this directory.
    directory: PathBuf,
    problems: Vec<String>,
}

impl Reader {
    /// Reads a file; an empty reader without one. `-` is standard input, whose paths are relative
    /// to the working directory.
    pub fn open(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        let is_stdin = input::is_stdin(path);
        let shown = if is_stdin { Path::new("standard input") } else { path };
        let place = format!("{}: ", shown.display());
        let directory = path.parent().map(Path::to_owned).unwrap_or_default();
        let mut reader = Self { place, directory, ..Self::default() };
        let text = if is_stdin { of_stdin() } else { std::fs::read_to_string(path) };
        match text {
            Err(error) => {
                let place = &reader.place;
                let problem = format!("{place}the file cannot be read: {error}");
                reader.problems.push(problem);
            }
            Ok(text) => match text.parse::<Table>() {
                Ok(table) => reader.table = table,
                Err(error) => {
                    // Without the line itself, which may have a password.
                    let before = error.span().and_then(|span| text.get(..span.start));
                    let line = before.unwrap_or_default().matches('\n').count() + 1;
                    let why = error.message();
                    let problem = format!("{}line {line}: it is no TOML: {why}", reader.place);
                    reader.problems.push(problem);
                }
            },
        }
        reader
    }

    /// Takes the certificates: those of `identity`, or else of the flags and the section `[tls]`.
    /// None if one is missing, which is a problem.
    pub fn certificates(&mut self, flags: &Flags, identity: Option<&Path>) -> Option<Files> {
        let tls = self.section("tls", |tls| [tls.path("ca"), tls.path("cert"), tls.path("key")]);
        let [ca, cert, key] = tls.unwrap_or_default();
        let ca = flags.ca.clone().or(ca);
        let cert = flags.cert.clone().or(cert);
        let key = flags.key.clone().or(key);
        if let Some(dir) = identity {
            if ca.or(cert).or(key).is_some() {
                self.problem(
                    "identity has the CA, the certificate and the key; leave out [tls] (--ca, \
                     --cert, --key), or identity (--identity)",
                );
            }
            return Some(Files::identity(dir));
        }
        let ca = self.required("[tls] ca (--ca)", ca);
        let cert = self.required("[tls] cert (--cert)", cert);
        let key = self.required("[tls] key (--key)", key);
        ca.zip(cert).zip(key).map(|((ca, cert), key)| Files { ca, cert, key })
    }

    /// Takes the other settings of both programs. `dead_after` is from the section `[link]`, in
    /// seconds.
    pub fn common(&mut self, flags: &Flags, dead_after: Option<u16>) -> Common {
        let workers = self.number("workers", 1024);
        let grace = self.number("grace_s", HOUR);
        let grace = Duration::from_secs(flags.grace.or(grace).unwrap_or(GRACE).into());
        let dead_after = flags.dead_after.or(dead_after).map(|s| Duration::from_secs(s.into()));
        let keep_alive = dead_after.map(KeepAlive::dead_after).unwrap_or_default();
        Common { workers: flags.workers.or(workers).unwrap_or(WORKERS), grace, keep_alive }
    }

    /// Returns the value; a missing one is a problem.
    pub fn required<T>(&mut self, what: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.problem(format!("{what} is missing"));
        }
        value
    }

    /// Adds a problem that is not about a key of the file.
    pub fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Takes a key's text, parsed.
    pub fn parsed<T, E: std::fmt::Display>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(key)?;
        let place = &self.place;
        parse(&text).map_err(|error| self.problems.push(format!("{place}{key}: {error}"))).ok()
    }

    /// Takes a key's text, which may be a secret: no problem shows it.
    pub fn secret(&mut self, key: &str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            _ => {
                self.problems.push(format!("{}{key} is a text, and here it is none", self.place));
                None
            }
        }
    }

    /// Takes a list of texts like [`Reader::list`], or one text.
    pub fn one_or_list<T, E: std::fmt::Display>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        if let Some(one @ Value::String(_)) = self.table.get_mut(key) {
            *one = Value::Array(vec![one.clone()]);
        }
        self.list(key, parse)
    }

    /// Takes a list like [`Reader::one_or_list`]; none if the key is left out. An empty list is a
    /// problem.
    pub fn some<T, E: std::fmt::Display>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        self.known.push(key.to_owned());
        if !self.table.contains_key(key) {
            return None;
        }
        if self.table.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            self.problem(format!("{}{key} is empty; leave it out, or name some", self.place));
        }
        Some(self.one_or_list(key, parse))
    }

    /// Takes a list of texts, each of which `parse` understands; those that it does not are
    /// problems.
    pub fn list<T, E: std::fmt::Display>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let values = match self.take(key) {
            None => return Vec::new(),
            Some(Value::Array(values)) => values,
            Some(other) => {
                self.wrong_type(key, "a list of texts", &other);
                return Vec::new();
            }
        };
        let mut parsed = Vec::new();
        for value in values {
            match value.as_str().map(&parse) {
                Some(Ok(item)) => parsed.push(item),
                Some(Err(error)) => self.problems.push(format!("{}{key}: {error}", self.place)),
                None => self.wrong_type(key, "a list of texts", &value),
            }
        }
        parsed
    }

    /// Takes a table of texts, each of which `parse` understands with its key.
    pub fn texts<T, E: std::fmt::Display>(
        &mut self,
        key: &str,
        parse: impl Fn(&str, &str) -> Result<T, E>,
    ) -> BTreeMap<String, T> {
        let values = match self.take(key) {
            None => return BTreeMap::new(),
            Some(Value::Table(values)) => values,
            Some(other) => {
                self.wrong_type(key, "a table of texts", &other);
                return BTreeMap::new();
            }
        };
        let mut parsed = BTreeMap::new();
        for (name, value) in values {
            let place = format!("{key}.{name:?}");
            match value.as_str().map(|text| parse(&name, text)) {
                Some(Ok(item)) => drop(parsed.insert(name, item)),
                Some(Err(error)) => self.problems.push(format!("{}{place}: {error}", self.place)),
                None => self.wrong_type(&place, "a text", &value),
            }
        }
        parsed
    }

    /// Takes a path; a relative one is relative to the file's directory.
    pub fn path(&mut self, key: &str) -> Option<PathBuf> {
        self.text(key).map(|text| self.directory.join(text))
    }

    /// Takes the path of a socket, with `unix://` before it or bare; a relative one begins at the
    /// file's directory. An abstract socket stays as it is written, `unix-abstract:NAME`.
    pub fn socket(&mut self, key: &str) -> Option<PathBuf> {
        self.text(key).map(|text| match socket::abstract_name(&text) {
            Some(_) => text.into(),
            None => self.directory.join(socket::path_of(&text)),
        })
    }

    /// Takes a whole number from 1 to `most`.
    pub fn number(&mut self, key: &str, most: u16) -> Option<u16> {
        let value = self.take(key)?;
        let number = value
            .as_integer()
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| (1..=most).contains(n));
        if number.is_none() {
            self.wrong_type(key, &format!("a whole number from 1 to {most}"), &value);
        }
        number
    }

    /// Takes `true` or `false`.
    pub fn yes_no(&mut self, key: &str) -> Option<bool> {
        let value = self.take(key)?;
        if value.as_bool().is_none() {
            self.wrong_type(key, "true or false", &value);
        }
        value.as_bool()
    }

    /// Takes a section; `read` takes its keys.
    pub fn section<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let value = self.take(key)?;
        self.nested(&format!("[{key}] "), value, read)
    }

    /// Takes sections with names, `[key."NAME"]`; `read` gets the name.
    pub fn named_sections<T>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&str, &mut Self) -> T,
    ) -> Vec<T> {
        match self.take(key) {
            None => Vec::new(),
            Some(Value::Table(named)) => {
                let each = |(name, value): (String, Value)| {
                    self.nested(&format!("[{key}.{name:?}] "), value, |section| {
                        read(&name, section)
                    })
                };
                named.into_iter().filter_map(each).collect()
            }
            Some(other) => {
                self.wrong_type(key, &format!("sections [{key}.\"NAME\"]"), &other);
                Vec::new()
            }
        }
    }

    /// Takes a list of sections.
    pub fn sections<T>(&mut self, key: &str, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        match self.take(key) {
            None => Vec::new(),
            Some(Value::Array(values)) => {
                let each = |value| self.nested(&format!("[[{key}]] "), value, &mut read);
                values.into_iter().filter_map(each).collect()
            }
            Some(other) => {
                self.wrong_type(key, "a list of sections", &other);
                Vec::new()
            }
        }
    }

    /// Ends the reading: the values are good only if there was no problem.
    ///
    /// # Errors
    /// All problems, among them keys that were not taken.
    pub fn finish(mut self) -> Result<(), Problems> {
        self.refuse_unknown();
        self.finish_part()
    }

    /// Ends the reading of a part: other keys do not matter.
    ///
    /// # Errors
    /// All problems of the keys that were read.
    pub fn finish_part(self) -> Result<(), Problems> {
        if self.problems.is_empty() { Ok(()) } else { Err(Problems(self.problems)) }
    }

    fn refuse_unknown(&mut self) {
        for key in self.table.keys() {
            let known = self.known.iter();
            let advice = known
                .min_by_key(|known| strsim::damerau_levenshtein(known, key))
                .map(|nearest| format!("; the nearest known one is {nearest:?}"))
                .unwrap_or_default();
            self.problems.push(format!("{}unknown key {key:?}{advice}", self.place));
        }
    }

    /// Takes a key, which is known from then on.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.known.push(key.to_owned());
        self.table.remove(key)
    }

    fn nested<T>(
        &mut self,
        place: &str,
        value: Value,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let Value::Table(table) = value else {
            self.wrong_type(place.trim_end(), "a section", &value);
            return None;
        };
        let mut section = Self {
            table,
            place: format!("{}{place}", self.place),
            directory: self.directory.clone(),
            ..Self::default()
        };
        let read = read(&mut section);
        section.refuse_unknown();
        self.problems.append(&mut section.problems);
        Some(read)
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong_type(key, "a text", &other);
                None
            }
        }
    }

    fn wrong_type(&mut self, key: &str, expected: &str, found: &Value) {
        self.problems.push(format!("{}{key} is {expected}, and here it is: {found}", self.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::publish::{Existing, publish};

    fn reader(text: &str) -> (tempfile::TempDir, Reader) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        publish(&path, text.as_bytes(), 0o600, Existing::Keep).unwrap();
        (dir, Reader::open(Some(&path)))
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let (_dir, mut reader) = reader(
            "listen = [\"x\", 1]\nfronts = 7\nworkers = -1\nlisten_on = true\n\
             [tls]\nca = \"a\"\ncert_file = \"b\"\n",
        );
        assert!(
            reader
                .list("listen", |text| text.parse::<crate::link::endpoint::Endpoint>())
                .is_empty()
        );
        assert_eq!(reader.path("fronts"), None);
        assert_eq!(reader.number("workers", 8), None);
        reader.section("tls", |tls| (tls.path("ca"), tls.path("cert")));
        let problems = reader.finish().unwrap_err();
        let text = problems.to_string();
        for expected in [
            "listen: \"x\"",
            "list of texts, and here it is: 1",
            "fronts is a text",
            "workers is",
            "unknown key \"listen_on\"; the nearest known one is \"listen\"",
            "[tls] unknown key \"cert_file\"; the nearest known one is \"cert\"",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        assert_eq!(problems.0.len(), 6, "{text}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_configuration_or_a_problem(
            text in "([a-z]+ ?= ?|\\[+tls\\]+\n|\"[^\"]*\"|[-0-9]+|\n|.)*",
        ) {
            let (_dir, mut reader) = reader(&text);
            reader.list("a", str::parse::<u8>);
            reader.number("b", 3);
            reader.section("tls", |tls| tls.path("ca"));
            reader.sections("c", |c| c.parsed("d", str::parse::<u8>));
            reader.named_sections("e", |_, e| e.yes_no("f"));
            let _ = reader.finish();
        }
    }

    #[test]
    fn sections_with_names_are_read_with_them() {
        let (_dir, mut reader) = reader("[x.\"a.b\"]\non = true\n[x.c]\non = 1\nof = 2\n");
        let read =
            reader.named_sections("x", |name, section| (name.to_owned(), section.yes_no("on")));
        assert_eq!(read, [("a.b".to_owned(), Some(true)), ("c".to_owned(), None)]);
        let text = reader.finish().unwrap_err().to_string();
        assert!(text.contains("[x.\"c\"] on is true or false"), "{text}");
        assert!(text.contains("[x.\"c\"] unknown key \"of\""), "{text}");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let (dir, mut reader) = reader("a = \"x/y\"\nb = \"/z\"\n");
        assert_eq!(reader.path("a"), Some(dir.path().join("x/y")));
        assert_eq!(reader.path("b"), Some("/z".into()));
        reader.finish().unwrap();
    }

    #[test]
    fn malformed_and_missing_files_are_problems() {
        let (_dir, broken) = reader("a = ");
        assert!(broken.finish().unwrap_err().to_string().contains("no TOML"));
        let missing = Reader::open(Some(Path::new("/does/not/exist.toml"))).finish().unwrap_err();
        assert!(missing.to_string().contains("/does/not/exist.toml: the file cannot be read"));
    }
}
