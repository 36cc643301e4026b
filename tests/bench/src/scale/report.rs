//! The measurements: rows, a table, and the targets.

use serde::Serialize;

use crate::report::Targets;

/// The edges of the largest fleet that KubeEdge publishes tests with.
const LARGE: usize = 100_000;

/// The step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// All edges link, to a csi-cloud that has no links.
    Zero,
    /// All are linked and none has been called.
    Idle,
    /// The same some minutes later.
    Later,
    /// All are linked and each has been called once.
    Called,
    /// The same when the HTTP/2 connections of those calls have ended.
    Ended,
    /// A volume that no edge has is deleted, as csi-provisioner does it.
    Unknown,
    /// All have left, come back and been called once more.
    Round,
    /// csi-cloud was killed and is back.
    Storm,
    /// All edges renew their certificates while they are called.
    Renewals,
    /// More edges dial than csi-cloud has CPU for.
    Overload,
}

/// One row; what a case does not measure is left out.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The step.
    pub case: Case,
    /// `ws` or `quic`.
    pub path: &'static str,
    /// Edges.
    pub links: usize,
    /// The round, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<usize>,
    /// The resident memory of csi-cloud before the first link, in KiB.
    pub rest_kib: u64,
    /// Its further resident memory, in KiB for each link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kib_per_link: Option<f64>,
    /// The same while all edges were gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_kib_per_link: Option<f64>,
    /// CPU time of csi-cloud, in percent of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// The latency of the slowest in a hundred calls, in µs: while all links idle, or renew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// The same before renewals, under the same load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_p99_us: Option<f64>,
    /// Links per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links_per_s: Option<f64>,
    /// CPU time of csi-cloud for a link that comes up, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_us_per_link: Option<f64>,
    /// When half of the edges were linked again, in s after csi-cloud was ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relinked_50_s: Option<f64>,
    /// The same for 90 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relinked_90_s: Option<f64>,
    /// The same for 99 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relinked_99_s: Option<f64>,
    /// The same for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relinked_s: Option<f64>,
    /// The links that are up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked: Option<usize>,
    /// How long a delete took, with all its calls, or since edges dial, in s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// How much more memory csi-cloud had resident meanwhile, at most, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grown_mib: Option<f64>,
    /// The links that have ended since one end heard nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<u64>,
    /// How often edges dialed until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dials: Option<u64>,
    /// The most memory that csi-cloud had resident, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_kib: Option<u64>,
}

impl Row {
    /// A row in which nothing has been measured but memory at rest.
    pub fn new(case: Case, path: &'static str, links: usize, rest_kib: u64) -> Self {
        Self {
            case,
            path,
            links,
            round: None,
            rest_kib,
            kib_per_link: None,
            gone_kib_per_link: None,
            cpu_percent: None,
            p99_us: None,
            quiet_p99_us: None,
            links_per_s: None,
            cloud_us_per_link: None,
            relinked_50_s: None,
            relinked_90_s: None,
            relinked_99_s: None,
            relinked_s: None,
            linked: None,
            took_s: None,
            grown_mib: None,
            silent: None,
            dials: None,
            peak_kib: None,
        }
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "case      path   links  round  rest MiB  KiB/link  gone KiB  CPU %  p99 \
         us  quiet us  links/s  cloud us/link   50 s   \
         90 s   99 s  all s  linked  took s  grown MiB  silent   dials  peak MiB\n",
    );
    let cell = |value: Option<f64>, width: usize, digits: usize| {
        value.map_or_else(|| format!("{:>width$}", "-"), |value| format!("{value:>width$.digits$}"))
    };
    for row in rows {
        let case = format!("{:?}", row.case).to_lowercase();
        let cells = [
            format!("{case:8}  {:4}  {:6}", row.path, row.links),
            cell(row.round.map(|round| round as f64), 5, 0),
            cell(Some(row.rest_kib as f64 / 1024.0), 8, 1),
            cell(row.kib_per_link, 8, 1),
            cell(row.gone_kib_per_link, 8, 1),
            cell(row.cpu_percent, 5, 1),
            cell(row.p99_us, 6, 0),
            cell(row.quiet_p99_us, 8, 0),
            cell(row.links_per_s, 7, 0),
            cell(row.cloud_us_per_link, 13, 0),
            cell(row.relinked_50_s, 5, 2),
            cell(row.relinked_90_s, 5, 2),
            cell(row.relinked_99_s, 5, 2),
            cell(row.relinked_s, 5, 2),
            cell(row.linked.map(|linked| linked as f64), 6, 0),
            cell(row.took_s, 6, 1),
            cell(row.grown_mib, 9, 0),
            cell(row.silent.map(|links| links as f64), 6, 0),
            cell(row.dials.map(|dials| dials as f64), 6, 0),
            cell(row.peak_kib.map(|kib| kib as f64 / 1024.0), 8, 1),
        ];
        text += &(cells.join("  ") + "\n");
    }
    text
}

