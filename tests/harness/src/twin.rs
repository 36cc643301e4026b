//! A table of scenarios, each measured without us and behind us over both transports, and what is
//! allowed behind us.

use anyhow::ensure;

/// What is allowed behind us.
#[derive(Clone, Copy)]
pub enum Bound {
    /// So many, whatever it is alone.
    AtMost(f64),
    /// So many more than alone.
    More(f64),
}

/// The three measurements of a scenario.
pub struct TwinRow {
    /// The scenario's name.
    pub name: &'static str,
    /// What the numbers are, such as `s`.
    pub unit: &'static str,
    /// What is allowed behind us.
    pub bound: Bound,
    /// Without us.
    pub alone: f64,
    /// Over WebSocket and over QUIC.
    pub behind: [f64; 2],
}

impl TwinRow {
    fn is_worse(&self) -> bool {
        let most = match self.bound {
            Bound::AtMost(most) => most,
            Bound::More(more) => self.alone + more,
        };
        self.behind.iter().any(|measured| *measured > most)
    }

    fn bound(&self) -> String {
        match self.bound {
            Bound::AtMost(most) => format!("<= {most}"),
            Bound::More(more) => format!("<= alone + {more}"),
        }
    }
}

/// Prints the table. It has no rows if no scenario was chosen: there are two tables, and the text
/// of `ONLY` may be in the names of the other one alone.
///
/// # Errors
/// A scenario is worse behind us than it may be.
pub fn report(rows: &[TwinRow]) -> anyhow::Result<()> {
    println!("{:46} {:>8} {:>8} {:>8}  {:16}", "scenario", "alone", "ws", "quic", "bound");
    for row in rows {
        let TwinRow { name, unit, alone, behind: [ws, quic], .. } = row;
        let verdict = if row.is_worse() { "WORSE" } else { "ok" };
        println!(
            "{name:46} {alone:8.2} {ws:8.2} {quic:8.2}  {:16} {unit:12} {verdict}",
            row.bound()
        );
    }
    let worse = rows.iter().filter(|row| row.is_worse()).count();
    ensure!(worse == 0, "{worse} of {} scenarios are worse behind us", rows.len());
    Ok(())
}
