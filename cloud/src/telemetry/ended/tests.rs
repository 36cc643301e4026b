use super::*;

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

/// Ends a CreateVolume about a subject at this time, with the longest claim and source.
fn end(ended: &Ended, subject: &str, code: Code, message: &str, at: u64) -> bool {
    let claim = format!("shop/{}", "c".repeat(MAX_CLAIM - 5));
    let source = "s".repeat(SHOWN);
    let outcome = Outcome { code, message: message.into() };
    let about = facts("CreateVolume", subject, &outcome);
    ended.add(CallEnd { claim: Some(&claim), source: Some(&source), at, ..about }).is_some()
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
    ended.add(CallEnd { claim, at, ..facts("CreateVolume", subject, &outcome) }).is_some()
}

fn facts<'a>(rpc: &'static str, subject: &'a str, outcome: &'a Outcome) -> CallEnd<'a> {
    static DRIVER: std::sync::LazyLock<DriverName> = std::sync::LazyLock::new(driver);
    CallEnd {
        at: 1,
        id: 7.into(),
        rpc,
        driver: &DRIVER,
        node: Some("n1".parse().unwrap()),
        subject,
        source: None,
        claim: None,
        outcome,
        duration: Duration::from_millis(5),
        attempts: 1,
    }
}

/// Ends a call of this method at this time.
fn end_rpc(ended: &Ended, rpc: &'static str, subject: &str, code: Code, at: u64) {
    let outcome = Outcome { code, message: "said".into() };
    ended.add(CallEnd { at, ..facts(rpc, subject, &outcome) });
}

fn times(calls: &[Arc<EndedCall>]) -> Vec<u64> {
    calls.iter().map(|call| call.at).collect()
}

/// The memory of everything that is kept, in bytes. Names of drivers and nodes are shared with the
/// store. Trees and tables count twice, because they may be half empty.
fn memory(ended: &Ended) -> usize {
    let table = ended.lock();
    let word = size_of::<usize>();
    let call = |call: &EndedCall| {
        let optional = [&call.claim, &call.source].into_iter().flatten();
        let texts = call.message.len() + optional.map(|text| text.len()).sum::<usize>();
        2 * word + size_of::<EndedCall>() + texts
    };
    let subject = |subject: &str| 2 * word + subject.len();
    let failures = table.failures.values().map(|failure| {
        let logged = failure.logged.0.capacity() * size_of::<(u64, u64)>();
        2 * size_of::<(u64, Failure)>() + call(&failure.newest) + logged
    });
    let subjects = table.by_subject.iter().map(|(text, numbers)| {
        let entry = 2 * size_of::<(Arc<str>, Vec<u64>)>();
        entry + subject(text) + numbers.capacity() * size_of::<u64>()
    });
    let successes = table.successes.iter().map(|kept| call(kept) + subject(&kept.subject));
    let queue = table.successes.capacity() * word;
    failures.sum::<usize>() + subjects.sum::<usize>() + successes.sum::<usize>() + queue
}

/// Every failure is found by its subject, and nothing else is.
fn assert_indexed(ended: &Ended) {
    let table = ended.lock();
    let mut numbers: Vec<_> = table.by_subject.values().flatten().copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, table.failures.keys().copied().collect::<Vec<_>>());
    for (subject, numbers) in &table.by_subject {
        assert!(!numbers.is_empty());
        assert!(numbers.iter().all(|number| table.failures[number].newest.subject == *subject));
    }
    assert!(numbers.len() <= MAX_FAILURES && table.successes.len() <= MAX_SUCCESSES);
}

#[test]
fn of_failures_the_newest_of_each_method_is_kept_with_their_number() {
    let ended = Ended::default();
    for at in 1..=20 {
        end_rpc(&ended, "CreateVolume", "v", Code::Internal, at);
    }
    end_rpc(&ended, "DeleteVolume", "v", Code::Aborted, 21);
    end_rpc(&ended, "CreateVolume", "w", Code::Aborted, 22);
    let about = ended.about(&driver(), "v");
    let failures: Vec<_> = about.iter().map(|call| (call.at, call.failures)).collect();
    assert_eq!(failures, [(21, 1), (20, 20)]);
    assert_eq!(about[1].failing_since, 1);
    assert_eq!((about[1].rpc, about[1].attempts, about[1].failed()), ("CreateVolume", 1, true));
    assert_eq!(about[1].node.as_ref().map(NodeName::as_str), Some("n1"));
    assert!(ended.about(&"e.example".parse().unwrap(), "v").is_empty());
    end_rpc(&ended, "CreateVolume", "v", Code::Ok, 23);
    end_rpc(&ended, "CreateVolume", "v", Code::Internal, 24);
    let newest = &ended.about(&driver(), "v")[0];
    assert_eq!((newest.failures, newest.failing_since), (1, 24), "a success ends the row");
    assert_indexed(&ended);
}

#[test]
fn drivers_with_the_same_subject_have_their_own_failures() {
    let ended = Ended::default();
    let other: DriverName = "e.example".parse().unwrap();
    let outcome = Outcome { code: Code::Internal, message: "no".into() };
    let done = Outcome { code: Code::Ok, message: String::new() };
    ended.add(facts("CreateVolume", "v", &outcome));
    ended.add(CallEnd { driver: &other, at: 2, ..facts("CreateVolume", "v", &outcome) });
    ended.add(facts("CreateVolume", "v", &done));
    let failing: Vec<_> = ended.failing().into_iter().map(|(call, _)| call.at).collect();
    assert_eq!(failing, [2], "a success of one driver is none of the other");
    assert_indexed(&ended);
}

