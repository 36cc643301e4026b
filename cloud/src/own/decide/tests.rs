//! Each step from each state that matters; `tests/tests/own.rs` has random ones, with what edges make of the answers.

use super::*;

const AT: Moment = Moment { epoch: 10, now: 99 };

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn owned(name: &str, attached: bool, held: Option<&str>) -> Ownership {
    let owner = Owner { node: node(name), epoch: 5, attached, held: held.map(Into::into), since: 1 };
    Ownership { owner: Some(owner), broken: None }
}

fn nobodys() -> Ownership {
    Ownership::default()
}

fn step(before: Ownership, step: Step<'_>) -> (Ownership, Verdict) {
    decide(before, &node("n1"), step, AT)
}

#[test]
fn what_is_nobodys_is_given_and_what_is_anothers_is_not() {
    let given = |attached, held: Option<&str>| {
        let mut own = owned("n1", attached, held);
        own.owner = own.owner.map(|owner| Owner { epoch: 10, since: 99, ..owner });
        own
    };
    assert_eq!(step(nobodys(), Step::Attach), (given(true, None), Verdict::Done));
    assert_eq!(step(nobodys(), Step::Ask("p")), (given(false, Some("p")), Verdict::Held(10)));
    for others in [owned("n2", true, None), owned("n2", false, Some("")), owned("n2", true, Some("p"))] {
        let refused = (others.clone(), Verdict::Anothers(others.owner.clone().unwrap()));
        for asked in [Step::Attach, Step::Ask("p"), Step::Break] {
            assert_eq!(step(others.clone(), asked), refused, "{asked:?}");
        }
        for said in [Step::Detach, Step::Release] {
            assert_eq!(step(others.clone(), said), (others.clone(), Verdict::Done), "{said:?}");
        }
    }
}

#[test]
fn an_owner_goes_when_it_is_neither_attached_nor_held() {
    let both = owned("n1", true, Some("p"));
    assert_eq!(step(both.clone(), Step::Detach).0, owned("n1", false, Some("p")));
    assert_eq!(step(both, Step::Release).0, owned("n1", true, None));
    assert_eq!(step(owned("n1", true, None), Step::Detach).0, nobodys());
    assert_eq!(step(owned("n1", false, Some("p")), Step::Release).0, nobodys());
    assert_eq!(step(nobodys(), Step::Release).0, nobodys());
}

#[test]
fn each_time_it_is_asked_for_it_has_a_new_epoch() {
    let (after, verdict) = step(owned("n1", true, Some("p")), Step::Ask("q"));
    assert_eq!(verdict, Verdict::Held(10));
    let owner = after.owner.unwrap();
    assert_eq!((owner.epoch, owner.attached, owner.held.as_deref(), owner.since), (10, true, Some("q"), 1));
}

#[test]
fn who_has_it_keeps_it_though_the_store_has_forgotten() {
    for before in [nobodys(), owned("n2", true, None), owned("n1", true, None)] {
        let (after, verdict) = step(before.clone(), Step::Hold(3, "p"));
        assert_eq!(verdict, Verdict::Held(10), "{before:?}");
        let owner = after.owner.unwrap();
        assert_eq!((owner.node, owner.held.as_deref()), (node("n1"), Some("p")));
    }
    let mine = owned("n1", false, Some("p"));
    assert_eq!(step(mine.clone(), Step::Hold(3, "p")), (mine, Verdict::Held(5)), "and is told its epoch");
    let another = owned("n1", false, Some("q"));
    assert_eq!(step(owned("n1", false, Some("p")), Step::Hold(5, "q")), (another, Verdict::Held(5)));
    let others = owned("n2", false, Some("p"));
    assert_eq!(step(others.clone(), Step::Hold(9, "p")), (others.clone(), Verdict::Fenced(others.owner)));
}

#[test]
fn what_an_operator_took_stays_taken_from_who_had_it_then() {
    let (broken, verdict) = step(owned("n1", true, Some("p")), Step::Break);
    assert_eq!((&broken, verdict), (&Ownership { owner: None, broken: Some(10) }, Verdict::Done));
    // Also when the next owner has come and gone.
    let given = decide(broken.clone(), &node("n2"), Step::Ask("q"), Moment { epoch: 11, now: 1 }).0;
    let fenced = |own: Ownership| step(own, Step::Hold(5, "p")).1;
    assert_eq!(fenced(given.clone()), Verdict::Fenced(given.owner.clone()));
    let gone = decide(given, &node("n2"), Step::Release, AT).0;
    assert_eq!(gone, broken);
    assert_eq!(fenced(gone), Verdict::Fenced(None));
    // It may ask as any other, and has it again from then on.
    let (again, _) = decide(broken, &node("n1"), Step::Ask("p"), Moment { epoch: 12, now: 1 });
    assert_eq!(step(again, Step::Hold(12, "p")).1, Verdict::Held(12));
}
