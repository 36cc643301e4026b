//! Tests of each fault, on checkouts in memory.

use crate::faults;
use crate::imports;
use crate::modules::House;
use crate::order::{DOCUMENT, Order};
use crate::table::Table;
use crate::tree::Tree;

const NONE: [String; 0] = [];
const PLATE: &str = "//! A room.\n//! It may use what is below.\n";

/// A workspace with the crates `low` and `top`; `low` has the rooms a, b and c from the ground up.
fn tree(files: &[(&str, &str)]) -> Tree {
    let order = "```rooms\nlow: a b c\ntop: -\ncrates: low < top\n```\n";
    let plated = |(path, text): &(&str, &str)| {
        let is_file = path.ends_with(".rs") && !text.starts_with("//!");
        ((*path).to_owned(), format!("{}{text}", if is_file { PLATE } else { "" }))
    };
    let mut all = vec![
        ("Cargo.toml", "[workspace]\nmembers = [\"low\", \"top\"]"),
        ("low/Cargo.toml", "[package]\nname = \"low-level\"\n[dependencies]\ntop = \"1\""),
        (
            "top/Cargo.toml",
            "[package]\nname = \"top\"\n[dependencies]\n\
             ground = { package = \"low-level\", path = \"../low\" }",
        ),
        ("low/src/lib.rs", "mod a;\nmod b;\nmod c;\npub const ROOT: u8 = 1;"),
        ("low/src/a.rs", "pub struct A;"),
        ("low/src/b/mod.rs", "pub mod one;\npub mod two;\npub use one::One;"),
        ("low/src/b/one.rs", "pub struct One;"),
        ("low/src/b/two.rs", "pub struct Two;"),
        ("low/src/c.rs", "pub struct C;"),
        ("top/src/lib.rs", "mod x;"),
        ("top/src/x.rs", "pub struct X;"),
        (DOCUMENT, order),
    ];
    all.retain(|(path, _)| files.iter().all(|(changed, _)| changed != path));
    let all: Vec<_> = all.iter().chain(files).map(plated).collect();
    let all: Vec<_> = all.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    Tree::of(&all)
}

fn faults(files: &[(&str, &str)]) -> Vec<String> {
    let tree = tree(files);
    let order = Order::read(&tree).unwrap().unwrap();
    let house = House::read(&tree).unwrap();
    faults::all(&tree, &order, &house, &imports::all(&house))
}

/// The one fault of a checkout.
#[track_caller]
fn fault(files: &[(&str, &str)]) -> String {
    let mut faults = faults(files);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults.remove(0)
}

#[test]
fn a_house_in_order_has_no_fault() {
    let good = [
        ("low/src/c.rs", "use crate::b::One;\nuse super::a::A;\nfn f() { crate::b::two::Two; }"),
        ("low/src/b/two.rs", "use super::one::One;\nuse crate::a::A;\nuse std::fmt;"),
        ("top/src/x.rs", "use ground::b::One;\npub(crate) use ground::ROOT;"),
    ];
    assert_eq!(faults(&good), NONE);
}

#[test]
fn imports_that_run_upwards_are_found_in_every_form() {
    let above = "the room c is above the room a";
    for (code, written) in [
        ("use crate::c::C;", "crate::c::C"),
        ("use super::c::{self};", "super::c"),
        ("use crate::c::*;", "crate::c"),
        ("use crate::c as other;\nfn f() { other::C; }", "other::C"),
        ("fn f() -> Vec<crate::c::C> { loop {} }", "crate::c::C"),
        ("fn f() { match x { super::c::C => {} } }", "super::c::C"),
        ("fn f() { use super::c; }", "super::c"),
        ("mod deep { use super::super::c::C; }", "super::super::c::C"),
        ("impl crate::c::C { fn f() {} }", "crate::c::C"),
        ("impl Clone for crate::c::C {}", "crate::c::C"),
        ("impl crate::c::T for Vec<u8> {}", "crate::c::T"),
        ("fn f() { tokio::select! { x = y() => crate::c::f(x), } }", "crate::c::f"),
        ("macro_rules! m { () => { $crate::c::f() } }", "crate::c::f"),
        ("struct S { #[serde(with = \"crate::c\")] f: u8 }", "crate::c"),
        ("#[derive(Parser)] struct S { #[arg(value_parser = crate::c::f)] f: u8 }", "crate::c::f"),
        ("use crate as root;\nfn f() { root::c::C; }", "root::c::C"),
    ] {
        let found = faults(&[("low/src/a.rs", code)]);
        let expected = format!("imports low/src/c.rs ({written}), but {above}");
        assert!(found.iter().any(|fault| fault.contains(&expected)), "{code}: {found:#?}");
    }
}

