//! The blocks of a page that a reader runs, with what the page's comments say of them:
//!
//! | comment before a block | what becomes of the block |
//! |---|---|
//! | none, and the block is `sh` | it is run |
//! | `<!-- documents: until WORDS -->` | it is run until a line of its output has all words |
//! | `<!-- documents: file NAME -->` | it is written to the file, and not run |
//! | `<!-- documents: name NAME -->` | it is run, and can be run again under the name |
//! | `<!-- documents: first NAME -->` | the block of the name is run again before it |
//! | `<!-- documents: not run: WHY -->` | it is left out, with the reason |

use anyhow::{Context, bail};

/// How such a comment begins and ends.
const BEGIN: &str = "<!-- documents: ";
const END: &str = " -->";

/// What becomes of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is run.
    Run,
    /// It is run until a line of its output has these words.
    Until(Vec<String>),
    /// It is the content of a file.
    File(String),
    /// It is left out, for a reason.
    NotRun(String),
}

/// A block of a page.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The line of the page that it begins at, from 1 on.
    pub(super) line: usize,
    /// Its content, without the page's indentation.
    pub(super) text: String,
    /// What becomes of it.
    pub(super) used: Use,
    /// The blocks that are run before it.
    pub(super) before: Vec<String>,
}

/// The blocks of a page that are run, written or left out for a reason, in the page's order.
///
/// # Errors
/// A comment says something unknown, or no block follows it; a block that comes first is not named.
pub(super) fn blocks(page: &str) -> anyhow::Result<Vec<Block>> {
    let mut found: Vec<Block> = Vec::new();
    let mut named: Vec<(String, String)> = Vec::new();
    let mut marks: Vec<(usize, &str)> = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let at = at + 1;
        let words = line.trim_start();
        if let Some(mark) = words.strip_prefix(BEGIN) {
            let mark = mark.strip_suffix(END);
            marks.push((at, mark.with_context(|| format!("line {at}: a comment does not end"))?));
        }
        let Some(language) = words.strip_prefix("```") else { continue };
        let indent = line.len() - words.len();
        let mut text = String::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| !line.trim().starts_with("```")) {
            text.push_str(line.get(indent..).unwrap_or_default());
            text.push('\n');
        }
        if language != "sh" && marks.is_empty() {
            continue;
        }
        let mut block = Block { line: at, text, used: Use::Run, before: Vec::new() };
        for (at, mark) in marks.drain(..) {
            let (word, rest) = mark.split_once(' ').unwrap_or((mark, ""));
            match (word, rest) {
                ("until", words) => {
                    block.used = Use::Until(words.split(' ').map(str::to_owned).collect());
                }
                ("file", name) => block.used = Use::File(name.to_owned()),
                ("name", name) => named.push((name.to_owned(), block.text.clone())),
                ("first", name) => {
                    let text = named.iter().find(|(known, _)| known == name);
                    let text = text.with_context(|| format!("line {at}: no block {name}"))?;
                    block.before.push(text.1.clone());
                }
                ("not", why) => {
                    let why = why.strip_prefix("run: ").context("a block without a reason")?;
                    block.used = Use::NotRun(why.to_owned());
                }
                _ => bail!("line {at}: nobody knows {mark:?}"),
            }
        }
        found.push(block);
    }
    match marks.first() {
        Some((at, _)) => bail!("line {at}: no block follows"),
        None => Ok(found),
    }
}

/// A text in which each word of the table stands for another one.
pub(super) fn filled(text: &str, words: &[(&str, &str)]) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut filled = String::new();
    let mut rest = text;
    'text: while let Some(first) = rest.chars().next() {
        let is_begin = !filled.ends_with(is_of_word);
        for (from, to) in words {
            let after = rest.strip_prefix(from).filter(|after| !after.starts_with(is_of_word));
            if let Some(after) = after.filter(|_| is_begin) {
                filled.push_str(to);
                rest = after;
                continue 'text;
            }
        }
        filled.push(first);
        rest = rest.get(first.len_utf8()..).unwrap_or_default();
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
1. Step:

   ```sh
   cat <<'END'
     x
   END
   ```

<!-- documents: file values.yaml -->
```yaml
a: 1
```
<!-- documents: name pod -->
<!-- documents: until node-1 linked -->
```sh
one
```
<!-- documents: first pod -->
```sh
two
```
```text
no
```
<!-- documents: not run: there is none -->
```sh
three
```
";

    #[test]
    fn blocks_are_what_the_comments_say() {
        let found = blocks(TEXT).unwrap();
        let shown: Vec<_> = found.iter().map(|one| (one.text.as_str(), &one.used)).collect();
        let until = Use::Until(vec!["node-1".into(), "linked".into()]);
        let none = Use::NotRun("there is none".into());
        let expected = [
            ("cat <<'END'\n  x\nEND\n", &Use::Run),
            ("a: 1\n", &Use::File("values.yaml".into())),
            ("one\n", &until),
            ("two\n", &Use::Run),
            ("three\n", &none),
        ];
        assert_eq!(shown, expected);
        assert_eq!(found[3].before, ["one\n"]);
        assert_eq!(found[0].line, 4);
    }

    #[test]
    fn a_comment_that_nobody_knows_or_that_has_no_block_is_an_error() {
        for wrong in [
            "<!-- documents: maybe -->\n```sh\n```\n",
            "<!-- documents: name x -->\n",
            "<!-- documents: first x -->\n```sh\n```\n",
            "<!-- documents: not run -->\n```sh\n```\n",
        ] {
            assert!(blocks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_whole_words_are_filled_in() {
        let words = [("NODE", "node-2"), ("--forget 12", "--forget 0")];
        let text = "remove NODE $NODE_NAME MY_NODE --forget 12 --forget 120";
        assert_eq!(
            filled(text, &words),
            "remove node-2 $NODE_NAME MY_NODE --forget 0 --forget 120"
        );
    }
}
