use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A tracker and its clock.
struct Scene {
    tracker: HealthTracker,
    now: Instant,
}

impl Scene {
    /// A driver that is up.
    fn up() -> Self {
        let now = Instant::now();
        let mut tracker = HealthTracker::new(now);
        assert_eq!(tracker.reported().0, HealthState::Starting);
        tracker.connected(now, true);
        assert_eq!(tracker.reported(), (HealthState::Up, ""));
        Self { tracker, now }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.tracker.look(self.now);
    }

    fn state(&self) -> HealthState {
        self.tracker.reported().0
    }

    fn unreachable(&mut self) {
        self.pass(SECOND);
        self.tracker.unreachable(self.now, "nobody there");
    }

    fn failed(&mut self) {
        self.pass(SECOND);
        self.tracker.failed(self.now, "it is broken");
    }

    fn gone() -> Self {
        let mut scene = Self::up();
        (0..3).for_each(|_| scene.unreachable());
        assert_eq!(scene.tracker.reported(), (HealthState::Gone, "nobody there"));
        scene
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_restarted_soon_stays_up() {
    let mut scene = Scene::up();
    scene.failed();
    (0..2).for_each(|_| scene.unreachable());
    assert_eq!(scene.state(), HealthState::Up);
    scene.tracker.connected(scene.now, true);
    assert_eq!(scene.state(), HealthState::Up);
    (0..2).for_each(|_| scene.unreachable());
    assert_eq!(scene.state(), HealthState::Up, "the attempts are not in a row");
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_moment_count_once() {
    let mut scene = Scene::up();
    for _ in 0..100 {
        scene.tracker.failed(scene.now, "it is broken");
        scene.tracker.unreachable(scene.now, "nobody there");
        scene.now += Duration::from_millis(9);
    }
    assert_eq!(scene.state(), HealthState::Up);
}

#[tokio::test(start_paused = true)]
async fn three_failures_in_a_row_are_failing_and_thirty_seconds_without_are_up() {
    let mut scene = Scene::up();
    (0..2).for_each(|_| scene.failed());
    scene.tracker.answered(scene.now);
    (0..2).for_each(|_| scene.failed());
    assert_eq!(scene.state(), HealthState::Up, "an answer was between them");
    scene.failed();
    assert_eq!(scene.tracker.reported(), (HealthState::Failing, "it is broken"));
    scene.pass(CALM * 2);
    assert_eq!(scene.state(), HealthState::Failing, "silence is no answer");
    scene.tracker.probed(scene.now, true);
    assert_eq!(scene.state(), HealthState::Starting);
    scene.pass(CALM - SECOND * 2);
    scene.failed();
    assert_eq!(scene.state(), HealthState::Starting);
    scene.tracker.answered(scene.now);
    scene.pass(CALM - SECOND);
    assert_eq!(scene.state(), HealthState::Starting, "the time has begun again");
    scene.pass(SECOND);
    assert_eq!(scene.tracker.reported(), (HealthState::Up, ""));
}

#[tokio::test(start_paused = true)]
async fn who_was_gone_is_up_when_it_has_stayed() {
    let mut scene = Scene::gone();
    scene.pass(SECOND * 7);
    assert_eq!(scene.tracker.health(scene.now).seconds, 7);
    scene.tracker.connected(scene.now, true);
    assert_eq!(scene.state(), HealthState::Starting);
    assert_eq!(scene.tracker.due(), Some(scene.now + CALM));
    scene.pass(CALM);
    assert_eq!(scene.state(), HealthState::Up);
    assert_eq!(scene.tracker.due(), None);
}

#[tokio::test(start_paused = true)]
async fn who_dies_of_each_call_is_failing_though_it_comes_back() {
    let mut scene = Scene::up();
    for _ in 0..3 {
        scene.failed();
        scene.tracker.connected(scene.now, true);
    }
    assert_eq!(scene.state(), HealthState::Failing);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_ready_is_starting_and_up_at_once_when_it_is() {
    let mut scene = Scene::up();
    scene.tracker.probed(scene.now, false);
    assert_eq!(scene.state(), HealthState::Starting);
    assert!(scene.tracker.reported().1.contains("not ready"));
    scene.pass(CALM * 3);
    assert_eq!(scene.state(), HealthState::Starting);
    scene.tracker.probed(scene.now, true);
    assert_eq!(scene.state(), HealthState::Up);
}

#[tokio::test(start_paused = true)]
async fn who_has_not_introduced_itself_is_starting_and_says_why() {
    let mut scene = Scene::up();
    scene.tracker.introduced(scene.now, Some("NodeGetInfo fails"));
    assert_eq!(scene.state(), HealthState::Starting);
    assert_eq!(scene.tracker.reported().1, "NodeGetInfo fails");
    scene.tracker.introduced(scene.now, None);
    assert_eq!(scene.state(), HealthState::Up);
}

#[tokio::test(start_paused = true)]
async fn a_shared_driver_that_refuses_three_things_in_a_row_is_failing_for_a_while() {
    let mut scene = Scene::up();
    for about in ["v", "v", "v", "w"] {
        scene.tracker.refused(scene.now, about, "no backend");
        scene.tracker.probed(scene.now, true);
        assert_eq!(scene.state(), HealthState::Up, "Probe is no answer about a volume");
    }
    scene.tracker.answered(scene.now);
    for about in ["v", "w"] {
        scene.tracker.refused(scene.now, about, "no backend");
    }
    assert_eq!(scene.state(), HealthState::Up, "another answer was between");
    scene.tracker.refused(scene.now, "x", "no backend");
    assert_eq!(scene.state(), HealthState::Failing);
    assert_eq!(scene.tracker.reported().1, "no backend");
    scene.pass(CALM);
    assert_eq!(scene.state(), HealthState::Up);
}

/// Something that happens to a driver.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Unreachable,
    Connected(bool),
    Failed,
    Answered,
    Probed(bool),
    Nothing,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        Just(Happening::Unreachable),
        any::<bool>().prop_map(Happening::Connected),
        Just(Happening::Failed),
        Just(Happening::Answered),
        any::<bool>().prop_map(Happening::Probed),
        Just(Happening::Nothing),
    ]
}

proptest! {
    /// Nobody goes down without three failures in a row, or is up within 30 s of being down.
    #[test]
    fn health_changes_for_a_reason(
        happenings in proptest::collection::vec((happening(), 0u64..20_000), 1..200),
    ) {
        let mut now = Instant::now();
        let mut tracker = HealthTracker::new(now);
        let mut last_down = None;
        let mut attempts = 0;
        let mut answers = 0;
        for (happening, ms) in happenings {
            now += Duration::from_millis(ms);
            tracker.look(now);
            match happening {
                Happening::Unreachable => {
                    attempts += 1;
                    tracker.unreachable(now, "a");
                }
                Happening::Connected(ready) => {
                    attempts = 0;
                    tracker.connected(now, ready);
                }
                Happening::Failed => {
                    answers += 1;
                    tracker.failed(now, "b");
                }
                Happening::Answered => {
                    answers = 0;
                    tracker.answered(now);
                }
                Happening::Probed(ready) => {
                    answers = 0;
                    tracker.probed(now, ready);
                }
                Happening::Nothing => {}
            }
            let (state, why) = tracker.reported();
            prop_assert_eq!(state.is_up(), why.is_empty());
            prop_assert!(state != HealthState::Gone || attempts >= 3);
            prop_assert!(state != HealthState::Failing || answers >= 3);
            if state.is_down() {
                last_down = Some(now);
            }
            let calm = last_down.is_none_or(|down| now.duration_since(down) >= CALM);
            prop_assert!(!state.is_up() || calm);
        }
    }
}
