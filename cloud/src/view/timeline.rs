//! The life of a volume, as far as csi-cloud knows it: its create, its home, its calls.

use proto::admin::cells;
use proto::admin::view::{MomentOutcome, Timeline, TimelineMoment};
use proto::csi::status::code_name;
use proto::csi::{Id, Method, Resource};
use proto::host::clock::millis;
use proto::host::{clock, plain};
use proto::names::{DriverName, NodeName};

use crate::admin::admin_state::AdminState;
use crate::explain::subject::{Namespaced, Subject};
use crate::state::record::{Home, Intent, LeaseRecord};
use crate::telemetry::calls::{Progress, Running};
use crate::telemetry::ended::EndedCall;

/// The life of a volume, by its id or the name under which it is to be made.
pub(super) fn of_volume(state: &AdminState, driver: &DriverName, id: &str) -> Timeline {
    let key = Id::Volume(id.to_owned());
    let (home, lease) = state.store.read(|known| {
        let of = known.driver(driver);
        let home = of.and_then(|of| of.home(&key)).cloned();
        (home, of.and_then(|of| of.lease(&key)).cloned())
    });
    let name = home.as_ref().map_or(Some(id), |home| home.name.as_deref());
    let mut moments = Vec::new();
    moments.extend(name.and_then(|name| create(state, driver, name)));
    moments.extend(home.as_ref().map(recorded));
    moments.extend(lease.iter().flat_map(leased));
    let subjects: Vec<_> = [Some(id), name].into_iter().flatten().collect();
    let mut ended: Vec<_> =
        subjects.iter().flat_map(|subject| state.ended_about(driver, subject)).collect();
    ended.sort_by_key(|call| call.number);
    ended.dedup_by_key(|call| call.number);
    moments.extend(ended.iter().map(|call| self::ended(call)));
    let running = state.calls.running();
    moments.extend(running.iter().filter_map(|(_, call)| {
        let progress = call.progress();
        let is_about = subjects.iter().any(|subject| progress.is_about(subject));
        (call.driver == *driver && is_about).then(|| runs(call, progress))
    }));
    moments.sort_by_key(|moment| moment.at);
    Timeline { unknown: unknown(home.as_ref(), moments.is_empty()), moments }
}

/// The id of the volume that was made under a name.
pub(super) fn made(state: &AdminState, driver: &DriverName, name: &str) -> Option<String> {
    Some(intent(state, driver, name)?.made?.into())
}

/// The claim for which a create under a name is on its way.
pub(super) fn claim(state: &AdminState, driver: &DriverName, name: &str) -> Option<Subject> {
    let claim = intent(state, driver, name)?.claim?;
    let claim = format!("{}/{}", claim.namespace, claim.name).parse::<Namespaced>();
    claim.ok().map(Subject::Pvc)
}

fn intent(state: &AdminState, driver: &DriverName, name: &str) -> Option<Intent> {
    let id = Id::Name(Method::creating(Resource::Volume), name.to_owned());
    state.store.read(|known| known.driver(driver)?.intent(&id).cloned())
}

fn create(state: &AdminState, driver: &DriverName, name: &str) -> Option<TimelineMoment> {
    let intent = intent(state, driver, name)?;
    let attempts = intent.attempts.filter(|attempts| *attempts > 0);
    let attempts = attempts.map(|attempts| match attempts {
        1 => "; the driver may have got it once".to_owned(),
        more => format!("; the driver may have got it {more} times"),
    });
    let outcome = if intent.made.is_some() { "" } else { "; its outcome is not known yet" };
    let detail = format!("as {}{}{outcome}", plain(name), attempts.unwrap_or_default());
    Some(record(intent.since, &intent.node, "its create was sent for the first time", detail))
}

/// A moment of which csi-cloud has a record.
fn record(at: u64, node: &NodeName, what: &str, detail: String) -> TimelineMoment {
    let node = Some(node.clone());
    TimelineMoment { at, what: what.to_owned(), outcome: MomentOutcome::Recorded, node, detail }
}

fn recorded(home: &Home) -> TimelineMoment {
    let what = match &home.name {
        Some(_) => "its home was recorded",
        None => "csi-cloud learned of it",
    };
    let claim = home.claim.as_ref().filter(|claim| !claim.name.is_empty());
    let claim = claim.map(|claim| format!("for claim {}/{}", claim.namespace, claim.name));
    record(home.since, &home.node, what, plain(&claim.unwrap_or_default()))
}

fn leased(lease: &LeaseRecord) -> impl Iterator<Item = TimelineMoment> {
    let attached = lease.attached.iter().map(|attached| {
        let what = "it was attached as a direct volume";
        record(attached.since, &attached.node, what, String::new())
    });
    let held = lease.holder.iter().map(|holder| {
        let pod = format!("pod {}", plain(&holder.pod));
        record(holder.since, &holder.node, "a guest has it for itself", pod)
    });
    attached.chain(held)
}

