//! The commands that a next step names. Each works as it is when it is pasted into a shell.

use proto::csi::Id;
use proto::host::plain;
use proto::names::{DriverName, NodeName};

/// The command that sets the home of a volume, snapshot or group.
pub(super) fn adopt(driver: &DriverName, id: &Id, node: &NodeName) -> String {
    let kind = kind(id);
    volume("adopt", driver, id.text(), &format!(" --node {node}{kind}"))
}

/// The command that removes the home of a volume, snapshot or group.
pub(super) fn forget(driver: &DriverName, id: &Id) -> String {
    volume("forget", driver, id.text(), kind(id))
}

/// The command that releases a direct volume's lease, without `--yes`, so that the operator reads
/// the warning first.
pub(super) fn release(driver: &DriverName, id: &str, node: &NodeName) -> String {
    volume("release", driver, id, &format!(" --node {node}"))
}

fn volume(command: &str, driver: &DriverName, id: &str, flags: &str) -> String {
    let word = word(id);
    // An id that begins like a flag is none after these.
    if id.starts_with('-') {
        return format!("csi-cloud volume {command} {driver}{flags} -- {word}");
    }
    format!("csi-cloud volume {command} {driver} {word}{flags}")
}

/// The `--kind` flag; empty for a volume.
fn kind(id: &Id) -> &'static str {
    match id {
        Id::Volume(_) | Id::Name(..) => "",
        Id::Snapshot(_) => " --kind snapshot",
        Id::Group(_) => " --kind group",
    }
}

/// A name or id from outside as one word of a shell, whatever is in it.
pub(super) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", plain(text).replace('\'', r"'\''"))
}

/// Checks the commands of csi-cloud that a verdict names: each must be one.
#[cfg(test)]
pub(super) fn check_commands(verdict: &super::answer::Verdict) -> usize {
    use clap::Parser;

    let quoted = verdict.next.split('`').skip(1).step_by(2);
    let ours = quoted.filter(|command| command.starts_with("csi-cloud "));
    let parsed = ours.map(|command| {
        let parsed = crate::cli::Cli::try_parse_from(tests::words(command));
        assert!(parsed.is_ok(), "{command}: {}", parsed.err().unwrap());
    });
    parsed.count()
}

#[cfg(test)]
mod tests {
    use proto::admin::command::Command;

    use super::*;
    use crate::admin::admin_state::AdminState;
    use crate::admin::adopt_volume::AdoptVolume;
    use crate::admin::forget_volume::ForgetVolume;
    use crate::admin::release_volume::ReleaseVolume;

    /// The words of a command, as a shell reads them.
    pub(super) fn words(command: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        let mut letters = command.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\'' => quoted = !quoted,
                '\\' if !quoted => words.last_mut().unwrap().extend(letters.next()),
                ' ' if !quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        assert!(!quoted, "{command}");
        words
    }

    /// The command, as csi-cloud reads it.
    fn parsed<C: Command<AdminState>>(command: &str) -> C {
        let words = words(command);
        assert_eq!(words[..3].join(" "), format!("csi-cloud {}", C::NAME), "{command}");
        let arguments = C::augment_args(clap::Command::new("command"));
        let matches = arguments.try_get_matches_from(&words[2..]);
        C::from_arg_matches(&matches.unwrap_or_else(|why| panic!("{why}"))).unwrap()
    }

    #[test]
    fn a_command_about_a_volume_is_whole_whatever_its_id() {
        let driver: DriverName = "d.example".parse().unwrap();
        let n1: NodeName = "n1".parse().unwrap();
        for text in ["v1", "pool/a:b=c", "two words", "it's", "$(reboot)`", "-v", "--yes", "\\'"] {
            let release = release(&driver, text, &n1);
            let ReleaseVolume { id, node, yes, .. } = parsed(&release);
            assert_eq!((id.as_str(), &node, yes), (text, &n1, false), "{release}");
            for (key, expected) in [
                (Id::Volume(text.into()), "volume"),
                (Id::Snapshot(text.into()), "snapshot"),
                (Id::Group(text.into()), "group"),
            ] {
                let forget = forget(&driver, &key);
                let ForgetVolume { id, kind, .. } = parsed(&forget);
                assert_eq!((id.as_str(), kind.as_str()), (text, expected), "{forget}");
                let adopt = adopt(&driver, &key, &n1);
                let AdoptVolume { id, kind, node, .. } = parsed(&adopt);
                assert_eq!((id.as_str(), kind.as_str(), &node), (text, expected, &n1), "{adopt}");
            }
        }
        let release = release(&driver, "v1", &n1);
        assert_eq!(release, "csi-cloud volume release d.example v1 --node n1");
    }

    #[test]
    fn an_id_that_a_terminal_would_obey_is_escaped() {
        assert_eq!(word("a\nb"), r"'a\nb'");
        assert_eq!(word(""), "''");
    }
}