/// The targets. A quantity that was not measured misses its target.
pub fn targets(rows: &[Row]) -> Targets {
    let mut targets = Targets::default();
    let mut target =
        |row: &Row, what: String, reached: Option<f64>, met: fn(&f64, &f64) -> bool, limit: f64| {
            let reached = reached.unwrap_or(f64::NAN);
            let what = format_args!("{} {} links: {what}", row.path, row.links);
            targets.add(what, format_args!("{reached:.1}"), met(&reached, &limit));
        };
    let mut at_most = |row: &Row, what: &str, reached: Option<f64>, limit: f64| {
        target(row, format!("{what} at most {limit:.1}"), reached, f64::le, limit);
    };
    for row in rows {
        let ws = row.path == "ws";
        if row.links == LARGE {
            large(row, &mut at_most);
        }
        // A link over QUIC was accepted with 46 KiB, when 44 had been measured.
        let idle = if ws { 18.0 } else { 46.0 };
        match row.case {
            Case::Idle if row.links == 2000 => {
                at_most(row, "idle KiB for a link", row.kib_per_link, idle);
                at_most(row, "% of a core", row.cpu_percent, 3.0);
                at_most(row, "MiB at rest", Some(row.rest_kib as f64 / 1024.0), 15.0);
            }
            Case::Later if row.links == 2000 => {
                at_most(row, "KiB for a link, minutes later", row.kib_per_link, idle);
            }
            Case::Idle if row.links == 20_000 => {
                at_most(row, "idle KiB for a link", row.kib_per_link, idle);
            }
            Case::Called if row.links == 2000 => {
                at_most(row, "KiB for a link that was called", row.kib_per_link, 80.0);
            }
            Case::Ended if row.links == 2000 => {
                at_most(row, "KiB for a link after a call", row.kib_per_link, 46.0);
            }
            Case::Renewals if row.links == 2000 => {
                let times = row.p99_us.zip(row.quiet_p99_us).map(|(p99, quiet)| p99 / quiet);
                at_most(row, "times the quiet p99 of calls during renewals", times, 1.5);
            }
            Case::Storm if row.links == 5000 => {
                let all = if ws { 5.0 } else { 8.0 };
                at_most(row, "s until 99 % are linked again", row.relinked_99_s, 5.0);
                at_most(row, "s until all are linked again", row.relinked_s, all);
            }
            Case::Overload => {
                let silent = row.silent.map(|n| n as f64);
                at_most(row, "links that were old ended by silence", silent, 0.0);
            }
            _ => {}
        }
    }
    for (row, growth) in growths(rows) {
        at_most(row, "% more KiB in the last round than in the first", Some(growth), 5.0);
    }
    for row in rows.iter().filter(|row| row.case == Case::Zero && row.links == 5000) {
        let limit = if row.path == "ws" { 2500.0 } else { 1500.0 };
        target(row, format!("links/s at least {limit:.0}"), row.links_per_s, f64::ge, limit);
    }
    targets
}

