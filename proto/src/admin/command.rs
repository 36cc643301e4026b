//! An operator's command: one struct that is its arguments, its request and its JSON.
//!
//! Each program has one list of [`Served`] commands, from which its command line and the routes of
//! its admin socket are made.

use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::pin::Pin;

use anyhow::{Context, bail};
use clap::{ArgMatches, Args};
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::info;

use super::client::{Client, ErrorBody};
use super::command_line::{Asked, Entry, Printer, Run, add_flags};
use super::http1;
use super::output::{ListWriter, Output};
use crate::host::chain;
use crate::host::program::runtime;

/// A program that answers commands, by the data that it has.
pub trait Program: Sync + 'static {
    /// Its name.
    const NAME: &'static str;

    /// The admin socket, by the flags `--admin` and `--config`, and the places that were looked at.
    fn socket(admin: Option<PathBuf>, config: Option<PathBuf>) -> (PathBuf, Vec<PathBuf>);

    /// Refuses commands about links if another replica has the links.
    ///
    /// # Errors
    /// Another replica leads.
    fn check_leads(&self) -> Result<(), Refusal> {
        Ok(())
    }
}

/// A command that a running program answers.
///
/// The fields are the arguments on the command line and the JSON of the request. The flags that
/// say which program is asked are added to them.
pub trait Command<S: Program>: Args + Serialize + DeserializeOwned + Send + 'static {
    /// Its words on the command line; empty if it is not there.
    const NAME: &'static str;
    /// Its path at the admin socket.
    const PATH: &'static str;
    /// True if it changes nothing and tells no secret.
    const READS: bool = false;
    /// True if the answer needs more than a look into memory.
    const IS_SLOW: bool = !Self::READS;
    /// True if only the replica that has the links can answer.
    const NEEDS_LINKS: bool = false;
    /// The answer.
    type Answer: Answer;

    /// Carries the command out in the running program.
    fn carry_out(self, program: &S) -> impl Future<Output = Result<Self::Answer, Refusal>> + Send;

    /// Asks the running program, and prints the answer.
    fn run(self, asked: Asked) -> impl Future<Output = anyhow::Result<()>> {
        ask::<S, Self>(self, asked)
    }
}

/// An answer that can be printed.
pub trait Answer: Serialize + DeserializeOwned {
    /// True if it can be shown as JSON too.
    const HAS_FORMS: bool = true;

    /// Prints it.
    ///
    /// # Errors
    /// It cannot be written, or says that nothing was changed.
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()>;

    /// The `after` of the request for the next page, if there is one.
    fn next(&self) -> Option<Value> {
        None
    }
}

/// An item of a list: a row of its table.
pub trait Row: Serialize + DeserializeOwned {
    /// The headers of the table.
    const HEADERS: &'static [&'static str];

    /// The cells.
    fn row(&self) -> Vec<String>;

    /// Writes below the table what columns cannot hold.
    ///
    /// # Errors
    /// It cannot be written.
    fn below(_all: &[Self], _out: &mut dyn Write) -> io::Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// The result of a change.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// True if anything was done; if not, `text` says what would be.
    pub done: bool,
    /// For an operator.
    pub text: String,
}

/// A part of a list, and where the next part begins.
#[derive(Debug, Serialize, Deserialize)]
pub struct Page<T, C> {
    /// In order; may be empty though more comes.
    pub items: Vec<T>,
    /// The `after` of the next request; none at the end.
    pub next: Option<C>,
}

/// The reason why a command had no effect.
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// For an operator.
    pub text: String,
}

/// A command in a program's list.
pub struct Served<S: 'static> {
    /// At the command line.
    pub entry: Entry,
    /// Its path at the admin socket.
    pub path: &'static str,
    /// True if it changes nothing and tells no secret.
    pub reads: bool,
    needs_links: bool,
    carry_out: for<'a> fn(&'a S, &'a [u8]) -> Carried<'a>,
}

type Carried<'a> = Pin<Box<dyn Future<Output = Result<http1::Answer, Refusal>> + Send + 'a>>;

impl<S: Program> Served<S> {
    /// The command in the list.
    pub const fn of<C: Command<S>>() -> Self {
        let define = |command| add_flags(C::augment_args(command), S::NAME, C::Answer::HAS_FORMS);
        let parse = |matches: &ArgMatches| -> Result<Run, clap::Error> {
            let asked = Asked::parse(matches, C::Answer::HAS_FORMS);
            let command = C::from_arg_matches(matches)?;
            Ok(Box::new(|| runtime(1)?.block_on(command.run(asked))))
        };
        Self {
            entry: Entry { name: C::NAME, define, parse },
            path: C::PATH,
            reads: C::READS,
            needs_links: C::NEEDS_LINKS,
            carry_out: |program, body| Box::pin(carry_out::<S, C>(program, body)),
        }
    }

