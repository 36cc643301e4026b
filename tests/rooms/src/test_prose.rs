//! Tests of what counts as a sentence, and as a word of it.

use super::*;

/// Some words in a row, without an end.
fn words(count: usize) -> String {
    vec!["word"; count].join(" ")
}

/// The first lines and the lengths of the long sentences of one file.
fn long(file: &str, text: &str) -> Vec<(usize, usize)> {
    let found = all(&Tree::of(&[(file, text)])).unwrap();
    assert!(found.iter().all(|sentence| sentence.file == file));
    found.into_iter().map(|sentence| (sentence.line, sentence.words)).collect()
}

#[test]
fn a_sentence_has_twenty_five_words_at_most() {
    assert_eq!(long("a.md", &format!("{}.", words(25))), []);
    assert_eq!(long("a.md", &format!("Short.\n{}\nword – word.\n", words(24))), [(2, 26)]);
}

#[test]
fn a_sentence_ends_at_its_mark_or_with_what_holds_it() {
    let part = words(20);
    for end in [". ", "! ", "? ", "; ", ".) ", ".** ", "\n\n", ":\n- ", "\n2. ", "\n# ", "\n| "] {
        assert_eq!(long("a.md", &format!("{part}{end}{part}")), [], "{end:?}");
    }
    for open in [", ", ": ", "\n", "\n  ", ".", "… "] {
        assert_eq!(long("a.md", &format!("{part}{open}{part}")).len(), 1, "{open:?}");
    }
    assert_eq!(long("a.md", &format!("| {part} | {part} |\n|---|---|\n| {part} | {part} |\n")), []);
    assert_eq!(long("a.md", &format!("| a |\n|---|\n| {part} {part} |\n")), [(3, 40)]);
}

#[test]
fn code_is_one_word_and_a_link_is_its_text() {
    let part = words(22);
    let line = format!("{part} `csi-cloud node remove NODE\n--yes` [the guide](docs/a b c.md).");
    assert_eq!(long("a.md", &line), []);
    assert_eq!(long("a.md", &format!("{line} {part} [the whole guide](a.md) `a` | b")), [(2, 27)]);
}

#[test]
fn blocks_of_code_are_left_out() {
    let code = words(30);
    assert_eq!(long("a.md", &format!("```\n{code}\n```\n\n    {code}\n    {code}\n")), []);
    assert_eq!(long("a.md", &format!("- Item:\n\n      {code}\n\nEnd.\n\n    {code}\n")), []);
    assert_eq!(long("a.md", &format!("- Item\n\n# Head\n\n    {code}\n")), []);
    assert_eq!(long("a.md", &format!("1. Item\n\n    {code}\n")), [(3, 30)]);
}

#[test]
fn comments_are_read_and_strings_are_not() {
    let part = words(15);
    let code = format!(
        "//! {part}\n//! {part}\n// {part}\nuse a;\n// {part}\n\
         let a = \"// {part} {part}\"; // {part}\n// {part}\n\
         /// {part}\n/// {part}\nfn b() {{ c('\"'); }} // {part} {part}\n"
    );
    assert_eq!(long("a.rs", &code), [(1, 30), (8, 30), (10, 30)]);
    assert_eq!(long("proto/src/csi/gen/a.rs", &code), []);
    assert_eq!(long("a.proto", &code), []);
}
