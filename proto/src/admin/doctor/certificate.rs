//! Judges the validity of a certificate, and this clock by another one.

use std::time::{Duration, SystemTime};

use super::finding::Finding;
use crate::admin::cells::age;
use crate::names::certificate::Validity;

/// With less than this part of its life left, a certificate is overdue for renewal.
const LAST_PART: u32 = 4;

/// Judges the validity of a certificate; `advice` says how to get another one.
pub fn certificate(
    check: &str,
    about: impl Into<String>,
    validity: &Validity,
    now: SystemTime,
    advice: &str,
) -> Finding {
    let about = about.into();
    if let Ok(early) = validity.not_before.duration_since(now)
        && !early.is_zero()
    {
        let found = format!("it is valid in {} only", age(early));
        return Finding::fault(
            check,
            about,
            found,
            format!("is this clock right? If so, {advice}"),
        );
    }
    if validity.ended(now) {
        let since = now.duration_since(validity.not_after).unwrap_or_default();
        let found = format!("it ended {} ago", age(since));
        return Finding::fault(
            check,
            about,
            found,
            format!("is this clock right? If so, {advice}"),
        );
    }
    let left = validity.left(now);
    let found = format!("it is valid for {} more", age(left));
    if left < validity.life() / LAST_PART {
        return Finding::warning(check, about, found, advice);
    }
    Finding::ok(check, about, found)
}

/// Two clocks agree up to this difference.
const SKEW: Duration = Duration::from_secs(10);
/// Beyond this difference, the other side refuses a certificate that was just issued.
const FAR: Duration = Duration::from_secs(300);

/// Judges this clock by the time at another place.
pub fn clock(about: impl Into<String>, now: SystemTime, there: SystemTime) -> Finding {
    const CHECK: &str = "clock";
    let (apart, word) = match now.duration_since(there) {
        Ok(ahead) => (ahead, "ahead"),
        Err(error) => (error.duration(), "behind"),
    };
    let about = about.into();
    if apart <= SKEW {
        return Finding::ok(CHECK, about, "both clocks agree");
    }
    let found = format!("this clock is {} {word}", age(apart));
    let advice = "set both clocks by NTP (chronyc tracking, timedatectl); certificates are valid \
                  by the clock of whoever looks at them";
    match apart > FAR {
        true => Finding::fault(CHECK, about, found, advice),
        false => Finding::warning(CHECK, about, found, advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::doctor::Verdict;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_certificate_is_judged_by_its_begin_its_end_and_what_is_left() {
        let begin = SystemTime::UNIX_EPOCH + DAY * 1000;
        let validity = Validity { not_before: begin, not_after: begin + DAY * 30 };
        for (now, verdict, found) in [
            (begin - DAY, Verdict::Fault, "in 24h only"),
            (begin, Verdict::Ok, "30d more"),
            (begin + DAY * 22, Verdict::Ok, "8d more"),
            (begin + DAY * 23, Verdict::Warning, "7d"),
            (begin + DAY * 30, Verdict::Warning, "0s more"),
            (begin + DAY * 40, Verdict::Fault, "ended 10d ago"),
        ] {
            let finding = certificate("certificate", "it", &validity, now, "renew it");
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.found.contains(found), "{finding:?}");
            assert_eq!(finding.advice.contains("renew it"), verdict != Verdict::Ok);
        }
    }

    #[test]
    fn a_clock_may_be_some_seconds_off() {
        let there = SystemTime::UNIX_EPOCH + DAY;
        let at = |seconds| Duration::from_secs(seconds);
        for (now, verdict, found) in [
            (there + at(10), Verdict::Ok, "agree"),
            (there + at(11), Verdict::Warning, "11s ahead"),
            (there - at(300), Verdict::Warning, "5m behind"),
            (there - at(301), Verdict::Fault, "behind"),
            (there + DAY, Verdict::Fault, "24h ahead"),
        ] {
            let finding = clock("csi-cloud", now, there);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.found.contains(found), "{finding:?}");
        }
    }
}
