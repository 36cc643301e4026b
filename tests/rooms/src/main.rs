//! Checks over the sources that the compiler does not make: the order of rooms and crates, circles
//! of files, and door plates. They also find method names outside the table of RPCs, and
//! measure the sources.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::modules::House;
use crate::order::{DOCUMENT, Order};
use crate::table::Table;
use crate::tree::Tree;

mod circles;
mod faults;
mod imports;
mod manifest;
mod methods;
mod modules;
mod order;
mod paths;
mod prune;
mod ratchet;
mod resolve;
mod size;
mod table;
#[cfg(test)]
mod test_faults;
mod tree;

/// Checks and measures the sources of a checkout.
#[derive(Parser)]
struct Cli {
    /// The top of the checkout.
    #[arg(long, global = true, default_value = ".")]
    root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fail on imports against the order in docs/design/code-map.md, circles, and missing door
    /// plates.
    Check,
    /// Fail on production code that names a CSI method outside proto/src/csi.
    Methods,
    /// Fail if the files that changed since a commit have more of an idiom that slows readers down,
    /// more named closures, or a new type with another type's name.
    Ratchet {
        /// The commit.
        #[arg(long)]
        base: String,
    },
    /// Print the figures of each crate.
    Table {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rooms: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(&cli.root)?;
    match cli.command {
        Command::Check => check_order(&tree),
        Command::Methods => check_methods(&tree),
        Command::Ratchet { ref base } => {
            let faults = ratchet::faults(&cli.root, base)?;
            Ok(report(&faults, "what changed has no more closures, idioms and double names"))
        }
        Command::Table { json } => {
            let table = Table::of(&tree)?;
            print!("{}", if json { table.json()? + "\n" } else { table.text() });
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check_order(tree: &Tree) -> anyhow::Result<ExitCode> {
    let order = Order::read(tree)?;
    let order = order.with_context(|| format!("{DOCUMENT} has no block ```rooms"))?;
    let house = House::read(tree)?;
    let imports = imports::all(&house);
    let faults = faults::all(tree, &order, &house, &imports);
    let good = format!("{} files, every import runs downwards", house.files.len());
    Ok(report(&faults, &good))
}

fn check_methods(tree: &Tree) -> anyhow::Result<ExitCode> {
    let house = House::read(tree)?;
    let mentions = methods::all(tree, &house)?.into_iter();
    let faults: Vec<_> = mentions
        .map(|at| format!("{}:{}: {} stands outside the table of RPCs", at.file, at.line, at.what))
        .collect();
    Ok(report(&faults, "no method is named outside the table of RPCs"))
}

/// Prints the faults, or that there are none.
fn report(faults: &[String], good: &str) -> ExitCode {
    for fault in faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("rooms: {good}");
        return ExitCode::SUCCESS;
    }
    println!("rooms: {} faults", faults.len());
    ExitCode::FAILURE
}
