//! Refuses a pod whose RuntimeClass differs from the kind that its volume was created for.
//!
//! The cloud decided once, and the volume's context says how. A pod of the other kind is refused,
//! and so is one whose kind is not known.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use edge_calls::metadata::{KnownPod, Metadata};

use crate::error::Error;
use crate::lease::exclusive::pod_in;

/// The time limit for the cloud to send a pod that is already on the node.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The key of a pod's uid in a volume's context, from the kubelet.
pub(super) const POD_UID: &str = "csi.storage.k8s.io/pod.uid";

/// A publication of a volume whose class leaves the decision to the pods' RuntimeClass.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) volume: String,
    /// The uid of the pod; empty if nothing names it.
    pub(super) pod: String,
    /// The decision at its creation.
    pub(super) is_direct: bool,
    /// True if a version up to 0.2 decided, for which some of today's handlers took no direct
    /// volumes.
    pub(super) is_earlier: bool,
}

/// The uid of the pod that a volume is published to; empty if nothing names it.
pub(super) fn pod_uid(context: &HashMap<String, String>, target: &Path) -> String {
    context.get(POD_UID).cloned().unwrap_or_else(|| pod_in(target))
}

/// Refuses the publication to a pod of the other kind, or of an unknown one.
///
/// # Errors
/// The pod is of the other kind, or its kind is not known.
pub(super) async fn check(metadata: &Metadata, decided: &Decided) -> Result<(), Error> {
    let Decided { volume, pod, is_direct, is_earlier } = decided;
    let unknown = |why: String| Error::RuntimeUnknown { volume: volume.clone(), why };
    if pod.is_empty() {
        let why = "neither the volume's context nor its target names the pod; \
                   set podInfoOnMount in the driver's CSIDriver";
        return Err(unknown(why.into()));
    }
    let Some((known, takes)) = metadata.pod_with_class(pod, PATIENCE).await else {
        let why = match metadata.is_sent() {
            true => format!("the RuntimeClass of pod {pod} has not come from csi-cloud"),
            false => format!(
                "the RuntimeClass of pod {pod} is not known: csi-cloud is not linked since the \
                 pod came, or does not send it (metadata in its section [kubernetes])"
            ),
        };
        return Err(unknown(why));
    };
    let took = takes && !(*is_earlier && known.added);
    if took == *is_direct {
        return Ok(());
    }
    Err(Error::OtherRuntime { volume: volume.clone(), why: refusal(&known, takes) })
}

fn refusal(pod: &KnownPod, takes_direct: bool) -> String {
    let KnownPod { namespace, name, runtime_class, .. } = pod;
    let class = match runtime_class {
        Some(class) => format!("RuntimeClass {class}"),
        None => "no RuntimeClass".to_owned(),
    };
    let (made_for, needed) = if takes_direct {
        ("ordinary pods, and is mounted on the host", "a RuntimeClass that is not a VM runtime's")
    } else {
        ("pods in guests, and is handed over as a device", "the RuntimeClass of a VM runtime")
    };
    format!(
        "it was made for {made_for}, and pod {namespace}/{name} has {class}; give the pod \
         {needed}, or a claim of its own"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use edge_calls::metadata::Receiving;
    use proto::control::metadata::{Object, Part, Pod, Position, RuntimeClass};
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;

    const TARGET: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount";

    #[test]
    fn the_kubelets_word_or_else_its_path_names_the_pod() {
        let context = HashMap::from([(POD_UID.to_owned(), "u-9".to_owned())]);
        assert_eq!(pod_uid(&context, Path::new(TARGET)), "u-9");
        assert_eq!(pod_uid(&HashMap::new(), Path::new(TARGET)), "u-1");
        assert_eq!(pod_uid(&HashMap::new(), Path::new("/mnt/x")), "");
    }

    async fn known(direct: Option<bool>) -> Arc<Metadata> {
        known_as(direct, false).await
    }

    async fn known_as(direct: Option<bool>, added: bool) -> Arc<Metadata> {
        let metadata = Arc::new(Metadata::default());
        let pod = Pod {
            namespace: "shop".into(),
            name: "db-0".into(),
            uid: "u-1".into(),
            runtime_class: direct.map(|_| "kata".into()),
            ..Pod::default()
        };
        let name = "kata".into();
        let handler = "h".into();
        let class = RuntimeClass { name, handler, direct: direct.unwrap_or_default(), added };
        let objects = vec![Object::Pod(pod), Object::RuntimeClass(class)];
        let to = Position { epoch: 1, revision: 1 };
        let part = Part { to, last: true, objects, ..Part::default() };
        metadata.take(&mut Receiving::default(), part).await;
        metadata
    }

    fn decided(pod: &str, is_direct: bool) -> Decided {
        Decided { volume: "v".into(), pod: pod.into(), is_direct, is_earlier: false }
    }

    #[tokio::test]
    async fn a_volume_decided_before_kata_was_added_keeps_its_pods() {
        let metadata = known_as(Some(true), true).await;
        let earlier = Decided { is_earlier: true, ..decided("u-1", false) };
        check(&metadata, &earlier).await.unwrap();
        assert!(check(&metadata, &decided("u-1", false)).await.is_err(), "it is a new volume");
        let metadata = known_as(Some(true), false).await;
        assert!(check(&metadata, &earlier).await.is_err(), "its handler was there before");
    }

    #[tokio::test]
    async fn a_pod_of_the_other_kind_is_refused_and_told_why() {
        for (pod, is_direct, words) in [
            (Some(true), false, "RuntimeClass kata"),
            (Some(false), true, "RuntimeClass kata"),
            (None, true, "no RuntimeClass"),
        ] {
            let metadata = known(pod).await;
            let refused = check(&metadata, &decided("u-1", is_direct)).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition);
            let text = refused.to_string();
            assert!(text.contains(words) && text.contains("pod shop/db-0"), "{text}");
            check(&metadata, &decided("u-1", !is_direct)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_pod_whose_kind_is_not_known_is_not_guessed() {
        let metadata = known(None).await;
        for pod in ["u-2", ""] {
            let refused = check(&metadata, &decided(pod, false)).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        }
    }
}
