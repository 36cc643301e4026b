//! Lines of `/proc/self/mountinfo` (proc(5)).

use std::path::PathBuf;

/// How mounts below a directory are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// From the host to here only.
    FromHost,
    /// Not at all.
    Private,
}

/// The mount point of a line, and its propagation; none if the line is no mount.
pub fn mount(line: &str) -> Option<(PathBuf, Propagation)> {
    let mut fields = line.split(' ');
    let point = unescaped(fields.nth(4)?);
    // A hyphen ends the optional fields.
    let optional: Vec<_> = fields.skip(1).take_while(|field| *field != "-").collect();
    let has = |tag: &str| optional.iter().any(|field| field.starts_with(tag));
    let propagation = match (has("shared:"), has("master:")) {
        (true, _) => Propagation::Shared,
        (false, true) => Propagation::FromHost,
        (false, false) => Propagation::Private,
    };
    Some((point, propagation))
}

/// The kernel writes a space, a tab, a newline and a backslash as octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let plain = text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    plain.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_point_and_its_propagation() {
        let of = |optional: &str| {
            mount(&format!(r"36 35 98:0 /mnt1 /a\040b\134040 rw {optional}- ext3 /dev/root rw"))
        };
        let at = |propagation| Some((PathBuf::from(r"/a b\040"), propagation));
        assert_eq!(of("shared:1 master:2 "), at(Propagation::Shared));
        assert_eq!(of("master:1 "), at(Propagation::FromHost));
        assert_eq!(of(""), at(Propagation::Private));
        assert_eq!(mount("36 35 98:0"), None);
    }
}
