//! Finds the sandbox that has a volume.
//!
//! A runtime leaves its sandbox's id as an empty file beside `mountInfo.json` and never removes it,
//! so several gather there. The socket of its shim tells which is alive. An id comes from outside,
//! so only a well-formed one becomes part of a path.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use tokio::net::UnixStream;

use super::mount_info::FILE;

/// The most ids read, the newest first. It bounds the work for a pod that restarts for ever.
const MAX_IDS: usize = 64;
/// The longest id; runtimes have 64 hexadecimal digits.
const MAX_ID: usize = 128;

/// The id of a sandbox, as containerd and CRI-O give it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sandbox(String);

impl Sandbox {
    /// Parses an id: a letter or digit, then letters, digits, `_`, `.` and `-`; two characters at
    /// least.
    pub fn parse(text: &str) -> Option<Self> {
        let first = text.bytes().next()?;
        let within = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        let good = first.is_ascii_alphanumeric() && (2..=MAX_ID).contains(&text.len());
        (good && text.bytes().all(within)).then(|| Self(text.to_owned()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sandboxes recorded in an entry's directory, the newest first.
///
/// # Errors
/// `NotFound` if there is no entry; the file system's otherwise.
pub fn recorded(entry: &Path) -> io::Result<Vec<Sandbox>> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(entry)? {
        let file = file?;
        let name = file.file_name();
        let Some(sandbox) = name.to_str().filter(|name| *name != FILE).and_then(Sandbox::parse)
        else {
            continue;
        };
        // A file that is gone, or without a time, counts as the oldest.
        let since =
            file.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        found.push((since, sandbox));
    }
    found.sort_by(|a, b| b.cmp(a));
    found.truncate(MAX_IDS);
    Ok(found.into_iter().map(|(_, sandbox)| sandbox).collect())
}

/// True if somebody listens at this socket.
pub async fn listens(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        // The queue of connections is full, so somebody listens.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    #[tokio::test]
    async fn a_shim_that_is_behind_with_its_work_is_alive() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        assert!(!listens(&socket).await);
        let listener = tokio::net::UnixSocket::new_stream().unwrap();
        listener.bind(&socket).unwrap();
        let _listener = listener.listen(1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&socket).await {
            waiting.push(stream);
            assert!(waiting.len() < 50, "it takes any number");
        }
        assert!(listens(&socket).await);
    }

    #[test]
    fn an_id_is_no_way_out_of_a_directory() {
        for good in ["ab", "0123abcdef", "pod_1.x-y"] {
            assert_eq!(Sandbox::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(MAX_ID + 1);
        for bad in ["", "a", "..", ".a", "-a", "_a", "a/b", "../b", "a b", "a\0", "ä1", &long] {
            assert_eq!(Sandbox::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_newest_sandbox_comes_first_and_other_files_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded(&dir.path().join("x")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for (name, age) in
            [("mountInfo.json", 9), ("zz-old", 1), ("aa-older", 0), ("mm-new", 5), (".tmp", 7)]
        {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(begin + Duration::from_secs(age)).unwrap();
        }
        let names: Vec<_> =
            recorded(dir.path()).unwrap().into_iter().map(|sandbox| sandbox.0).collect();
        assert_eq!(names, ["mm-new", "zz-old", "aa-older"]);
        for n in 0..100 {
            File::create(dir.path().join(format!("n{n}"))).unwrap();
        }
        assert_eq!(recorded(dir.path()).unwrap().len(), MAX_IDS);
    }
}
