//! Each parser of bytes from outside, as a function of any bytes. It panics if a rule is broken.
//!
//! `make fuzz` calls these functions, and so does a property test, with the corpora in
//! `tests/fuzz/corpus`. A new parser is one function here, one line in [`ALL`] and one file in
//! `tests/fuzz/fuzz_targets`.

mod calls;
mod files;
mod link;

pub use calls::{edits, frame, head, lists, tokens};
pub use files::{configuration, import};
pub use link::{certificate, control, hello, joining, websocket, weights};

/// A parser's name, which is also its corpus's, and the parser.
pub type Parser = (&'static str, fn(&[u8]));

/// All parsers.
pub const ALL: [Parser; 13] = [
    ("hello", hello),
    ("control", control),
    ("joining", joining),
    ("certificate", certificate),
    ("lists", lists),
    ("head", head),
    ("frame", frame),
    ("edits", edits),
    ("tokens", tokens),
    ("configuration", configuration),
    ("import", import),
    ("websocket", websocket),
    ("weights", weights),
];

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;

    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
        let files = std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> = files.collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", dir.display());
        files.iter().map(|file| std::fs::read(file).unwrap()).collect()
    }

    #[test]
    fn each_fuzz_target_has_a_parser_and_a_corpus() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        for (dir, end) in [("fuzz_targets", ".rs"), ("corpus", "")] {
            let files = std::fs::read_dir(fuzz.join(dir)).unwrap();
            let mut found: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();
            let mut names: Vec<_> = ALL.iter().map(|(name, _)| format!("{name}{end}")).collect();
            names.sort();
            assert_eq!(found, names, "{dir}");
        }
    }

    #[test]
    fn every_file_of_the_corpora_passes() {
        for (name, parse) in ALL {
            for bytes in corpus(name) {
                parse(&bytes);
            }
        }
    }

    /// A change of a message: some bytes at a place are replaced.
    #[derive(Clone, Debug)]
    struct Change {
        at: Index,
        removed: usize,
        inserted: Vec<u8>,
    }

    fn change() -> impl Strategy<Value = Change> {
        let inserted = proptest::collection::vec(any::<u8>(), 0..5);
        (any::<Index>(), 0..5_usize, inserted).prop_map(|(at, removed, inserted)| Change {
            at,
            removed,
            inserted,
        })
    }

    fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
        for Change { at, removed, inserted } in changes {
            let from = at.index(bytes.len() + 1);
            let end = (from + removed).min(bytes.len());
            bytes.splice(from..end, inserted.iter().copied());
        }
        bytes
    }

    fn a_message() -> impl Strategy<Value = (Parser, Vec<u8>)> {
        let changes = proptest::collection::vec(change(), 0..4);
        (select(ALL.to_vec()), any::<Index>(), changes).prop_map(|(parser, which, changes)| {
            let corpus = corpus(parser.0);
            (parser, changed(corpus[which.index(corpus.len())].clone(), &changes))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn changed_messages_break_no_rule(((_, parse), bytes) in a_message()) {
            parse(&bytes);
        }
    }
}
