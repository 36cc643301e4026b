//! Finds the long sentences of documents and comments.
//!
//! A sentence ends at `.`, `!`, `?` or `;` before white space. It also ends with its paragraph,
//! list item, heading, table cell or block of comments. Code between backticks is one word, and a
//! link is its text. Blocks of code are left out.

use std::str::FromStr;

use anyhow::{Context, anyhow};
use proc_macro2::{TokenStream, TokenTree};

use crate::tree::Tree;

/// The most words of a sentence.
const WORDS: usize = 25;
/// Sources that a generator wrote.
const GENERATED: [&str; 2] = ["proto/src/csi/gen/", "cloud/src/etcd/gen/"];

/// A line of prose with its number.
type Line<'a> = (usize, &'a str);

/// A sentence of too many words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    pub(crate) file: String,
    /// The line on which it begins.
    pub(crate) line: usize,
    pub(crate) words: usize,
}

/// All long sentences of a checkout.
///
/// # Errors
/// A source is not Rust.
pub(crate) fn all(tree: &Tree) -> anyhow::Result<Vec<Sentence>> {
    let mut found = Vec::new();
    for file in tree.below("") {
        let text = tree.get(file).unwrap_or_default();
        let is_generated = GENERATED.iter().any(|generated| file.starts_with(generated));
        let blocks = if file.ends_with(".md") {
            vec![(1..).zip(text.lines()).collect()]
        } else if file.ends_with(".rs") && !is_generated {
            comments(text).with_context(|| format!("cannot read {file}"))?
        } else {
            continue;
        };
        let paragraphs = blocks.iter().flat_map(|block| Paragraphs::of(block).done);
        let sentences = paragraphs.flat_map(|(line, text)| sentences(line, &plain(&text)));
        let long = sentences.filter(|(_, words)| *words > WORDS);
        found.extend(long.map(|(line, words)| Sentence { file: file.to_owned(), line, words }));
    }
    Ok(found)
}

/// The blocks of comments of a source: lines that follow each other with the same marker.
fn comments(source: &str) -> anyhow::Result<Vec<Vec<Line<'_>>>> {
    let mut code = source.as_bytes().to_vec();
    let tokens = TokenStream::from_str(source).map_err(|error| anyhow!("{error}"))?;
    blank_literals(tokens, &mut code);
    let code = String::from_utf8_lossy(&code).into_owned();
    let mut blocks: Vec<Vec<_>> = Vec::new();
    let mut above = None;
    for (number, (line, code)) in (1..).zip(source.lines().zip(code.lines())) {
        let Some((before, comment)) =
            code.find("//").and_then(|at| Some((code.get(..at)?, line.get(at..)?)))
        else {
            above = None;
            continue;
        };
        let marker = ["//!", "///"].into_iter().find(|marker| comment.starts_with(marker));
        let marker = marker.unwrap_or("//");
        let text = comment.strip_prefix(marker).unwrap_or_default();
        let text = (number, text.strip_prefix(' ').unwrap_or(text));
        match blocks.last_mut() {
            Some(block) if above == Some(marker) && before.trim().is_empty() => block.push(text),
            _ => blocks.push(vec![text]),
        }
        // What follows a comment beside code does not belong to it.
        above = before.trim().is_empty().then_some(marker);
    }
    Ok(blocks)
}

/// Overwrites the literals, in which `//` is no comment. A documentation comment is a literal too,
/// and stays.
fn blank_literals(tokens: TokenStream, code: &mut [u8]) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => blank_literals(group.stream(), code),
            TokenTree::Literal(literal) => {
                let bytes = code.get_mut(literal.span().byte_range()).unwrap_or_default();
                if !bytes.starts_with(b"//") {
                    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b'_');
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// The paragraphs of a Markdown text, each with its first line.
#[derive(Default)]
struct Paragraphs {
    done: Vec<(usize, String)>,
    open: Option<(usize, String)>,
}

impl Paragraphs {
    fn of(block: &[Line<'_>]) -> Self {
        let mut paragraphs = Self::default();
        let mut is_fenced = false;
        // Where the text of a list item begins; code is indented by four columns more.
        let mut margin = 0;
        for &(number, line) in block {
            let text = line.trim_start();
            let indent = line.len() - text.len();
            let is_fence = text.starts_with("```");
            is_fenced ^= is_fence;
            if is_fence || text.is_empty() || text.starts_with('<') {
                paragraphs.end();
            } else if is_fenced || (paragraphs.open.is_none() && indent >= margin + 4) {
                // A line of code.
            } else if text.starts_with(['#', '|']) {
                paragraphs.end();
                margin = margin.min(indent);
                let cells = plain(text);
                paragraphs.done.extend(cells.split('|').map(|cell| (number, cell.to_owned())));
            } else if let Some(item) = list_item(text) {
                paragraphs.end();
                margin = line.len() - item.len();
                paragraphs.open = Some((number, item.to_owned()));
            } else if let Some((_, open)) = &mut paragraphs.open {
                *open += "\n";
                *open += text;
            } else {
                margin = margin.min(indent);
                paragraphs.open = Some((number, text.to_owned()));
            }
        }
        paragraphs.end();
        paragraphs
    }

    fn end(&mut self) {
        self.done.extend(self.open.take());
    }
}

/// The text of a list item without its bullet or number.
fn list_item(text: &str) -> Option<&str> {
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let mark = if numbered.len() < text.len() { [". ", ") "] } else { ["- ", "* "] };
    mark.iter().find_map(|mark| numbered.strip_prefix(mark))
}

/// A text without the targets of its links, and with a letter for each piece of code.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', ']']) {
        let (before, found) = rest.split_at(at);
        plain += before;
        let (open, close) = if found.starts_with('`') { ("`", "`") } else { ("](", ")") };
        let inner = found.strip_prefix(open).and_then(|inner| inner.split_once(close));
        let Some((inner, after)) = inner else {
            rest = found.get(1..).unwrap_or_default();
            continue;
        };
        plain += if open == "`" { "C" } else { "" };
        plain.extend(inner.chars().filter(|c| *c == '\n'));
        rest = after;
    }
    plain + rest
}

/// The sentences of a paragraph: the line on which each begins, and its number of words.
fn sentences(first: usize, paragraph: &str) -> Vec<(usize, usize)> {
    let mut sentences = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (line, text) in (first..).zip(paragraph.split('\n')) {
        for word in text.split_whitespace() {
            let (_, words) = open.get_or_insert((line, 0));
            *words += usize::from(word.contains(char::is_alphanumeric));
            let end = word.trim_end_matches([')', ']', '*', '_', '"', '\'']);
            if end.ends_with(['.', '!', '?', ';']) {
                sentences.extend(open.take());
            }
        }
    }
    sentences.extend(open);
    sentences
}

#[cfg(test)]
#[path = "test_prose.rs"]
mod tests;
