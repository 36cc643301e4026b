//! The part of runc's command line that tells which container is created from which bundle.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of runc, and of its `create`, that have a value as a word of its own.
const VALUED: [&str; 10] = [
    "--root",
    "--log",
    "--log-format",
    "--criu",
    "--rootless",
    "--bundle",
    "-b",
    "--console-socket",
    "--pid-file",
    "--preserve-fds",
];

/// A container is to be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Create {
    /// The container's id.
    pub(super) id: String,
    /// The directory with its `config.json`.
    pub(super) bundle: PathBuf,
    /// Where runc writes its first process' id.
    pub(super) pid_file: PathBuf,
    /// The file for runc's error messages.
    pub(super) log: Option<PathBuf>,
}

/// The words of a command line that are not options, and the values of those that have one.
fn words(args: &[OsString]) -> Option<(Vec<&str>, BTreeMap<&str, PathBuf>)> {
    let mut values = BTreeMap::new();
    let mut words = Vec::new();
    let mut args = args.iter().map(|arg| arg.to_str().unwrap_or_default());
    while let Some(arg) = args.next() {
        match arg.split_once('=') {
            _ if !arg.starts_with('-') => words.push(arg),
            Some((option, value)) => drop(values.insert(option, PathBuf::from(value))),
            None if VALUED.contains(&arg) => drop(values.insert(arg, PathBuf::from(args.next()?))),
            None => {}
        }
    }
    Some((words, values))
}

/// The container that a command line deletes, if it deletes one, and whether it does so by force:
/// containerd does when the shim has died.
pub(super) fn delete(args: &[OsString]) -> Option<(&str, bool)> {
    match words(args)?.0[..] {
        ["delete", id] => Some((id, args.iter().any(|arg| arg == "--force"))),
        _ => None,
    }
}

/// The container that a command line creates, if it creates one.
pub(super) fn create(args: &[OsString]) -> Option<Create> {
    let (words, mut values) = words(args)?;
    (words.first() == Some(&"create")).then(|| Create {
        id: words.get(1).copied().unwrap_or_default().to_owned(),
        bundle: values
            .remove("--bundle")
            .or_else(|| values.remove("-b"))
            .unwrap_or_else(|| ".".into()),
        pid_file: values.remove("--pid-file").unwrap_or_default(),
        log: values.remove("--log"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Create> {
        create(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_created_is_told_from_everything_else() {
        let wanted = Create {
            id: "id".into(),
            bundle: "/b".into(),
            pid_file: "/b/init.pid".into(),
            log: Some("/b/l".into()),
        };
        // As containerd's shim calls it.
        let line = "--root /run/r --log /b/l --log-format json create --bundle /b --pid-file \
                    /b/init.pid id";
        assert_eq!(of(line).as_ref(), Some(&wanted));
        let line = "--root=/run/r --log=/b/l --systemd-cgroup create -b /b --no-pivot \
                    --pid-file=/b/init.pid id";
        assert_eq!(of(line), Some(wanted));
        assert_eq!(of("create id").unwrap().bundle, PathBuf::from("."));
        for other in ["--root /run/create state id", "--root create kill --all id 9", "--log", ""] {
            assert_eq!(of(other), None, "{other}");
        }
        let line = ["--root", "/run/r", "delete", "--force", "id"].map(OsString::from);
        assert_eq!(delete(&line), Some(("id", true)));
        assert_eq!(delete(&line[2..3]), None);
        let line = ["--log=/l", "delete", "id"].map(OsString::from);
        assert_eq!(delete(&line), Some(("id", false)));
    }
}
