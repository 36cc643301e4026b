//! Each step from each state that matters.
//!
//! `copies.rs`, `liar.rs` and `tests/integration/tests/direct/ownership.rs` have random steps, with
//! the edge's reactions.

use crate::lease::decide::*;

const AT: Moment = Moment { epoch: 10, now: 99 };

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn at(epoch: u64) -> Moment {
    Moment { epoch, now: 1 }
}

fn held(name: &str, pod: &str) -> LeaseRecord {
    let owner = Holder { node: node(name), epoch: 5, pod: pod.into(), since: 1, unproven: false };
    LeaseRecord { holder: Some(owner), ..LeaseRecord::default() }
}

fn attached(own: LeaseRecord, name: &str) -> LeaseRecord {
    let attached = Attached { node: node(name), id: format!("id-{name}").into(), since: 1 };
    LeaseRecord { attached: Some(attached), ..own }
}

fn proven(epoch: u64, pod: &str) -> Step<'_> {
    Step::Hold(LeaseReport { epoch, pod, proven: true })
}

fn nobodys() -> LeaseRecord {
    LeaseRecord::default()
}

fn step(before: LeaseRecord, step: Step<'_>) -> (LeaseRecord, LeaseVerdict) {
    decide(before, &node("n1"), step, AT)
}

#[test]
fn what_is_nobodys_is_given_and_what_is_anothers_is_not() {
    let to = Some(Attached { node: node("n1"), id: "i".into(), since: 99 });
    assert_eq!(
        step(nobodys(), Step::Attach("i")),
        (LeaseRecord { attached: to, ..nobodys() }, LeaseVerdict::Done)
    );
    let owner =
        Some(Holder { node: node("n1"), epoch: 10, pod: "p".into(), since: 99, unproven: false });
    assert_eq!(
        step(nobodys(), Step::Ask("p")),
        (LeaseRecord { holder: owner, ..nobodys() }, LeaseVerdict::Held(10))
    );
    for others in [attached(nobodys(), "n2"), held("n2", ""), attached(held("n2", "p"), "n2")] {
        let refused = (others.clone(), LeaseVerdict::HeldElsewhere(others.clone()));
        for asked in [Step::Attach("i"), Step::Ask("p"), Step::Break] {
            assert_eq!(step(others.clone(), asked), refused, "{asked:?}");
        }
        for said in [Step::Detach("i"), Step::Release] {
            assert_eq!(
                step(others.clone(), said),
                (others.clone(), LeaseVerdict::Done),
                "{said:?}"
            );
        }
    }
}

#[test]
fn an_owner_goes_when_it_is_neither_attached_nor_held() {
    let both = attached(held("n1", "p"), "n1");
    assert_eq!(step(both.clone(), Step::Detach("id-n1")).0, held("n1", "p"));
    assert_eq!(step(both.clone(), Step::Detach("")).0, held("n1", "p"));
    assert_eq!(step(both.clone(), Step::Detach("other")).0, both);
    assert_eq!(step(both, Step::Release).0, attached(nobodys(), "n1"));
    assert_eq!(step(attached(nobodys(), "n1"), Step::Detach("id-n1")).0, nobodys());
    assert_eq!(step(held("n1", "p"), Step::Release).0, nobodys());
    assert_eq!(step(nobodys(), Step::Release).0, nobodys());
}

#[test]
fn it_is_detached_by_the_name_that_it_was_attached_by_last() {
    let again = step(attached(nobodys(), "n1"), Step::Attach("id-n1")).0;
    assert_eq!(again, attached(nobodys(), "n1"), "and since then");
    let renamed = step(again, Step::Attach("other")).0;
    assert_eq!(step(renamed.clone(), Step::Detach("id-n1")).0, renamed);
    assert_eq!(step(renamed, Step::Detach("other")).0, nobodys());
}

#[test]
fn each_time_it_is_asked_for_it_has_a_new_epoch() {
    for (pod, since) in [("p", 1), ("", 1), ("q", 99)] {
        let (after, verdict) = step(attached(held("n1", "p"), "n1"), Step::Ask(pod));
        assert_eq!(verdict, LeaseVerdict::Held(10));
        let owner = after.holder.unwrap();
        let kept = if pod.is_empty() { "p" } else { pod };
        assert_eq!((owner.epoch, &*owner.pod, owner.since), (10, kept, since), "{pod}");
        assert!(after.attached.is_some());
    }
}