/// A call that ended.
pub(super) fn ended(call: &EndedCall) -> TimelineMoment {
    let took = format!("took {}", cells::took(millis(call.duration)));
    let tries = match call.attempts {
        0 | 1 => String::new(),
        more => format!(", sent {more} times"),
    };
    let message = plain(&call.message);
    let message = if message.is_empty() { message } else { format!(": {message}") };
    TimelineMoment {
        at: call.at,
        what: call.rpc.into(),
        outcome: match call.failed() {
            true => MomentOutcome::Failed(code_name(call.code).to_owned()),
            false => MomentOutcome::Done,
        },
        node: call.node.clone(),
        detail: format!("{took}{tries}{message}"),
    }
}

fn runs(call: &Running, progress: Progress) -> TimelineMoment {
    TimelineMoment {
        at: clock::at(call.begun),
        what: call.rpc.into(),
        outcome: MomentOutcome::Runs(progress.stage.name().to_owned()),
        node: progress.node,
        detail: String::new(),
    }
}

fn unknown(home: Option<&Home>, is_empty: bool) -> Vec<String> {
    let before = match home {
        None if is_empty => "csi-cloud has no record of it, and no call about it is kept.",
        None => "No node is known to have it.",
        Some(home) if home.name.is_none() => {
            "csi-cloud did not make it, so nothing is known from before it learned of it."
        }
        Some(_) => "",
    };
    let always = [
        "The last eight calls about an id and about a name are kept. Older ones are not known.",
        "What the node's kubelet did (stage, publish) does not pass csi-cloud, and is not known.",
    ];
    let lines = [before].into_iter().filter(|line| !line.is_empty()).chain(always);
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proto::csi::Key;
    use proto::host::tasks::Tasks;
    use tonic::Code;

    use super::*;
    use crate::admin::tests::admin_state;
    use crate::telemetry::ended::Outcome as Ended;

    fn call(state: &AdminState, driver: &DriverName, id: Id, code: Code) {
        let ongoing = state.calls.clone().begin("ControllerExpandVolume", driver, 7.into());
        ongoing.running().is_about(&Key::Home(id));
        ongoing.ended(&Ended { code, message: "no\u{1b} room".into() });
    }

    #[tokio::test]
    async fn a_life_has_its_create_its_home_and_its_calls_in_order() {
        let tasks = Tasks::default();
        let state = admin_state(&tasks);
        let driver: DriverName = "d.example".parse().unwrap();
        let of = driver.clone();
        let written = state.store.write(move |txn| {
            let node: NodeName = "n1".parse().unwrap();
            let name = Id::Name(Method::CreateVolume, "pvc-1".into());
            let intent = Intent {
                node: node.clone(),
                since: 1,
                until: 0,
                made: Some("v1".into()),
                claim: None,
                attempts: Some(2),
                direct: None,
                narrowed: None,
                machine: None,
            };
            txn.set_intent(&of, &name, Some(intent));
            let home = Home { name: Some("pvc-1".into()), ..Home::at(node, 2) };
            txn.set_home(&of, &Id::Volume("v1".into()), Some(home));
        });
        written.await.unwrap();
        call(&state, &driver, Id::Volume("v1".into()), Code::ResourceExhausted);
        let running = state.calls.clone().begin("DeleteVolume", &driver, 8.into());
        running.running().is_about(&Key::Delete(Id::Volume("v1".into())));
        let life = of_volume(&state, &driver, "v1");
        let seen: Vec<_> = life.moments.iter().map(|moment| moment.what.as_str()).collect();
        assert_eq!(seen[..2], ["its create was sent for the first time", "its home was recorded"]);
        assert_eq!(seen[2..], ["ControllerExpandVolume", "DeleteVolume"]);
        assert!(life.moments[0].detail.contains("2 times"), "{:?}", life.moments);
        assert_eq!(life.moments[2].outcome, MomentOutcome::Failed("RESOURCE_EXHAUSTED".into()));
        assert!(life.moments[2].detail.ends_with(": no\\u{1b} room"), "{:?}", life.moments);
        assert_eq!(life.moments[3].outcome, MomentOutcome::Runs("front".into()));
        assert_eq!(life.unknown.len(), 2);
        assert_eq!(made(&state, &driver, "pvc-1").as_deref(), Some("v1"));
        assert_eq!((made(&state, &driver, "v1"), claim(&state, &driver, "pvc-1")), (None, None));
    }

    #[tokio::test]
    async fn what_is_not_known_is_said() {
        let tasks = Tasks::default();
        let state = admin_state(&tasks);
        let driver: DriverName = "d.example".parse().unwrap();
        let nothing = of_volume(&state, &driver, "v9");
        assert!(nothing.moments.is_empty() && nothing.unknown[0].contains("no record"));
        call(&state, &driver, Id::Volume("v9".into()), Code::NotFound);
        let called = of_volume(&state, &driver, "v9");
        assert_eq!((called.moments.len(), called.unknown.len()), (1, 3));
        assert!(called.unknown[0].contains("No node"));
    }
}