#[test]
fn a_fault_names_both_files_and_the_line() {
    assert_eq!(
        fault(&[("low/src/a.rs", "\nuse crate::b::two::Two;")]),
        "low/src/a.rs:4: imports low/src/b/two.rs (crate::b::two::Two), \
         but the room b is above the room a"
    );
    assert_eq!(
        fault(&[("low/src/c.rs", "fn f() { crate::ROOT; }")]),
        "low/src/c.rs:3: imports low/src/lib.rs (crate::ROOT), \
         but lib.rs and main.rs are above the room c"
    );
    assert_eq!(
        fault(&[("low/src/c.rs", "use top::x::X;")]),
        "low/src/c.rs:3: imports top/src/x.rs (top::x::X), \
         but the crate top is not below the crate low"
    );
}

#[test]
fn a_reexport_leads_to_the_file_that_defines_the_item() {
    let through_b = ("low/src/b/mod.rs", "pub mod one;\npub mod two;\npub use crate::a::A;");
    // What is imported is below, but the name by which it is imported is not.
    let found = fault(&[through_b, ("low/src/a.rs", "pub struct A;\nmod m { use crate::b::A; }")]);
    assert!(found.contains("the room b is above the room a"), "{found}");
    // The file that defines it imports nothing back, though `mod.rs` does.
    let circle = [
        ("low/src/b/mod.rs", "pub mod one;\npub mod two;\npub use one::One;\nuse crate::a::A;"),
        ("low/src/c.rs", "use crate::b::One;"),
    ];
    assert_eq!(faults(&circle), NONE);
}

#[test]
fn an_import_through_the_own_mod_is_an_import_of_that_file() {
    assert_eq!(faults(&[("low/src/b/two.rs", "use super::One;")]), NONE);
    let mod_uses_two = "pub mod one;\npub mod two;\npub use one::One;\npub use two::Two;";
    let found =
        fault(&[("low/src/b/mod.rs", mod_uses_two), ("low/src/b/two.rs", "use super::One;")]);
    assert_eq!(
        found,
        "circle of 2 files\n  low/src/b/mod.rs:6 imports low/src/b/two.rs\n  \
         low/src/b/two.rs:3 imports low/src/b/mod.rs"
    );
}

#[test]
fn a_circle_is_shown_file_by_file() {
    let circle = [
        ("low/src/b/mod.rs", "mod one;\nmod two;\nmod three;"),
        ("low/src/b/one.rs", "pub struct One;\nuse super::two::Two;"),
        ("low/src/b/two.rs", "pub struct Two;\nfn f() { super::three::Three; }"),
        ("low/src/b/three.rs", "pub struct Three;\nimpl super::one::One {}"),
    ];
    assert_eq!(
        fault(&circle),
        "circle of 3 files\n  low/src/b/one.rs:4 imports low/src/b/two.rs\n  \
         low/src/b/two.rs:4 imports low/src/b/three.rs\n  \
         low/src/b/three.rs:4 imports low/src/b/one.rs"
    );
}

#[test]
fn a_crate_without_rooms_has_no_circles_either() {
    let circle = [
        ("top/src/lib.rs", "mod x;\nmod y;"),
        ("top/src/x.rs", "use crate::y::Y;\npub struct X;"),
        ("top/src/y.rs", "use crate::x::X;\npub struct Y;"),
    ];
    assert!(fault(&circle).starts_with("circle of 2 files"));
    let root =
        [("top/src/x.rs", "use crate::ROOT;"), ("top/src/lib.rs", "mod x;\nconst ROOT: u8 = 1;")];
    assert!(fault(&root).contains("lib.rs and main.rs are above"));
}

