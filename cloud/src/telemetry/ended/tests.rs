use super::*;

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

/// Ends a CreateVolume about a subject at this time, for a claim of the longest name.
fn end(ended: &Ended, subject: &str, code: Code, message: &str, at: u64) -> bool {
    let claim = format!("shop/{}", "c".repeat(MAX_CLAIM - 5));
    end_for(ended, Some(&claim), subject, code, message, at)
}

fn end_for(
    ended: &Ended,
    claim: Option<&str>,
    subject: &str,
    code: Code,
    message: &str,
    at: u64,
) -> bool {
    let outcome = Outcome { code, message: message.into() };
    let facts = CallEnd {
        at,
        id: u128::from(at).into(),
        rpc: "CreateVolume",
        driver: &driver(),
        node: Some("n1".parse().unwrap()),
        subject,
        claim,
        outcome: &outcome,
        duration: Duration::from_millis(5),
        attempts: 1,
    };
    ended.add(facts).is_some()
}

fn times(calls: &[Arc<EndedCall>]) -> Vec<u64> {
    calls.iter().map(|call| call.at).collect()
}

/// What is counted is what is kept.
fn assert_counted(ended: &Ended) {
    let kept = ended.lock();
    let mut bytes = 0;
    let mut subjects = 0;
    for (subject, calls) in kept.subjects.values().flatten() {
        assert!(calls.last.len() <= LAST && calls.last.capacity() <= 2 * LAST);
        bytes += SUBJECT + subject.len();
        bytes += calls.last.iter().map(|call| call.size()).sum::<usize>();
        subjects += 1;
    }
    assert_eq!((bytes, subjects), (kept.bytes, kept.order.len()));
    assert!(subjects <= MAX_SUBJECTS && bytes <= MAX_BYTES, "{subjects} {bytes}");
    assert!(kept.unwritten.as_ref().is_none_or(|waiting| waiting.len() <= MAX_UNWRITTEN));
}

#[test]
fn the_last_eight_calls_about_a_subject_are_kept_the_newest_first() {
    let ended = Ended::default();
    for at in 1..=20 {
        end(&ended, "v", Code::Ok, "", at);
    }
    assert_eq!(times(&ended.about(&driver(), "v")), (13..=20).rev().collect::<Vec<_>>());
    assert!(ended.about(&driver(), "w").is_empty());
    assert!(ended.about(&"e.example".parse().unwrap(), "v").is_empty());
    let call = &ended.about(&driver(), "v")[0];
    assert_eq!((call.rpc, call.attempts, call.failed()), ("CreateVolume", 1, false));
    assert_eq!(call.node.as_ref().map(NodeName::as_str), Some("n1"));
    assert_counted(&ended);
}

#[test]
fn of_calls_without_a_subject_the_last_failures_are_kept() {
    let ended = Ended::default();
    for at in 1..=20 {
        end(&ended, "", if at % 2 == 0 { Code::Internal } else { Code::Ok }, "no", at);
    }
    let kept = ended.latest(|_| true);
    assert_eq!(times(&kept), [20, 18, 16, 14, 12, 10, 8, 6]);
    assert!(ended.about(&driver(), "").is_empty());
    assert_counted(&ended);
}

#[test]
fn the_subject_that_was_used_least_recently_goes_first() {
    let ended = Ended::default();
    for number in 0..MAX_SUBJECTS {
        end(&ended, &format!("v{number}"), Code::Ok, "", 1);
    }
    end(&ended, "v0", Code::Ok, "", 2);
    end(&ended, "new", Code::Ok, "", 3);
    assert_eq!(ended.about(&driver(), "v0").len(), 2);
    assert!(ended.about(&driver(), "v1").is_empty());
    assert_eq!(ended.about(&driver(), "v2").len(), 1);
    assert_counted(&ended);
}

#[test]
fn the_memory_is_bounded_whatever_callers_and_drivers_send() {
    let ended = Ended::default();
    ended.restore(Vec::new());
    let subject = "é".repeat(SHOWN);
    for number in 0..2 * MAX_SUBJECTS {
        for at in 0..4 {
            let message = format!("{at} {}", "x".repeat(4000));
            end(&ended, &format!("{number}{subject}"), Code::Internal, &message, at);
        }
    }
    assert_counted(&ended);
    assert!(ended.lock().order.len() > 3000, "no more goes than has to");
    // What waits to be written is gone from the subjects, and takes memory beside them.
    let waiting = ended.unwritten();
    let bytes: usize = waiting.iter().map(|call| call.size()).sum();
    assert_eq!(waiting.len(), MAX_UNWRITTEN);
    assert!(bytes < 5 * 1024 * 1024, "{bytes}");
    assert!(ended.unwritten().is_empty());
}

