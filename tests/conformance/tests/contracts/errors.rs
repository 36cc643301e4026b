//! `docs/reference/errors.md` and the error types agree: each variant's code has a row, and each
//! row's variants have its code.

#![expect(clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;

use tonic::Code;

type Cases = &'static [(&'static str, Code)];

/// The error types, by the word that names them on the page.
const TYPES: [(&str, Cases); 3] = [
    ("cloud", cloud::error::Error::CASES),
    ("edge/calls", edge_calls::error::Error::CASES),
    ("edge/direct", edge_direct::error::Error::CASES),
];

const CODES: [(&str, Code); 17] = [
    ("OK", Code::Ok),
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

/// A row of the page: what happened, its codes, and the variants by their error type.
#[derive(Debug)]
struct Row<'a> {
    what: &'a str,
    codes: Vec<Code>,
    variants: Vec<(&'a str, &'a str)>,
}

fn row(line: &str) -> Option<Row<'_>> {
    let cells: Vec<_> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').collect();
    let [what, codes, _, _, variants] = cells.as_slice() else {
        panic!("a row has five cells: {line}");
    };
    let words = codes.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let code = |word: &str| CODES.iter().find(|(name, _)| *name == word).map(|(_, code)| *code);
    let codes: Vec<_> = words.filter_map(code).collect();
    // Between every other pair of backquotes there is a name.
    let named = variants.split('`').skip(1).step_by(2);
    let variants = named
        .map(|name| name.split_once(' ').unwrap_or_else(|| panic!("no type in {name:?}: {line}")));
    Some(Row { what: what.trim(), codes, variants: variants.collect() })
}

/// The rows of all tables, without their heads.
fn rows(page: &str) -> Vec<Row<'_>> {
    let rows = page.lines().filter_map(row);
    let is_case = |row: &Row<'_>| row.what != "what happened" && !row.what.starts_with("---");
    rows.filter(is_case).collect()
}

/// The differences between the page and the types, one line for each.
fn faults(page: &str, types: &[(&str, Cases)]) -> BTreeSet<String> {
    let rows = rows(page);
    let mut faults = BTreeSet::new();
    for (name, cases) in types {
        for (variant, code) in *cases {
            let is_shown = |row: &Row<'_>| {
                row.variants.contains(&(*name, *variant)) && row.codes.contains(code)
            };
            if !rows.iter().any(is_shown) {
                faults.insert(format!("no row for {name} {variant} with {code:?}"));
            }
        }
    }
    for row in &rows {
        if row.codes.is_empty() {
            faults.insert(format!("no code in the row {:?}", row.what));
        }
        for (name, variant) in &row.variants {
            let cases = types.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, cases)| cases);
            let has = |(of, code): &(&str, Code)| of == variant && row.codes.contains(code);
            if !cases.iter().any(has) {
                faults.insert(format!("no {name} {variant} with a code of {:?}", row.what));
            }
        }
    }
    faults
}

#[test]
fn each_variant_and_code_has_a_row_and_each_row_names_what_there_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = std::fs::read_to_string(path.join("docs/reference/errors.md")).unwrap();
    assert!(rows(&page).len() > 50, "the tables were not found");
    assert_eq!(faults(&page, &TYPES), BTreeSet::new());
}

#[test]
fn a_page_that_differs_is_found_out() {
    const CASES: Cases = &[("Away", Code::Unavailable), ("Gone", Code::NotFound)];
    let found = |rows: &str| {
        let head = "| what happened | code | why | shown by | error |\n|---|---|---|---|---|\n";
        Vec::from_iter(faults(&format!("{head}{rows}"), &[("a", CASES)]))
    };
    let away = "| x | UNAVAILABLE, naming it | y | z | `a Away` |\n";
    assert_eq!(found(&format!("{away}| g | NOT_FOUND | y | z | `a Gone` |")), [""; 0]);
    assert_eq!(found(away), ["no row for a Gone with NotFound"]);
    for (gone, wrong) in [
        ("| g | ABORTED | y | z | `a Gone` |", "no a Gone with a code of \"g\""),
        ("| g | NOT_FOUND | y | z | `a Gone`, `a Other` |", "no a Other with a code of \"g\""),
        ("| g | NOT_FOUND | y | z | `b Gone` |", "no b Gone with a code of \"g\""),
        ("| g | later | y | z | `a Gone` |", "no code in the row \"g\""),
    ] {
        assert!(found(&format!("{away}{gone}")).contains(&wrong.to_owned()), "{gone}");
    }
}