#[test]
fn who_has_it_keeps_it_though_the_store_has_forgotten() {
    for before in [nobodys(), attached(nobodys(), "n2"), attached(nobodys(), "n1")] {
        let (after, verdict) = step(before.clone(), proven(3, "p"));
        assert_eq!(verdict, LeaseVerdict::Held(3), "{before:?}");
        let owner = after.holder.as_ref().unwrap();
        assert_eq!((&owner.node, &*owner.pod), (&node("n1"), "p"));
        assert_eq!(after.attached, before.attached, "who is attached stays so");
        assert_eq!(step(after, Step::Release).0, before);
    }
    let mine = held("n1", "p");
    assert_eq!(
        step(mine.clone(), proven(3, "p")),
        (mine, LeaseVerdict::Held(5)),
        "and is told its epoch"
    );
    let (after, verdict) = step(held("n1", "p"), proven(5, "q"));
    assert_eq!((verdict, &*after.holder.unwrap().pod), (LeaseVerdict::Held(5), "q"));
}

#[test]
fn of_two_that_say_that_they_have_it_who_was_given_it_later_is_right() {
    let others = held("n2", "p");
    for said in [0, 4, 5] {
        let fenced = LeaseVerdict::Fenced(others.holder.clone());
        assert_eq!(step(others.clone(), proven(said, "q")), (others.clone(), fenced), "{said}");
    }
    let (after, verdict) = step(attached(others, "n2"), proven(6, "q"));
    // A later epoch would outrank the right holder, which has not reported yet.
    assert_eq!(verdict, LeaseVerdict::Held(6));
    assert_eq!(after.attached.clone().map(|attached| attached.node), Some(node("n2")));
    assert_eq!(
        decide(after, &node("n2"), proven(5, "p"), at(11)).1,
        LeaseVerdict::Fenced(Some(Holder {
            node: node("n1"),
            epoch: 6,
            pod: "q".into(),
            since: 99,
            unproven: false
        }))
    );
    // Also against its own record, from an older copy.
    assert_eq!(step(held("n1", "p"), proven(6, "p")).1, LeaseVerdict::Held(6));
}

#[test]
fn what_an_operator_took_stays_taken_from_who_had_it_then() {
    let (broken, verdict) = step(attached(held("n1", "p"), "n1"), Step::Break);
    let taken = vec![Broken { node: node("n1"), epoch: 10 }];
    assert_eq!(
        (&broken, verdict),
        (&LeaseRecord { broken: taken, ..nobodys() }, LeaseVerdict::Done)
    );
    // Also after the next holder has come and gone, or was revoked too.
    let given = decide(broken.clone(), &node("n2"), Step::Ask("q"), at(11)).0;
    for said in [0, 5, 10] {
        let fenced = |own: &LeaseRecord| step(own.clone(), proven(said, "p")).1;
        assert_eq!(fenced(&given), LeaseVerdict::Fenced(given.holder.clone()), "{said}");
        let gone = decide(given.clone(), &node("n2"), Step::Release, AT).0;
        assert_eq!(gone, broken);
        assert_eq!(fenced(&gone), LeaseVerdict::Fenced(None), "{said}");
        let both = decide(given.clone(), &node("n2"), Step::Break, at(12)).0;
        assert_eq!(fenced(&both), LeaseVerdict::Fenced(None), "{said}");
        assert_eq!(decide(both, &node("n2"), proven(0, "q"), at(13)).1, LeaseVerdict::Fenced(None));
    }
    // Neither another node nor a later grant by a newer store is affected.
    assert_eq!(
        decide(broken.clone(), &node("n2"), proven(0, "q"), at(11)).1,
        LeaseVerdict::Held(0)
    );
    assert_eq!(
        decide(broken.clone(), &node("n1"), proven(11, "q"), at(12)).1,
        LeaseVerdict::Held(11)
    );
    // It may ask like any other node, and holds it again from then on.
    let (again, _) = decide(broken, &node("n1"), Step::Ask("p"), at(12));
    assert_eq!(step(again, proven(0, "p")).1, LeaseVerdict::Held(12));
}

#[test]
fn what_is_attached_to_one_and_had_by_another_is_taken_from_each_alone() {
    let before = attached(held("n2", "p"), "n1");
    assert_eq!(step(before.clone(), Step::Break), (held("n2", "p"), LeaseVerdict::Done));
    let taken = decide(before, &node("n2"), Step::Break, AT).0;
    assert_eq!(
        (taken.holder.is_none(), taken.attached.is_some(), taken.broken.len()),
        (true, true, 1)
    );
}

fn unproven(epoch: u64) -> Step<'static> {
    Step::Hold(LeaseReport { epoch, pod: "p", proven: false })
}

fn claim(name: &str, epoch: u64) -> LeaseClaim {
    LeaseClaim { node: node(name), epoch, since: 99 }
}

