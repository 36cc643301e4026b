//! Our `csi.proto` declares the same as the official one. Messages, fields with their numbers,
//! types, labels and options, oneofs, enums, services and RPCs are compared. Comments and the order
//! of declarations do not count.
//!
//! The official file comes with a Go module; without Go the comparison is skipped, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use harness::tier;
use protox::Compiler;
use protox::prost_reflect::{DynamicMessage, Value};

const SPEC: &str = "github.com/container-storage-interface/spec";

/// The declarations by their paths, for example `message_type[ProbeResponse].field[ready].number`
/// is `1`.
type Facts = BTreeMap<String, String>;

#[test]
fn our_descriptor_is_the_official_one() {
    let official = match official() {
        Ok(dir) => facts(&dir).unwrap(),
        Err(reason) => {
            tier::skipped("official descriptor", &format!("{reason:#}"), false).unwrap();
            return;
        }
    };
    let ours = facts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/csi/v1")).unwrap();
    let keys: BTreeSet<_> = official.keys().chain(ours.keys()).collect();
    let differing = keys.into_iter().filter(|key| official.get(*key) != ours.get(*key));
    let lines: Vec<_> = differing
        .map(|key| format!("{key}: ours {:?}, official {:?}", ours.get(key), official.get(key)))
        .collect();
    assert!(lines.is_empty(), "{} facts differ:\n{}", lines.len(), lines.join("\n"));
}

/// A comparison that sees nothing would find no difference either.
#[test]
fn the_facts_hold_what_matters() {
    let facts = facts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/csi/v1")).unwrap();
    let count = |part: &str, end: &str| {
        facts.keys().filter(|key| key.starts_with(part) && key.ends_with(end)).count()
    };
    assert_eq!(count("service[", ".input_type"), 36);
    assert!(count("service[", ".server_streaming") > 0);
    assert!(count("message_type[", "[csi.v1.csi_secret]") > 10);
    assert!(count("message_type[", "[csi.v1.alpha_message]") > 10);
    let fact = |key: &str| facts.get(key).map(String::as_str);
    let secrets = "message_type[CreateVolumeRequest].field[secrets]";
    assert_eq!(fact(&format!("{secrets}.number")), Some("I32(5)"));
    assert_eq!(fact(&format!("{secrets}.options.[csi.v1.csi_secret]")), Some("Bool(true)"));
}

/// The directory of the official `csi.proto`, in the version that go.mod names.
fn official() -> anyhow::Result<PathBuf> {
    go(&["mod", "download", SPEC])?;
    let dir = PathBuf::from(go(&["list", "-m", "-f", "{{.Dir}}", SPEC])?.trim());
    ensure!(dir.join("csi.proto").exists(), "{SPEC} has no csi.proto");
    Ok(dir)
}

fn go(args: &[&str]) -> anyhow::Result<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../go");
    let output = Command::new("go").args(args).current_dir(dir).output();
    let output = output.context("Go is not installed; get it from your distribution or go.dev")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go {} failed: {}", args.join(" "), error.trim_end());
    Ok(String::from_utf8(output.stdout)?)
}

/// Compiles `csi.proto` in a directory.
fn facts(dir: &Path) -> anyhow::Result<Facts> {
    let mut compiler = Compiler::new([dir])?;
    compiler.include_imports(true).open_file("csi.proto")?;
    // Read with the file's own extensions at hand: only so are its options more than unknown
    // fields.
    let pool = compiler.descriptor_pool();
    let descriptor = pool.get_message_by_name("google.protobuf.FileDescriptorSet");
    let descriptor = descriptor.context("descriptor.proto is not imported")?;
    let set = DynamicMessage::decode(descriptor, compiler.encode_file_descriptor_set().as_slice())?;
    let files = set.get_field_by_name("file").context("no files")?.into_owned();
    let mut facts = Facts::new();
    for file in files.as_list().context("no files")?.iter().filter_map(Value::as_message) {
        if text(file, "package") == "csi.v1" {
            walk("", file, &mut facts);
        }
    }
    facts.remove("name");
    Ok(facts)
}

/// Notes everything that is set in a message and below it.
fn walk(path: &str, message: &DynamicMessage, facts: &mut Facts) {
    for (field, value) in message.fields() {
        note(&format!("{path}{}", field.name()), value, facts);
    }
    for (extension, value) in message.extensions() {
        note(&format!("{path}[{}]", extension.full_name()), value, facts);
    }
}

fn note(path: &str, value: &Value, facts: &mut Facts) {
    match value {
        Value::Message(message) => walk(&format!("{path}."), message, facts),
        Value::List(values) => {
            for (index, value) in values.iter().enumerate() {
                let name =
                    value.as_message().map(|message| text(message, "name")).unwrap_or_default();
                let key = if name.is_empty() { index.to_string() } else { name };
                note(&format!("{path}[{key}]"), value, facts);
            }
        }
        scalar => {
            facts.insert(path.to_owned(), format!("{scalar:?}"));
        }
    }
}

fn text(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