#[test]
fn crates_of_the_tests_are_declared_and_have_no_circles_either() {
    let order = "```rooms\nlow: a b c\ntop: -\ntests/t: -\ncrates: low < top < tests/t\n```\n";
    let workspace = "[workspace]\nmembers = [\"low\", \"top\", \"tests/t\"]";
    let manifest = "[package]\nname = \"t\"\n[dev-dependencies]\ntop = { path = \"../../top\" }";
    let program = "use top::x::X;\nmod one;\nmod two;\n#[test]\nfn f() {}";
    let mut files = vec![
        ("Cargo.toml", workspace),
        ("tests/t/Cargo.toml", manifest),
        ("tests/t/src/lib.rs", ""),
        ("tests/t/tests/suite/main.rs", program),
        ("tests/t/tests/suite/one.rs", "pub fn one() {}"),
        ("tests/t/tests/suite/two.rs", "use super::one::one;\npub fn two() {}"),
    ];
    let undeclared = faults(&files);
    assert_eq!(
        undeclared,
        ["tests/t/Cargo.toml: docs/design/code-map.md has no line for this crate"]
    );
    files.push((DOCUMENT, order));
    assert_eq!(faults(&files), NONE);
    files[4].1 = "use super::two::two;\npub fn one() {}";
    assert_eq!(
        fault(&files),
        "circle of 2 files\n  tests/t/tests/suite/one.rs:3 imports tests/t/tests/suite/two.rs\n  \
         tests/t/tests/suite/two.rs:3 imports tests/t/tests/suite/one.rs"
    );
    files[4].1 = "pub fn one() {}";
    let apart = order.replace(" < tests/t", "");
    files[6].1 = &apart;
    assert_eq!(
        fault(&files),
        "tests/t/tests/suite/main.rs:3: imports top/src/x.rs (top::x::X), \
         but the crate top is not below the crate tests/t"
    );
}

#[test]
fn tests_may_import_what_they_like() {
    let tested = [
        (
            "low/src/a.rs",
            "#[cfg(test)]\nuse crate::c::C;\n#[cfg(test)]\nmod tests;\n\
             #[cfg(all(test, unix))]\nimpl crate::c::C {}\n\
             struct S { #[cfg(test)] c: crate::c::C }\n\
             impl S { #[cfg(test)] fn f() { crate::c::C; } }\n\
             fn f() { #[cfg(test)] let c = crate::c::C; }\n\
             #[tokio::test]\nasync fn g() { crate::c::C; }",
        ),
        ("low/src/a/tests.rs", "use crate::c::C;"),
        ("low/src/lib.rs", "mod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod bench;"),
        ("low/src/bench.rs", "use crate::c::C;"),
    ];
    assert_eq!(faults(&tested), NONE);
    assert!(fault(&[("low/src/a.rs", "#[cfg(not(test))]\nuse crate::c::C;")]).contains("a.rs:4"));
}

#[test]
fn rooms_and_the_document_must_agree() {
    let undeclared =
        [("low/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"), ("low/src/d/mod.rs", "")];
    assert_eq!(
        fault(&undeclared),
        "low/src/d/mod.rs: docs/design/code-map.md declares no room `d` for this crate"
    );
    let block = "```rooms\nlow: a b c e\ntop: -\ncrates: low < top\n```\n";
    assert_eq!(
        fault(&[(DOCUMENT, block)]),
        "docs/design/code-map.md: the room low/src/e does not exist"
    );
    let found = faults(&[(DOCUMENT, "```rooms\nlow: a b c\nmid: -\n```\n")]);
    assert_eq!(
        found,
        [
            "top/Cargo.toml: docs/design/code-map.md has no line for this crate",
            "docs/design/code-map.md: mid is no crate of the workspace",
        ]
    );
    assert_eq!(fault(&[("low/src/d.rs", "")]), "low/src/d.rs: no `mod` names this file");
}

