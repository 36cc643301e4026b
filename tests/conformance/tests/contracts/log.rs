//! Lines of the log that a peer can cause have a budget, and the lines that matter have none.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;

use crate::deploy::at;

/// The rooms that face peers. Each of their lines has the budget, or stands below.
const ROOMS: [&str; 10] = [
    "cloud/page/src",
    "cloud/src/lease",
    "cloud/src/nodes",
    "cloud/src/pki/enrolment.rs",
    "cloud/src/relay",
    "edge/calls/src/connection",
    "edge/calls/src/executor.rs",
    "edge/src/link",
    "proto/src/http2",
    "proto/src/link",
];

/// What the rooms log without the budget: certificates, leases, leaders, and what a peer cannot
/// cause, such as a file that has changed.
const NEVER_SUPPRESSED: [&str; 25] = [
    // Certificates: issue and end. Who has an older one could ask for its renewal without end.
    "issued a certificate to a node that joined",
    "renewed the certificate of a node",
    "the certificate of the edge has ended, and so does its link",
    "a socket relay was revoked; its connection is ended",
    "cannot use the new certificate; the old one stays in use",
    "the certificate was renewed; a new link uses it",
    "cannot request a new certificate",
    "certificates have changed; new connections use them",
    "certificates have changed and cannot be used",
    // Changes of leases. What a node only says of them has the budget.
    "lease moved to another node",
    "a volume is the node's\"",
    "a volume is the node's by its own word, which nothing contradicts",
    "node claims a lease without proof",
    // The page's tokens and files, and csi-cloud at its socket: once for each change.
    "the tokens of the page have changed",
    "no session of the page begins",
    "csi-cloud does not answer at its socket view",
    "csi-cloud answers again at its socket view",
    "the files of the page can be used again",
    "files of the page cannot be used",
    // Start and stop, and at the edge's own pace.
    "stopping: no more calls are taken",
    "the cloud refused this edge",
    "this node's routes have changed",
    "the environment's proxy is not used",
    "dialed through a proxy",
    "dialed directly",
];

/// What is logged elsewhere and never left out: the place, and the text.
const ELSEWHERE: [(&str, &str); 16] = [
    ("cloud/src/pki/first_start.rs", "made csi-cloud's CA and certificate"),
    ("cloud/src/pki/own.rs", "csi-cloud's own certificate was renewed"),
    ("proto/src/admin/command.rs", "changed by an operator"),
    ("cloud/src/admin/tokens.rs", "made a token"),
    ("cloud/src/csi/volume_call.rs", "cannot remove the home of a deleted id"),
    ("cloud/src/lib.rs", "this csi-cloud leads"),
    ("cloud/src/lib.rs", "this csi-cloud led, and another one may lead now"),
    ("cloud/src/lib.rs", "stopping: edges are told to go elsewhere"),
    ("cloud/src/state/older_store.rs", "the store is an older copy"),
    ("cloud/src/state/store/write_loop.rs", "the store takes no more changes"),
    ("edge/calls/src/fence.rs", "another csi-cloud leads"),
    ("edge/calls/src/driver_calls.rs", "the driver is asked to delete it"),
    ("edge/direct/src/lease/exclusive.rs", "is this node's"),
    ("edge/direct/src/lease/fence.rs", "a fenced volume is still with a guest here"),
    ("edge/direct/src/volume/hold.rs", "withheld: no guest gets its device"),
    ("edge/src/lib.rs", "stopping: no more calls are taken"),
];

/// A line of the log: its file, the macro that writes it, and what that macro is given.
struct LogLine {
    file: String,
    written_by: String,
    given: String,
}

/// Every line of the log that the code below a path writes, without its tests.
fn lines(path: &str) -> Vec<LogLine> {
    let mut lines = Vec::new();
    let mut paths = vec![at(path)];
    while let Some(next) = paths.pop() {
        if next.is_dir() {
            paths.extend(next.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else if !is_test(&next) {
            let text = std::fs::read_to_string(&next).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let file = next.strip_prefix(at("")).unwrap().display().to_string();
            read_lines(&file, code, &mut lines);
        }
    }
    lines
}

fn is_test(path: &Path) -> bool {
    let name = path.to_string_lossy();
    !name.ends_with(".rs") || name.ends_with("/tests.rs") || name.contains("/tests/")
}

fn read_lines(file: &str, code: &str, lines: &mut Vec<LogLine>) {
    for (start, _) in code.match_indices("!(") {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let before = code.get(..start).unwrap();
        let name = before.rsplit(|c| !is_name(c)).next().unwrap();
        if !["info", "warn", "error", "peer_info", "peer_warn"].contains(&name) {
            continue;
        }
        let rest = code.get(start + 2..).unwrap();
        let end = rest.find(");").or_else(|| rest.find("),")).unwrap_or(rest.len());
        let given = rest.get(..end).unwrap().replace("\\\n", "");
        let given = given.split_whitespace().collect::<Vec<_>>().join(" ");
        lines.push(LogLine { file: file.into(), written_by: name.into(), given });
    }
}

#[test]
fn every_line_of_the_rooms_that_face_peers_has_the_budget_or_is_never_suppressed() {
    let all: Vec<_> = ROOMS.into_iter().flat_map(lines).collect();
    assert!(all.len() > 60, "{}", all.len());
    let mut found = BTreeSet::new();
    for line in all.iter().filter(|line| !line.written_by.starts_with("peer_")) {
        let listed = NEVER_SUPPRESSED.iter().find(|text| line.given.contains(**text));
        let LogLine { file, given, .. } = line;
        found.insert(*listed.unwrap_or_else(|| {
            panic!("{file}: a peer can cause this line, so use peer_warn or peer_info: {given}")
        }));
    }
    for text in NEVER_SUPPRESSED {
        assert!(found.contains(text), "no line without the budget says this: {text}");
    }
}

#[test]
fn what_an_operator_must_see_is_never_suppressed() {
    for (path, text) in ELSEWHERE {
        let all = lines(path);
        let mut written = all.iter().filter(|line| line.given.contains(text)).peekable();
        assert!(written.peek().is_some(), "{path} does not say: {text}");
        let is_suppressed = written.any(|line| line.written_by.starts_with("peer_"));
        assert!(!is_suppressed, "{path}: {text}");
    }
}
