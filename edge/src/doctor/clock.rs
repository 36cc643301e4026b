//! This machine's clock, by the time that csi-cloud says, or else by its certificate.

use std::time::SystemTime;

use proto::admin::doctor::Finding;
use proto::admin::doctor::certificate::clock;
use proto::names::certificate::Validity;

use super::endpoints::EndpointCheck;

const CHECK: &str = "clock";
const SET: &str = "set the clock by NTP (timedatectl, chronyc tracking)";

/// What is said of the clock.
pub(super) fn finding(checks: &[EndpointCheck], now: SystemTime) -> Finding {
    let announced =
        checks.iter().find_map(|check| check.steps.time.map(|time| (&check.endpoint, time)));
    if let Some((endpoint, time)) = announced {
        // Some seconds have passed since.
        let elapsed = SystemTime::now().duration_since(now).unwrap_or_default();
        return clock(endpoint.to_string(), now + elapsed, time);
    }
    let shown = checks.iter().find_map(|check| {
        let certificate = check.steps.shown.as_ref()?;
        Some((&check.endpoint, Validity::of(certificate).ok()?))
    });
    match shown {
        Some((endpoint, validity)) => by_certificate(endpoint.to_string(), &validity, now),
        None => Finding::unknown(
            CHECK,
            "this machine",
            "no csi-cloud was reached to compare it with",
            format!("if in doubt, {SET}"),
        ),
    }
}

fn by_certificate(about: String, validity: &Validity, now: SystemTime) -> Finding {
    if now < validity.not_before {
        let found = "by this clock the certificate of csi-cloud is not valid yet, so this clock is \
                     behind";
        return Finding::fault(CHECK, about, found, SET);
    }
    if validity.ended(now) {
        let found = "by this clock the certificate of csi-cloud has ended: this clock is ahead, or \
                     the certificate is old";
        return Finding::fault(CHECK, about, found, format!("{SET}, or renew that certificate"));
    }
    let found = "it is within the validity of csi-cloud's certificate; the time there is not known";
    Finding::ok(CHECK, about, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use proto::admin::doctor::Verdict;

    #[test]
    fn without_a_time_the_certificate_bounds_the_clock() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let validity = Validity { not_before: begin, not_after: begin + Duration::from_secs(100) };
        for (now, verdict) in [
            (begin - Duration::from_secs(1), Verdict::Fault),
            (begin + Duration::from_secs(50), Verdict::Ok),
            (begin + Duration::from_secs(101), Verdict::Fault),
        ] {
            assert_eq!(by_certificate("c".into(), &validity, now).verdict, verdict);
        }
        assert_eq!(finding(&[], begin).verdict, Verdict::Unknown);
    }
}