/// The targets of a fleet as large as KubeEdge's.
fn large(row: &Row, at_most: &mut impl FnMut(&Row, &str, Option<f64>, f64)) {
    let gib = |kib: Option<f64>| {
        kib.map(|kib| (row.rest_kib as f64 + kib * row.links as f64) / f64::from(1 << 20))
    };
    match row.case {
        Case::Idle | Case::Later => {
            at_most(row, "GiB resident", gib(row.kib_per_link), 4.5);
            at_most(row, "% of a core", row.cpu_percent, 35.0);
        }
        Case::Ended => at_most(row, "GiB resident after calls", gib(row.kib_per_link), 4.5),
        Case::Unknown => {
            at_most(row, "s until an unknown id is deleted", row.took_s, 90.0);
            at_most(row, "MiB more meanwhile", row.grown_mib, 64.0);
            let times = row.p99_us.zip(row.quiet_p99_us).map(|(p99, quiet)| p99 / quiet);
            at_most(row, "times the quiet p99 of calls to one node", times, 2.0);
        }
        Case::Storm => at_most(row, "s until all are linked again", row.relinked_s, 240.0),
        Case::Zero | Case::Called | Case::Round | Case::Renewals => {}
        Case::Overload => return,
    }
    if let Some(silent) = row.silent {
        at_most(row, "links ended by silence", Some(silent as f64), 0.0);
    }
}

/// By how many percent the last round needs more memory than the first.
fn growths(rows: &[Row]) -> Vec<(&Row, f64)> {
    let rounds = |first: &Row| {
        let same = |row: &&Row| {
            row.case == Case::Round && (row.path, row.links) == (first.path, first.links)
        };
        rows.iter().rfind(same)?.kib_per_link.zip(first.kib_per_link)
    };
    let first = rows.iter().filter(|row| row.round == Some(1));
    first
        .filter_map(|row| rounds(row).map(|(last, first)| (row, (last / first - 1.0) * 100.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_missed_or_was_not_measured_fails() {
        let mut row = Row::new(Case::Idle, "ws", 2000, 10_000);
        (row.kib_per_link, row.cpu_percent) = (Some(17.9), Some(2.9));
        assert!(targets(std::slice::from_ref(&row)).met);
        row.kib_per_link = Some(18.1);
        let Targets { text, met } = targets(std::slice::from_ref(&row));
        assert!(!met && text.contains("18.1 MISSED"), "{text}");
        row.kib_per_link = None;
        assert!(!targets(&[row]).met);
    }

    #[test]
    fn a_link_over_quic_may_have_more_memory() {
        let quic = |kib| Row {
            kib_per_link: Some(kib),
            cpu_percent: Some(2.9),
            ..Row::new(Case::Idle, "quic", 2000, 10_000)
        };
        assert!(targets(&[quic(45.9)]).met);
        assert!(!targets(&[quic(46.1)]).met);
    }

    #[test]
    fn renewals_cost_callers_little() {
        let renewals = |p99, quiet| {
            let row = Row::new(Case::Renewals, "ws", 2000, 0);
            targets(&[Row { p99_us: Some(p99), quiet_p99_us: quiet, ..row }])
        };
        assert!(renewals(300.0, Some(200.0)).met);
        assert!(!renewals(302.0, Some(200.0)).met && !renewals(300.0, None).met);
    }

    #[test]
    fn growth_is_the_last_round_against_the_first() {
        let round = |round, kib| Row {
            round: Some(round),
            kib_per_link: Some(kib),
            ..Row::new(Case::Round, "quic", 2000, 0)
        };
        assert!(targets(&[round(1, 60.0), round(2, 70.0), round(3, 62.0)]).met);
        assert!(!targets(&[round(1, 60.0), round(2, 60.0), round(3, 66.0)]).met);
    }
}