    /// The same command with other words.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.entry.name = name;
        self
    }
}

async fn carry_out<S: Program, C: Command<S>>(
    program: &S,
    body: &[u8],
) -> Result<http1::Answer, Refusal> {
    let body = if body.is_empty() { b"{}" } else { body };
    let command: C = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(format!("the parameters cannot be read: {error}")))?;
    let answer = command.carry_out(program).await?;
    http1::json(StatusCode::OK, &answer).map_err(|error| Refusal::failed(error.to_string()))
}

/// Carries out the command with this path.
///
/// # Errors
/// There is no such command, another replica has the links that it needs, or its parameters cannot
/// be read. Otherwise the command's own.
pub async fn answer<S: Program>(
    list: &[Served<S>],
    program: &S,
    path: &str,
    body: &[u8],
) -> Result<http1::Answer, Refusal> {
    let command = list.iter().find(|served| served.path == path).ok_or_else(|| {
        let name = S::NAME;
        Refusal::unknown(format!(
            "{path} is not a command of this {name}; are both of one version?"
        ))
    })?;
    if command.needs_links {
        program.check_leads()?;
    }
    (command.carry_out)(program, body).await
}

/// Asks the running program, page after page, and prints each before the next one is asked for.
///
/// # Errors
/// The program does not answer, refuses or changes nothing; or the output fails.
pub async fn ask<S: Program, C: Command<S>>(command: C, asked: Asked) -> anyhow::Result<()> {
    let (socket, tried) = S::socket(asked.admin, asked.config);
    let mut client = Client::connect(S::NAME, &socket).await.with_context(|| looked_at(&tried))?;
    let mut request = serde_json::to_value(command)?;
    let mut out = io::stdout().lock();
    let mut printer = Printer { output: asked.output, out: &mut out, list: None };
    loop {
        let answer: C::Answer = match C::IS_SLOW {
            true => client.carry_out(C::PATH, &request).await?,
            false => client.ask(C::PATH, &request).await?,
        };
        answer.print(&mut printer)?;
        let Some(next) = answer.next() else { break };
        if let Some(parameters) = request.as_object_mut() {
            parameters.insert("after".into(), next);
        }
    }
    printer.end()
}

/// The places that were looked at for the admin socket.
pub fn looked_at(tried: &[PathBuf]) -> String {
    let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
    format!("looked for the admin socket by {}", tried.join(", "))
}

impl Printer<'_> {
    fn add<T: Row>(&mut self, items: &[T]) -> anyhow::Result<()> {
        let list = self.list.get_or_insert_with(|| ListWriter::new(self.output, T::HEADERS));
        list.add(&mut self.out, items, T::row)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        match self.list.take() {
            Some(list) => Ok(list.end(&mut self.out)?),
            None => Ok(()),
        }
    }

    /// Prints one thing as JSON on one line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        Ok(writeln!(self.out, "{}", serde_json::to_string(value)?)?)
    }
}

impl<T: Row> Answer for Vec<T> {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        to.add(self)?;
        to.end()?;
        match to.output {
            Output::Table => Ok(T::below(self, to.out)?),
            Output::Json => Ok(()),
        }
    }
}

impl<T: Row, C: Serialize + DeserializeOwned> Answer for Page<T, C> {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        to.add(&self.items)
    }

    fn next(&self) -> Option<Value> {
        self.next.as_ref().and_then(|next| serde_json::to_value(next).ok())
    }
}

impl Answer for Done {
    const HAS_FORMS: bool = false;

    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        if !self.done {
            bail!("nothing was changed: {}", self.text);
        }
        Ok(writeln!(to.out, "{}", self.text)?)
    }
}

impl Done {
    /// A change was made: it is logged.
    pub fn logged(text: String) -> Self {
        info!(change = text, "changed by an operator");
        Self { done: true, text }
    }
}

impl Refusal {
    /// The command is wrong.
    pub fn bad(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    /// There is no such thing.
    pub fn unknown(text: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: text.into() }
    }

    /// The change would be wrong in the present state.
    pub fn conflict(text: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, text: text.into() }
    }

    /// The program itself failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, text: text.into() }
    }

    /// The program itself failed, by this error.
    pub fn because(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::failed(chain(error))
    }

    /// The answer that says so.
    pub fn answer(&self) -> http1::Answer {
        let body = ErrorBody { error: self.text.clone() };
        http1::json(self.status, &body).unwrap_or_default()
    }
}
