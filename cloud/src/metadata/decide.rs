//! Decides whether a volume is handed over directly, by the RuntimeClasses of its claim's pods.
//!
//! All pods that use the claim count, also those without a node. Nothing is guessed: what is not
//! known, or contradicts itself, is no decision.

use std::fmt::Display;

use proto::control::metadata::{Key, Kind, Object, Pod};

use crate::metadata::index::Index;
use crate::metadata::inventory::Observed;
use crate::state::default_name::claim_uid;
use crate::state::record::Claim;

/// The reason why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Undecided {
    /// There are no watches.
    #[error(
        "csi-cloud does not know the pods: set metadata = true in [kubernetes], and give it the \
         rights of the component metadata; or write kata into the class"
    )]
    Off,
    /// The provisioner does not name the claim.
    #[error(
        "external-provisioner does not name the claim: give it --extra-create-metadata, or write \
         kata into the class"
    )]
    NoClaim,
    /// Nobody uses the claim, and nobody will before it is bound.
    #[error(
        "no pod uses claim {0}, so nothing decides; use volumeBindingMode: WaitForFirstConsumer \
         in the class"
    )]
    NoPod(String),
    /// Some pods take it directly and some do not.
    #[error(
        "pods of both kinds use claim {claim}: {direct} runs in a guest and {other} does not; \
         give each kind a claim of its own"
    )]
    Mixed {
        /// The claim.
        claim: String,
        /// A pod that takes it directly.
        direct: String,
        /// A pod that does not.
        other: String,
    },
    /// A populator's pod fills the volume, for a claim whose pods take theirs directly.
    #[error(
        "a populator's pod mounts it on the host, to fill it for claim {claim}, whose pod {pod} \
         runs in a guest; use a class without edge-csi.io/direct, or a claim without \
         dataSourceRef, which the pod fills itself"
    )]
    Populated {
        /// The claim that the volume becomes that of.
        claim: String,
        /// A pod that uses that claim.
        pod: String,
    },
    /// The objects were not all read yet, or are older than the claim.
    #[error("{0}; it is tried again")]
    NotYet(String),
}

impl Undecided {
    /// True if it passes by itself.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Self::NotYet(_))
    }
}

impl Index {
    /// Whether the pods that use this claim take their volume directly; of a populator's claim,
    /// those that use the claim which it fills. `name` is the name that external-provisioner gives
    /// to the volume.
    ///
    /// # Errors
    /// It is not known, or they do not agree.
    pub(crate) fn decide(&self, claim: Option<&Claim>, name: &str) -> Result<bool, Undecided> {
        let not_yet = |why: String| Err(Undecided::NotYet(why));
        if self.handlers().is_none() {
            return Err(Undecided::Off);
        }
        let claim = claim.ok_or(Undecided::NoClaim)?;
        let asked = within(&claim.namespace, &claim.name);
        if !self.is_whole() {
            return not_yet("the objects of Kubernetes are still being read".into());
        }
        let own_key = Key::within(Kind::Claim, &claim.namespace, &claim.name);
        let Some(own) = self.inventory().get(&own_key) else {
            return not_yet(format!("claim {asked} is not known yet"));
        };
        if let Object::Claim(known) = own.object.as_ref()
            && is_anothers(name, &known.uid)
        {
            return not_yet(format!("an earlier claim {asked} is known, and not this one"));
        }
        let populated = self.populated_by(&claim.name);
        let (key, observed) = populated.unwrap_or((&own_key, own));
        let claimed = within(&key.namespace, &key.name);
        let mut direct = None;
        let mut other = None;
        for pod in self.inventory().users(key) {
            let kind = if self.takes_direct(pod)? { &mut direct } else { &mut other };
            *kind = Some(within(&pod.namespace, &pod.name));
        }
        match (direct, other) {
            (Some(direct), Some(other)) => Err(Undecided::Mixed { claim: claimed, direct, other }),
            (Some(pod), None) if populated.is_some() => {
                Err(Undecided::Populated { claim: claimed, pod })
            }
            (Some(_), None) => Ok(true),
            (None, Some(_)) => Ok(false),
            // The scheduler selected a node for a pod, which is on its way to us.
            (None, None) if observed.selected => {
                not_yet(format!("the pod that uses claim {claimed} is not known yet"))
            }
            (None, None) => Err(Undecided::NoPod(claimed)),
        }
    }

    /// The claim that a populator fills by the claim with this name, if pods use it or will. Its
    /// volume is for those pods. Without them the populator's pod decides, because the host mounts
    /// the volume for it.
    fn populated_by(&self, name: &str) -> Option<(&Key, &Observed)> {
        let (key, observed) = self.inventory().populated_by(name)?;
        let is_used = observed.selected || self.inventory().users(key).next().is_some();
        is_used.then_some((key, observed))
    }

    fn takes_direct(&self, pod: &Pod) -> Result<bool, Undecided> {
        let Some(name) = &pod.runtime_class else { return Ok(false) };
        let class = self.inventory().get(&Key::of_cluster(Kind::RuntimeClass, name));
        match class.map(|class| class.object.as_ref()) {
            Some(Object::RuntimeClass(class)) => Ok(class.direct),
            _ => {
                let pod = within(&pod.namespace, &pod.name);
                let why = format!("RuntimeClass {name} of pod {pod} is not known");
                Err(Undecided::NotYet(why))
            }
        }
    }
}

/// `NAMESPACE/NAME`.
fn within(namespace: impl Display, name: impl Display) -> String {
    format!("{namespace}/{name}")
}

/// True if a volume's name has the uid of another claim than this.
fn is_anothers(name: &str, uid: &str) -> bool {
    let named = claim_uid(name).filter(|rest| uuid::Uuid::try_parse(rest).is_ok());
    named.is_some_and(|named| named != uid)
}
