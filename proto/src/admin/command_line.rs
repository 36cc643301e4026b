//! The command line, from one list of commands.

use std::io;
use std::io::Write;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::EnumValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand, value_parser};

use super::output::{ListWriter, Output};

/// The work of a command whose arguments were parsed.
pub type Run = Box<dyn FnOnce() -> anyhow::Result<()>>;

/// A command of the command line.
pub struct Entry {
    /// Its words, for example `node remove`; empty if it is not on the command line.
    pub name: &'static str,
    pub(super) define: fn(clap::Command) -> clap::Command,
    pub(super) parse: fn(&ArgMatches) -> Result<Run, clap::Error>,
}

/// A command that needs no running program. Its fields are its arguments.
pub trait Local: Args + 'static {
    /// Its words on the command line.
    const NAME: &'static str;

    /// Runs it.
    ///
    /// # Errors
    /// It failed; the text says why, and what to do.
    fn run(self) -> anyhow::Result<()>;
}

/// All commands of a program but `serve`.
pub trait CommandList {
    /// The words that begin several commands, and the help for them.
    const GROUPS: &'static [(&'static str, &'static str)];

    /// The commands that are gone, and their replacements.
    const GONE: &'static [(&'static str, &'static str)] = &[];

    /// The commands; one before those that begin with its words.
    fn entries() -> impl Iterator<Item = &'static Entry>;
}

/// A command of a list, parsed.
pub struct Parsed<L> {
    run: Run,
    list: PhantomData<L>,
}

/// Who is asked, and how the answer is shown.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `--admin`.
    pub admin: Option<PathBuf>,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--output`.
    pub output: Output,
}

/// Prints the answers to one command.
pub struct Printer<'o> {
    /// The form.
    pub output: Output,
    /// Where to.
    pub out: &'o mut dyn Write,
    pub(super) list: Option<ListWriter>,
}

const ADMIN: &str = "admin";
const CONFIG: &str = "config";
const OUTPUT: &str = "output";

impl Entry {
    /// A command that needs no running program.
    pub const fn local<C: Local>() -> Self {
        let parse = |matches: &ArgMatches| -> Result<Run, clap::Error> {
            let command = C::from_arg_matches(matches)?;
            Ok(Box::new(|| command.run()))
        };
        Self { name: C::NAME, define: C::augment_args, parse }
    }
}

impl<L> Parsed<L> {
    /// Runs the command.
    ///
    /// # Errors
    /// The command's own.
    pub fn run(self) -> anyhow::Result<()> {
        match (self.run)() {
            // The reader of the output has gone, for example `head`.
            Err(error) if is_broken_pipe(&error) => Ok(()),
            ran => ran,
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl<L: CommandList> FromArgMatches for Parsed<L> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut words = String::new();
        let mut at = matches;
        let mut found = None;
        while let Some((word, below)) = at.subcommand() {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(word);
            at = below;
            found =
                L::entries().find(|entry| entry.name == words).map(|entry| (entry, at)).or(found);
        }
        if let Some((gone, instead)) = L::GONE.iter().find(|(gone, _)| *gone == words) {
            let text = format!("the command `{gone}` is gone: use `{instead}`\n");
            return Err(clap::Error::raw(ErrorKind::InvalidSubcommand, text));
        }
        let (entry, matches) =
            found.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        Ok(Self { run: (entry.parse)(matches)?, list: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<L: CommandList> Subcommand for Parsed<L> {
    fn augment_subcommands(program: clap::Command) -> clap::Command {
        let grouped = L::GROUPS.iter().fold(program, |program, (name, about)| {
            let group = |group: clap::Command| {
                group.about(*about).subcommand_required(true).arg_required_else_help(true)
            };
            insert(program, name, group)
        });
        let known = L::GONE.iter().fold(grouped, |program, (gone, _)| {
            let any =
                Arg::new("any").num_args(0..).allow_hyphen_values(true).trailing_var_arg(true);
            program.subcommand(clap::Command::new(*gone).hide(true).arg(any))
        });
        let entries = L::entries().filter(|entry| !entry.name.is_empty());
        entries.fold(known, |program, entry| insert(program, entry.name, entry.define))
    }

    fn augment_subcommands_for_update(program: clap::Command) -> clap::Command {
        Self::augment_subcommands(program)
    }

    fn has_subcommand(name: &str) -> bool {
        L::entries().any(|entry| entry.name.split(' ').next() == Some(name))
            || L::GONE.iter().any(|(gone, _)| *gone == name)
    }
}

/// Defines the command with these words below `parent`, and the commands on the way to it.
fn insert(
    parent: clap::Command,
    words: &'static str,
    define: impl FnOnce(clap::Command) -> clap::Command,
) -> clap::Command {
    let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
    // A command that shows something may have others below it, which change something.
    let is_command = parent.get_arguments().next().is_some();
    let known = match parent.find_subcommand(word) {
        Some(_) => parent,
        None => parent.subcommand(clap::Command::new(word)),
    };
    let inserted = known.mut_subcommand(word, |command| match rest {
        "" => define(command),
        rest => insert(command, rest, define),
    });
    match is_command {
        true => inserted.args_conflicts_with_subcommands(true),
        false => inserted,
    }
}

/// Adds the flags that say which `program` is asked, and, if `has_forms`, how to show the answer.
/// A command with kinds has them at each kind.
pub(super) fn add_flags(
    command: clap::Command,
    program: &'static str,
    has_forms: bool,
) -> clap::Command {
    let kinds: Vec<_> = command.get_subcommands().map(|kind| kind.get_name().to_owned()).collect();
    if !kinds.is_empty() {
        return kinds.into_iter().fold(command, |command, kind| {
            command.mut_subcommand(kind, |kind| add_flags(kind, program, has_forms))
        });
    }
    let admin = "The admin socket [default: what --config says, else the first that is there]";
    let config = format!("The configuration of {program}, which names the admin socket");
    let asked = command.args([
        Arg::new(ADMIN).long(ADMIN).value_name("PATH").help(admin),
        Arg::new(CONFIG).long(CONFIG).value_name("FILE").help(config),
    ]);
    let asked = asked
        .mut_arg(ADMIN, |arg| arg.value_parser(value_parser!(PathBuf)))
        .mut_arg(CONFIG, |arg| arg.value_parser(value_parser!(PathBuf)));
    match has_forms {
        true => asked.arg(
            Arg::new(OUTPUT)
                .short('o')
                .long(OUTPUT)
                .value_name("FORMAT")
                .value_parser(EnumValueParser::<Output>::new())
                .default_value("table")
                .help("As a table or as JSON, whose field names do not change"),
        ),
        false => asked,
    }
}

impl Asked {
    /// Reads the flags of [`add_flags`].
    pub(super) fn parse(matches: &ArgMatches, has_forms: bool) -> Self {
        let mut leaf = matches;
        while let Some((_, below)) = leaf.subcommand() {
            leaf = below;
        }
        let output = has_forms.then(|| leaf.get_one(OUTPUT).copied()).flatten();
        Self {
            admin: leaf.get_one(ADMIN).cloned(),
            config: leaf.get_one(CONFIG).cloned(),
            output: output.unwrap_or(Output::Table),
        }
    }
}
