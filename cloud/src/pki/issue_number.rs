//! Issue numbers: of two certificates of a node, the one that was issued later has the higher one.
//!
//! A disk from the bin has an older certificate of its node. It is not renewed once a newer one has
//! linked that is on the node's disk: from then on an honest node has no use for the older one. The
//! store keeps that number with the node. A lost or restored store has none or a lower one; it
//! renews more than it should, and locks nobody out.

/// Returns the number of the next certificate of a node. `linked` is the highest number that has
/// linked from the node's disk, `shown` that of the certificate that asks, and `now` in ms since
/// 1970.
pub(super) fn next(linked: Option<u64>, shown: Option<u64>, now: u64) -> u64 {
    let last = linked.max(shown);
    last.map_or(now, |last| now.max(last.saturating_add(1)))
}

/// True if a certificate with the number `shown` may be renewed. The node's own machine may renew
/// any of its certificates: its disk was restored, or a damaged file was replaced by its copy.
pub(super) fn may_renew(
    linked: Option<u64>,
    shown: Option<u64>,
    is_nodes_own_machine: bool,
) -> bool {
    // No number is lower than any number.
    is_nodes_own_machine || shown >= linked
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lower_number_is_not_renewed_and_any_other_is() {
        let table = [
            // Nothing has linked with a number: an older csi-cloud, or another issuer.
            (None, None, true),
            (None, Some(1), true),
            (Some(5), Some(5), true),
            (Some(5), Some(6), true),
            (Some(5), Some(4), false),
            (Some(5), None, false),
        ];
        for (linked, shown, expected) in table {
            assert_eq!(may_renew(linked, shown, false), expected, "{linked:?} {shown:?}");
            assert!(may_renew(linked, shown, true), "{linked:?} {shown:?}");
        }
        assert_eq!([next(None, None, 9), next(Some(3), Some(4), 9)], [9, 9]);
        // The clock was ahead when they were issued.
        assert_eq!([next(Some(30), None, 9), next(Some(30), Some(40), 9)], [31, 41]);
    }

    /// What happens to an honest node, or to csi-cloud.
    #[derive(Clone, Debug)]
    enum Step {
        /// The node renews, and the answer is lost.
        LoseAnswer,
        /// The node renews, and uses the new certificate from memory: its disk takes nothing.
        Renew,
        /// The disk takes the certificate in use.
        Write,
        /// The node links.
        Link,
        /// csi-edge is started again, with the certificate on the disk.
        Restart,
        /// The file of the certificate is damaged, and its copy is used: the one before.
        UseCopy,
        /// The disk is put back to the state of an earlier write.
        RestoreDisk(usize),
        /// The store is put back to an earlier state.
        RestoreStore(usize),
        /// An operator gives the node a new token.
        Join,
        /// The site is closed for 80 days.
        Close,
        /// csi-cloud's clock is set, by so many ms.
        SetClock(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::LoseAnswer),
            4 => Just(Step::Renew),
            3 => Just(Step::Write),
            4 => Just(Step::Link),
            2 => Just(Step::Restart),
            1 => Just(Step::UseCopy),
            1 => any::<usize>().prop_map(Step::RestoreDisk),
            1 => any::<usize>().prop_map(Step::RestoreStore),
            1 => Just(Step::Join),
            1 => Just(Step::Close),
            2 => (-20_000_000_000_i64..20_000_000_000).prop_map(Step::SetClock),
        ];
        vec(step, 0..60)
    }

    /// A node, and csi-cloud's record of it.
    struct Model {
        /// The node tells its machine, and the record has it.
        tells_machine: bool,
        now: u64,
        /// The highest number that linked, now and at earlier times.
        linked: Vec<Option<u64>>,
        in_use: Option<u64>,
        /// The numbers that the disk has had, the present one last.
        disk: Vec<Option<u64>>,
    }

    impl Model {
        fn linked(&self) -> Option<u64> {
            self.linked.last().copied().flatten()
        }

        fn on_disk(&self) -> Option<u64> {
            self.disk.last().copied().flatten()
        }

        /// The number of the renewed certificate, unless the node is refused.
        fn renewed(&self) -> Result<Option<u64>, TestCaseError> {
            let allowed = may_renew(self.linked(), self.in_use, self.tells_machine);
            prop_assert!(allowed, "{:?} after {:?} linked", self.in_use, self.linked());
            let number = next(self.linked(), self.in_use, self.now);
            prop_assert!(Some(number) > self.linked() && Some(number) > self.in_use);
            Ok(Some(number))
        }

        fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
            match step {
                Step::LoseAnswer => drop(self.renewed()?),
                Step::Renew => self.in_use = self.renewed()?,
                Step::Write => self.disk.push(self.in_use),
                Step::Link => {
                    if self.in_use == self.on_disk() {
                        self.linked.push(self.linked().max(self.in_use));
                    }
                }
                Step::Restart => self.in_use = self.on_disk(),
                // A node whose machine has no id needs a new token after these two.
                Step::UseCopy if self.tells_machine => {
                    self.put_back(self.disk.len().saturating_sub(2));
                }
                Step::RestoreDisk(at) if self.tells_machine => self.put_back(at),
                Step::UseCopy | Step::RestoreDisk(_) => {}
                Step::RestoreStore(at) => self.linked.truncate(1 + at % self.linked.len()),
                Step::Join => {
                    self.in_use = Some(next(self.linked(), None, self.now));
                    self.disk.push(self.in_use);
                }
                Step::Close => self.now += 80 * 86_400_000,
                Step::SetClock(by) => self.now = self.now.saturating_add_signed(by),
            }
            Ok(())
        }

        /// The disk has an earlier state, and csi-edge is started.
        fn put_back(&mut self, at: usize) {
            let earlier = self.disk[at % self.disk.len()];
            self.disk.push(earlier);
            self.in_use = earlier;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_honest_node_is_locked_out(
            steps in steps(),
            tells_machine: bool,
            first in proptest::option::of(0_u64..1 << 42),
        ) {
            let mut model = Model {
                tells_machine,
                now: 1 << 41,
                linked: vec![None],
                in_use: first,
                disk: vec![first],
            };
            for step in steps {
                model.take(step)?;
            }
            model.renewed()?;
        }
    }
}
