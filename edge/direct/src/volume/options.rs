//! The guest's mount options, out of a capability's mount flags.
//!
//! The guest mounts a device. Options of the host's bind mount, SELinux policy or mount program do
//! not reach it. Options that would change which bytes are mounted are refused.

/// Words of the host's tools and bind mounts, which guests do not understand.
const OF_THE_HOST: [&str; 18] = [
    "bind",
    "rbind",
    "private",
    "rprivate",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "unbindable",
    "runbindable",
    "remount",
    "defaults",
    "auto",
    "noauto",
    "_netdev",
    "nofail",
    "rw",
    "seclabel",
];
/// Options that are dropped whatever their value; SELinux policies are the host's.
const OF_THE_HOST_WITH_VALUES: [&str; 4] =
    ["context=", "fscontext=", "defcontext=", "rootcontext="];
/// Options that lead the mount elsewhere.
const REFUSED: [&str; 8] = [
    "loop",
    "offset=",
    "sizelimit=",
    "encryption=",
    "logdev=",
    "rtdev=",
    "journal_dev=",
    "journal_path=",
];

/// The options for the guest, each once and in order; `ro` comes last if the volume is read-only.
///
/// # Errors
/// The refused flag, and why.
pub(crate) fn for_guest(flags: &[String], read_only: bool) -> Result<Vec<String>, String> {
    let mut options: Vec<String> = Vec::new();
    // A policy's context contains commas.
    let of_policy =
        |flag: &&String| OF_THE_HOST_WITH_VALUES.iter().any(|host| flag.starts_with(host));
    let words = flags
        .iter()
        .filter(|flag| !of_policy(flag))
        .flat_map(|flag| flag.split(','))
        .map(str::trim);
    let mut read_only = read_only;
    for word in words.filter(|word| !word.is_empty()) {
        if let Some(bad) = REFUSED.iter().find(|bad| word.starts_with(**bad)) {
            return Err(format!(
                "mount option {word:?} is refused: a guest mounts its device whole ({bad})"
            ));
        }
        let is_the_hosts = OF_THE_HOST.contains(&word)
            || word.starts_with("x-")
            || OF_THE_HOST_WITH_VALUES.iter().any(|host| word.starts_with(host));
        read_only |= word == "ro";
        if !is_the_hosts && word != "ro" && !options.iter().any(|there| there == word) {
            options.push(word.to_owned());
        }
    }
    options.extend(read_only.then(|| "ro".to_owned()));
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &[&str], read_only: bool) -> Result<Vec<String>, String> {
        for_guest(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>(), read_only)
    }

    #[test]
    fn what_belongs_to_the_host_stays_there() {
        let flags =
            ["bind", "rbind", "rw", "noatime", "context=\"system_u:object_r:x:s0:c1,c2\"", "x-a"];
        assert_eq!(of(&flags, false).unwrap(), ["noatime"]);
        assert_eq!(of(&["nosuid,context=x"], false).unwrap(), ["nosuid"]);
        assert_eq!(
            of(&["rprivate,nosuid", "nosuid", " nodev ", ""], false).unwrap(),
            ["nosuid", "nodev"]
        );
        assert_eq!(of(&["fscontext=a", "_netdev", "defaults"], false).unwrap(), [""; 0]);
    }

    #[test]
    fn read_only_is_said_once() {
        assert_eq!(of(&["ro", "noatime"], true).unwrap(), ["noatime", "ro"]);
        assert_eq!(of(&["ro"], false).unwrap(), ["ro"]);
        assert_eq!(of(&["rw"], true).unwrap(), ["ro"]);
    }

    #[test]
    fn what_would_mount_something_else_is_refused() {
        for flag in ["loop", "offset=4096", "sizelimit=1", "logdev=/dev/sdb", "journal_dev=0x1"] {
            assert!(of(&["noatime", flag], false).is_err(), "{flag}");
        }
    }
}