#[test]
fn the_last_call_for_a_claim_is_found_by_it() {
    let ended = Ended::default();
    let long = "c".repeat(MAX_CLAIM + 1);
    for (at, subject, claim) in [
        (1, "pvc-1", Some("shop/data")),
        (2, "pvc-2", Some("shop/data")),
        (3, "pvc-2", None),
        (4, "pvc-3", Some("shop/data-3")),
        (5, "pvc-4", Some(&*long)),
    ] {
        end_for(&ended, claim, subject, Code::Internal, "no", at);
    }
    let at = |claim: &str| ended.for_claim(claim).map(|call| call.at);
    assert_eq!((at("shop/data"), at("shop/data-3")), (Some(2), Some(4)));
    assert_eq!((at("shop"), at(&long)), (None, None), "no claim has such a name");
    assert_counted(&ended);
}

#[test]
fn a_message_is_cut_between_characters() {
    let ended = Ended::default();
    end(&ended, "v", Code::Internal, &"é".repeat(400), 1);
    end(&ended, "w", Code::Internal, &format!("x{}", "é".repeat(400)), 1);
    assert_eq!(ended.about(&driver(), "v")[0].message.len(), 512);
    assert_eq!(ended.about(&driver(), "w")[0].message.len(), 511);
}

#[test]
fn a_failure_is_news_once_a_minute() {
    let ended = Ended::default();
    assert!(end(&ended, "v", Code::Internal, "no", 100_000));
    assert!(!end(&ended, "v", Code::Internal, "no", 101_000));
    assert!(end(&ended, "v", Code::Internal, "another", 102_000));
    assert!(end(&ended, "w", Code::Internal, "no", 102_000), "each subject has its own");
    assert!(!end(&ended, "v", Code::Ok, "", 103_000));
    assert!(!end(&ended, "v", Code::Internal, "no", 159_999));
    assert!(end(&ended, "v", Code::Internal, "no", 161_000));
    assert!(end(&ended, "", Code::Internal, "no", 1));
    assert!(!end(&ended, "", Code::Internal, "no", 2));
}

#[test]
fn what_was_written_comes_back_in_its_order_and_is_not_written_again() {
    let before = Ended::default();
    before.restore(Vec::new());
    for at in 1..=12 {
        end(&before, if at % 3 == 0 { "" } else { "v" }, Code::Internal, "no", at);
    }
    let mut written: Vec<_> = before.unwritten().iter().map(|call| (**call).clone()).collect();
    written.reverse();
    let after = Ended::default();
    after.restore(written);
    assert_eq!(times(&after.about(&driver(), "v")), times(&before.about(&driver(), "v")));
    assert!(after.unwritten().is_empty());
    end(&after, "v", Code::Ok, "", 13);
    assert_eq!(after.unwritten().first().map(|call| (call.number, call.at)), Some((12, 13)));
    assert_eq!(after.about(&driver(), "v")[0].at, 13);
    assert_counted(&after);
}

#[test]
fn what_fails_now_is_told_with_the_begin_of_its_failures() {
    let ended = Ended::default();
    for (at, code) in [(1, Code::Internal), (2, Code::Ok), (3, Code::Internal), (4, Code::Aborted)]
    {
        end(&ended, "v", code, "no", at);
    }
    end(&ended, "w", Code::Internal, "no", 5);
    end(&ended, "w", Code::Ok, "", 6);
    let failing: Vec<_> = ended.failing();
    let failures: Vec<_> =
        failing.iter().map(|(call, since)| (&*call.subject, call.at, *since)).collect();
    assert_eq!(failures, [("v", 4, 3)]);
}

#[test]
fn nothing_waits_if_nobody_writes() {
    let ended = Ended::default();
    end(&ended, "v", Code::Ok, "", 1);
    assert!(ended.lock().unwritten.is_none());
}
