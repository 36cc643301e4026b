//! `csi-cloud top`: everything at a glance, drawn again and again as plain text.

use std::collections::HashMap;
use std::io;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use proto::names::DriverName;
use tokio::time::Instant;

use crate::admin::shown::{TopDriver, TopShown};
use crate::cli::client::Client;
use crate::cli::show::{CALLS, call};
use crate::cli::table::Table;
use crate::config::admin_arguments::{Output, Show};

/// Cursor to the corner, and nothing below it.
const CLEAR: &str = "\x1b[H\x1b[2J";
const DRIVERS: &[&str] =
    &["DRIVER", "NODES", "LINKED", "HOMES", "OPEN", "IN FLIGHT", "CALLS/S", "FAILED/S", "MEAN MS"];

/// What was answered before, and when.
type Before = (Instant, HashMap<DriverName, (u64, u64, u64)>);

/// Shows it every `interval`, `count` times or until ctrl-c.
pub(super) async fn run(show: &Show, interval: Duration, count: Option<u64>) -> anyhow::Result<()> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let mut before: Option<Before> = None;
    let mut ticks = tokio::time::interval(interval);
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        // It ends well: there is nothing to undo on the terminal.
        tokio::select! {
            biased;
            _ = proto::host::tasks::signal() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let top: TopShown = client.ask("/top", &serde_json::Map::new()).await?;
        let now = Instant::now();
        let mut out = io::stdout().lock();
        match show.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string(&top)?)?,
            Output::Table => draw(&mut out, &top, before.as_ref(), now)?,
        }
        out.flush()?;
        let answered = |driver: &TopDriver| (driver.calls_answered, driver.calls_failed, driver.calls_ms);
        let answered = top.drivers.iter().map(|driver| (driver.name.clone(), answered(driver)));
        before = Some((now, answered.collect()));
        shown += 1;
    }
    Ok(())
}

fn draw(out: &mut impl Write, top: &TopShown, before: Option<&Before>, now: Instant) -> io::Result<()> {
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
    Table::new(CALLS).rows(out, &top.calls.iter().map(call).collect::<Vec<_>>())
}

fn row(driver: &TopDriver, before: Option<&Before>, now: Instant) -> Vec<String> {
    let mut row: Vec<_> =
        [driver.nodes, driver.nodes_linked, driver.homes, driver.intents_open, driver.calls_in_flight]
            .map(|count| count.to_string())
            .into();
    row.insert(0, driver.name.to_string());
    let then = before.and_then(|(at, totals)| Some((now - *at, totals.get(&driver.name)?)));
    let Some((time, (calls, failed, ms))) = then else {
        return [row, vec![String::new(); 3]].concat();
    };
    let answered = driver.calls_answered.saturating_sub(*calls);
    row.push(rate(answered, time));
    row.push(rate(driver.calls_failed.saturating_sub(*failed), time));
    let mean = driver.calls_ms.saturating_sub(*ms).checked_div(answered);
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
        let before = (then, HashMap::from([(driver.name.clone(), (10, 5, 900))]));
        let row = row(&driver, Some(&before), then + Duration::from_secs(10));
        assert_eq!(row[6..], ["2.0", "0.0", "5"]);
    }
}