#[test]
fn the_last_calls_with_a_subject_that_were_carried_out_are_kept() {
    let ended = Ended::default();
    for at in 1..=MAX_SUCCESSES as u64 + 2 {
        end(&ended, "v", Code::Ok, "", at);
        end(&ended, "", Code::Ok, "", at);
    }
    let about = times(&ended.about(&driver(), "v"));
    assert_eq!(about, (3..=MAX_SUCCESSES as u64 + 2).rev().collect::<Vec<_>>());
    assert_eq!(ended.latest(|_| true).len(), MAX_SUCCESSES);
    assert!(ended.about(&driver(), "w").is_empty());
}

#[test]
fn calls_without_a_subject_are_kept_if_they_failed() {
    let ended = Ended::default();
    for at in 1..=20 {
        end_rpc(&ended, "ListVolumes", "", if at < 20 { Code::Internal } else { Code::Ok }, at);
    }
    end_rpc(&ended, "GetCapacity", "", Code::Internal, 21);
    let kept: Vec<_> = ended.latest(|_| true).iter().map(|call| (call.at, call.failures)).collect();
    assert_eq!(kept, [(21, 1), (19, 19)]);
    assert!(ended.about(&driver(), "").is_empty());
    end_rpc(&ended, "ListVolumes", "", Code::Internal, 22);
    end_rpc(&ended, "GetCapacity", "", Code::Internal, 23);
    let rows: Vec<_> = ended.latest(|_| true).iter().map(|call| call.failures).collect();
    assert_eq!(rows, [2, 1], "a list that was carried out ends the row of lists alone");
    assert_indexed(&ended);
}

#[test]
fn the_oldest_failure_goes_first_and_successes_push_none_out() {
    let ended = Ended::default();
    for number in 0..MAX_FAILURES {
        end(&ended, &format!("v{number}"), Code::Internal, "no", 1);
    }
    end(&ended, "v0", Code::Internal, "no", 2);
    for number in 0..2 * MAX_SUCCESSES {
        end(&ended, &format!("w{number}"), Code::Ok, "", 2);
    }
    end(&ended, "new", Code::Internal, "no", 3);
    assert_eq!(ended.about(&driver(), "v0").len(), 1);
    assert!(ended.about(&driver(), "v1").is_empty());
    assert_eq!(ended.about(&driver(), "v2").len(), 1);
    assert_eq!(ended.about(&driver(), "new").len(), 1);
    assert_indexed(&ended);
}

#[test]
fn the_memory_is_bounded_whatever_callers_and_drivers_send() {
    let ended = Ended::default();
    // The longest character in UTF-8, and as many different failures of each as are remembered.
    let name = |number: usize| format!("{number:05}{}", "\u{10348}".repeat(SHOWN - 5));
    for number in 0..2 * MAX_FAILURES {
        for other in 0..2 * MAX_LOGGED {
            let message = format!("{other} {}", "x".repeat(4000));
            end(&ended, &name(number), Code::Internal, &message, 1);
        }
    }
    for number in 0..2 * MAX_SUCCESSES {
        end(&ended, &format!("w{}", name(number)), Code::Ok, "", 1);
    }
    assert_indexed(&ended);
    let table = ended.lock();
    assert_eq!((table.failures.len(), table.successes.len()), (MAX_FAILURES, MAX_SUCCESSES));
    drop(table);
    let bytes = memory(&ended);
    assert!(bytes < 13 << 20, "{bytes}");

    let usual = Ended::default();
    for number in 0..2 * MAX_FAILURES {
        for (kind, code) in [("v", Code::Internal), ("w", Code::Ok)] {
            let name = format!("{kind}-{number:036}");
            end_for(&usual, Some("shop/data-0"), &name, code, &"x".repeat(80), 1);
        }
    }
    let bytes = memory(&usual);
    assert!(bytes < 3 << 20, "{bytes}");
}

#[test]
fn the_last_call_for_a_claim_is_found_by_it() {
    let ended = Ended::default();
    let long = "c".repeat(MAX_CLAIM + 1);
    for (at, subject, claim) in [
        (1, "pvc-1", Some("shop/data")),
        (2, "pvc-2", Some("shop/data")),
        (3, "pvc-4", None),
        (4, "pvc-3", Some("shop/data-3")),
        (5, "pvc-4", Some(&*long)),
    ] {
        end_for(&ended, claim, subject, Code::Internal, "no", at);
    }
    let at = |claim: &str| ended.for_claim(claim).map(|call| call.at);
    assert_eq!((at("shop/data"), at("shop/data-3")), (Some(2), Some(4)));
    assert_eq!((at("shop"), at(&long)), (None, None), "no claim has such a name");
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
fn failures_that_last_are_listed_with_their_beginning() {
    let ended = Ended::default();
    for (at, code) in [(1, Code::Internal), (2, Code::Ok), (3, Code::Internal)] {
        end(&ended, "v", code, "no", at);
    }
    end_rpc(&ended, "DeleteVolume", "v", Code::Aborted, 4);
    end(&ended, "w", Code::Internal, "no", 5);
    end_rpc(&ended, "DeleteVolume", "w", Code::Ok, 6);
    end(&ended, "", Code::Internal, "no", 7);
    let failing: Vec<_> = ended.failing();
    let failures: Vec<_> =
        failing.iter().map(|(call, since)| (&*call.subject, call.at, *since)).collect();
    assert_eq!(failures, [("v", 4, 3)]);
    // Whatever goes of the history, a failure that is over does not last again.
    for number in 0..2 * MAX_SUCCESSES {
        end(&ended, &format!("x{number}"), Code::Ok, "", 8);
    }
    assert_eq!(ended.failing().len(), 1);
}