#[test]
fn a_room_has_a_door_plate_of_two_to_six_lines() {
    let seven = "//! x\n".repeat(7);
    for (path, text, lines) in [
        ("low/src/b/mod.rs", "//! Short.\npub mod one;\npub mod two;", 1),
        ("low/src/c.rs", seven.as_str(), 7),
        ("top/src/lib.rs", "//! Short.\nmod x;", 1),
    ] {
        assert_eq!(
            fault(&[(path, text)]),
            format!("{path}:1: the `//!` door plate has {lines} lines instead of 2 to 6")
        );
    }
}

#[test]
fn generated_code_is_below_everything() {
    let generated = [
        ("low/src/lib.rs", "mod a;\nmod b;\nmod c;\npub mod csi { include!(\"gen/csi.rs\"); }"),
        ("low/src/gen/csi.rs", "not Rust"),
        ("low/src/a.rs", "use crate::csi::volume::Type;\nuse Type::X;"),
        ("low/src/b/mod.rs", "pub mod one;\npub mod two;\nmod gen_of_b { include!(\"x\"); }"),
    ];
    assert_eq!(faults(&generated), NONE);
    let in_room = [
        ("low/src/c.rs", "//! x\n//! y\ninclude!(\"gen/csi.rs\");"),
        ("low/src/a.rs", "use crate::c::Message;"),
    ];
    assert!(fault(&in_room).contains("the room c is above the room a"));
}

#[test]
fn a_macro_of_a_module_around_is_an_import_of_its_file() {
    let code = "macro_rules! m { () => {} }\npub mod one;\npub mod two;\npub use one::One;";
    let found =
        fault(&[("low/src/b/mod.rs", code), ("low/src/b/one.rs", "m!();\npub struct One;")]);
    assert!(found.starts_with("circle of 2 files"), "{found}");
}

#[test]
fn a_program_may_use_its_own_library() {
    let program = [
        ("low/src/main.rs", "use low_level::a::A;\nfn main() { low_level::ROOT; }"),
        ("low/src/bin/other.rs", "use low_level::c::C;"),
    ];
    assert_eq!(faults(&program), NONE);
}

#[test]
fn the_table_counts_with_an_order_and_without() {
    let upwards = ("low/src/a.rs", "use crate::c::C;\npub struct A;");
    let back = ("low/src/c.rs", "use crate::a::A;\npub struct C;");
    let with_order = Table::of(&tree(&[upwards, back])).unwrap().json().unwrap();
    let rows: serde_json::Value = serde_json::from_str(&with_order).unwrap();
    assert_eq!(rows[0]["crate"], "low");
    assert_eq!(rows[0]["rooms"], 3);
    assert_eq!(rows[0]["files"], 6);
    assert_eq!(rows[0]["files_in_circles"], 2);
    assert_eq!(rows[0]["imports_upwards"], 1);
    let without = Table::of(&tree(&[upwards, back, (DOCUMENT, "# Title")])).unwrap();
    assert!(without.text().lines().nth(1).unwrap().contains("n/a"));
}

#[test]
fn parts_of_a_room_have_an_order_and_all_files() {
    let checked = |parts: &str, code: &str| {
        let order = format!("```rooms\nlow: a b c\n{parts}top: -\ncrates: low < top\n```\n");
        faults(&[(DOCUMENT, &order), ("low/src/b/one.rs", code)])
    };
    let good = "part low/src/b: lower = two\npart low/src/b: upper = one\n";
    let bad = "part low/src/b: lower = one\npart low/src/b: upper = two\n";
    let code = "use super::two::Two;\npub struct One;";
    assert_eq!(checked(good, code), NONE);
    let found = checked(bad, code);
    assert!(found.iter().any(|fault| fault.contains("upper is above lower")), "{found:#?}");
    let found = checked("part low/src/b: lower = two\n", code);
    assert!(found.iter().any(|fault| fault.contains("in no part of low/src/b")), "{found:#?}");
}