fn by_word(name: &str, epoch: u64) -> LeaseRecord {
    let mut record = held(name, "p");
    let holder = record.holder.as_mut().unwrap();
    holder.epoch = epoch;
    holder.unproven = true;
    record
}

#[test]
fn a_word_without_a_proof_takes_from_nobody() {
    for epoch in [6, u64::MAX] {
        let before = held("n2", "p");
        let (after, verdict) = step(before.clone(), unproven(epoch));
        assert_eq!(verdict, LeaseVerdict::Contested(after.clone()));
        assert_eq!((&after.holder, &after.claims), (&before.holder, &vec![claim("n1", epoch)]));
    }
    // An earlier lease than the granted one is over, as it always was.
    let before = held("n2", "p");
    let fenced = LeaseVerdict::Fenced(before.holder.clone());
    assert_eq!(step(before.clone(), unproven(5)), (before, fenced));
    // It confirms the record, and raises no epoch.
    assert_eq!(step(held("n1", "p"), unproven(9)), (held("n1", "p"), LeaseVerdict::Held(5)));
    // An operator's revocation counts whatever the node states.
    let broken = step(held("n1", "p"), Step::Break).0;
    assert_eq!(step(broken, unproven(u64::MAX)).1, LeaseVerdict::Fenced(None));
}

#[test]
fn a_word_without_a_proof_takes_only_what_nobody_has_or_claims() {
    let (after, verdict) = step(nobodys(), unproven(3));
    assert_eq!(verdict, LeaseVerdict::HeldByWord(3));
    assert!(after.holder.as_ref().unwrap().unproven);
    assert_eq!(step(after.clone(), unproven(4)).1, LeaseVerdict::HeldByWord(3), "confirmed");
    assert_eq!(step(after, Step::Ask("p")).1, LeaseVerdict::Held(10), "it says that it has it not");
    let (after, verdict) = step(attached(nobodys(), "n2"), unproven(3));
    assert_eq!(verdict, LeaseVerdict::Contested(after.clone()));
    assert_eq!((after.holder, after.claims), (None, vec![claim("n1", 3)]));
}

#[test]
fn of_two_words_neither_counts_and_nobody_gets_it() {
    let (both, verdict) = step(by_word("n2", 7), unproven(9));
    assert_eq!(verdict, LeaseVerdict::Contested(both.clone()));
    let first = LeaseClaim { since: 1, ..claim("n2", 7) };
    assert_eq!((&both.holder, &both.claims), (&None, &vec![first, claim("n1", 9)]));
    for name in ["n1", "n2"] {
        let said = decide(both.clone(), &node(name), unproven(99), at(11)).1;
        assert!(matches!(said, LeaseVerdict::Contested(_)), "{said:?}");
    }
    for asked in [Step::Ask("p"), Step::Attach("i")] {
        let refused = decide(both.clone(), &node("n3"), asked, at(11));
        assert_eq!(refused, (both.clone(), LeaseVerdict::HeldElsewhere(both.clone())), "{asked:?}");
    }
    // When one of them takes its word back, or an operator does, the other one has it.
    for ends in [Step::Release, Step::Ask("p"), Step::Break] {
        let (one, _) = decide(both.clone(), &node("n2"), ends, at(11));
        assert_eq!(one.claims, [claim("n1", 9)], "{ends:?}");
        let (after, verdict) = decide(one, &node("n1"), unproven(9), at(12));
        assert_eq!((verdict, after.claims.len()), (LeaseVerdict::HeldByWord(9), 0), "{ends:?}");
    }
    let taken = decide(both, &node("n2"), Step::Break, at(11)).0;
    assert_eq!(decide(taken, &node("n2"), unproven(99), at(12)).1, LeaseVerdict::Fenced(None));
}

#[test]
fn a_proof_counts_more_than_any_word() {
    let (after, verdict) = step(by_word("n2", u64::MAX), proven(3, "p"));
    assert_eq!(verdict, LeaseVerdict::Held(3));
    assert_eq!(after.holder.as_ref().map(|holder| holder.unproven), Some(false));
    assert_eq!(after.claims, [claim("n2", u64::MAX)], "it may be right, so nobody else gets it");
    let free = step(after.clone(), Step::Release).0;
    assert!(matches!(
        decide(free, &node("n3"), Step::Ask("p"), at(11)).1,
        LeaseVerdict::HeldElsewhere(_)
    ));
    // Its own word becomes a proof.
    let (after, verdict) = step(by_word("n1", 9), proven(3, "p"));
    assert_eq!((verdict, after.holder.unwrap().unproven), (LeaseVerdict::Held(3), false));
}
