//! `csi-cloud top`: everything at a glance, printed again and again as plain text.

use std::collections::HashMap;
use std::io;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use proto::admin::client::Client;
use proto::admin::output::Output;
use proto::admin::table::Table;
use proto::names::DriverName;
use tokio::time::Instant;

use crate::admin::top::{PATH, TopDriver, TopView};
use crate::cli::calls;
use crate::cli::output::{PROGRAM, no_parameters};
use crate::config::show_arguments::Show;

/// Cursor to the corner, and nothing below it.
const CLEAR: &str = "\x1b[H\x1b[2J";
const DRIVERS: &[&str] =
    &["DRIVER", "NODES", "LINKED", "HOMES", "OPEN", "IN FLIGHT", "CALLS/S", "FAILED/S", "MEAN MS"];

/// The totals of a driver's calls since csi-cloud began.
#[derive(Clone, Copy)]
struct Totals {
    answered: u64,
    failed: u64,
    ms: u64,
}

/// The totals of the answer before, and when it came.
struct Before {
    at: Instant,
    totals: HashMap<DriverName, Totals>,
}

/// Shows it every `interval` seconds, `count` times or until a signal ends the process: there is
/// nothing to undo on the terminal.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(show: &Show, interval: u64, count: Option<u64>) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let mut before: Option<Before> = None;
    let mut ticks = tokio::time::interval(Duration::from_secs(interval));
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        ticks.tick().await;
        let top: TopView = client.ask(PATH, &no_parameters()).await?;
        let now = Instant::now();
        let mut out = io::stdout().lock();
        match show.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string(&top)?)?,
            Output::Table => draw(&mut out, &top, before.as_ref(), now)?,
        }
        out.flush()?;
        let totals = top.drivers.iter().map(|driver| (driver.name.clone(), Totals::of(driver)));
        before = Some(Before { at: now, totals: totals.collect() });
        shown += 1;
    }
    Ok(())
}

impl Totals {
    fn of(driver: &TopDriver) -> Self {
        Self { answered: driver.calls_answered, failed: driver.calls_failed, ms: driver.calls_ms }
    }
}

fn draw(
    out: &mut impl Write,
    top: &TopView,
    before: Option<&Before>,
    now: Instant,
) -> io::Result<()> {
    if io::stdout().is_terminal() {
        write!(out, "{CLEAR}")?;
    }
    writeln!(
        out,
        "{} of {} nodes linked, {} changes wait for the store\n",
        top.nodes_linked, top.nodes, top.store_queue
    )?;
    let rows: Vec<_> = top.drivers.iter().map(|driver| row(driver, before, now)).collect();
    Table::new(DRIVERS).rows(out, &rows)?;
    writeln!(out)?;
    Table::new(calls::HEADERS).rows(out, &top.calls.iter().map(calls::row).collect::<Vec<_>>())
}

fn row(driver: &TopDriver, before: Option<&Before>, now: Instant) -> Vec<String> {
    let mut row = vec![
        driver.name.to_string(),
        driver.nodes.to_string(),
        driver.nodes_linked.to_string(),
        driver.homes.to_string(),
        driver.intents_open.to_string(),
        driver.calls_in_flight.to_string(),
    ];
    let known = before.and_then(|before| Some((before.at, before.totals.get(&driver.name)?)));
    let Some((at, last)) = known else {
        row.extend(vec![String::new(); 3]);
        return row;
    };
    let time = now - at;
    let answered = driver.calls_answered.saturating_sub(last.answered);
    row.push(rate(answered, time));
    row.push(rate(driver.calls_failed.saturating_sub(last.failed), time));
    let mean = driver.calls_ms.saturating_sub(last.ms).checked_div(answered);
    row.push(mean.map(|ms| ms.to_string()).unwrap_or_default());
    row
}

fn rate(count: u64, time: Duration) -> String {
    // Exact below 2^53 calls.
    format!("{:.1}", count as f64 / time.as_secs_f64().max(0.001))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rates_are_of_the_time_between_two_looks() {
        let then = Instant::now();
        let driver = TopDriver {
            name: "d.example".parse().unwrap(),
            nodes: 3,
            nodes_linked: 2,
            homes: 7,
            intents_open: 1,
            calls_in_flight: 4,
            calls_answered: 30,
            calls_failed: 5,
            calls_ms: 1000,
        };
        assert_eq!(row(&driver, None, then).concat(), "d.example32714");
        let totals = Totals { answered: 10, failed: 5, ms: 900 };
        let totals = HashMap::from([(driver.name.clone(), totals)]);
        let before = Before { at: then, totals };
        let row = row(&driver, Some(&before), then + Duration::from_secs(10));
        assert_eq!(row[6..], ["2.0", "0.0", "5"]);
    }
}
