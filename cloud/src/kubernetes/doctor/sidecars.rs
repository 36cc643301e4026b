//! The sidecars that run beside csi-cloud: their versions, by the images of their pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use proto::admin::doctor::Finding;

use crate::kubernetes::doctor::lookup::Lookup;

/// The sidecars, and the version that `deploy/` has. Older ones are not tried.
const SIDECARS: &[(&str, u32, u32)] = &[
    ("csi-provisioner", 6, 3),
    ("csi-attacher", 4, 12),
    ("csi-resizer", 2, 2),
    ("csi-snapshotter", 8, 6),
];

const CHECK: &str = "sidecars";

/// The images of a pod.
pub(super) fn images(pod: &Pod) -> Vec<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|container| container.image.clone()).collect()
}

/// What is said of them.
pub(super) fn findings(images: &Lookup<Vec<String>>) -> Vec<Finding> {
    let images = match images {
        Lookup::Found(images) => images,
        Lookup::Missing => &Vec::new(),
        Lookup::Hidden(_) => {
            return vec![Finding::unknown(
                CHECK,
                "pods of this namespace",
                "their versions cannot be seen: csi-cloud may not list pods",
                "see `kubectl -n NAMESPACE get pods -o \
                 jsonpath='{..spec.containers[*].image}'`; csi-cloud needs no such right",
            )];
        }
    };
    let mut running = BTreeMap::<&str, BTreeSet<&str>>::new();
    for image in images {
        if let Some((name, tag)) = sidecar(image) {
            running.entry(name).or_default().insert(tag);
        }
    }
    if running.is_empty() {
        return vec![Finding::warning(
            CHECK,
            "pods of this namespace",
            "no sidecar runs there, so nobody calls csi-cloud from this namespace",
            "apply a component with sidecars, or see that those elsewhere reach csi-cloud's \
             sockets (`csi-cloud relay`)",
        )];
    }
    running.into_iter().map(|(name, tags)| judged(name, &tags)).collect()
}

/// The sidecar of an image, and its tag.
fn sidecar(image: &str) -> Option<(&'static str, &str)> {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    let last = image.rsplit('/').next()?;
    let (name, tag) = last.split_once(':').unwrap_or((last, ""));
    SIDECARS.iter().find(|(known, ..)| *known == name).map(|(known, ..)| (*known, tag))
}

fn judged(name: &str, tags: &BTreeSet<&str>) -> Finding {
    let all = tags.iter().copied().collect::<Vec<_>>().join(", ");
    let tried = SIDECARS.iter().find(|(known, ..)| *known == name);
    let (_, major, minor) = tried.copied().unwrap_or((name, 0, 0));
    if tags.iter().any(|tag| version(tag).is_none()) {
        let advice = format!("see that it is v{major}.{minor} or newer");
        return Finding::unknown(CHECK, name, format!("its tag has no version: {all}"), advice);
    }
    if tags.iter().any(|tag| version(tag) < Some((major, minor))) {
        let found = format!("{all}; versions before v{major}.{minor} are not tried");
        let advice = format!("update it to v{major}.{minor} or newer");
        return Finding::warning(CHECK, name, found, advice);
    }
    Finding::ok(CHECK, name, all)
}

fn version(tag: &str) -> Option<(u32, u32)> {
    let mut numbers = tag.strip_prefix('v').unwrap_or(tag).split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    fn said(images: &[&str]) -> Vec<(String, Verdict)> {
        let images = images.iter().map(|image| (*image).to_owned()).collect();
        let findings = findings(&Lookup::Found(images));
        findings.into_iter().map(|finding| (finding.about, finding.verdict)).collect()
    }

    #[test]
    fn sidecars_are_known_by_their_images() {
        let right = "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0";
        let of = |name: &str, verdict| (name.to_owned(), verdict);
        assert_eq!(said(&[right, "csi-cloud"]), [of("csi-provisioner", Verdict::Ok)]);
        let digest = format!("{right}@sha256:00");
        assert_eq!(said(&[&digest]), [of("csi-provisioner", Verdict::Ok)]);
        assert_eq!(said(&[right, "x/csi-provisioner:v5.2.0"])[0].1, Verdict::Warning);
        assert_eq!(said(&["h:5000/csi-attacher"])[0], of("csi-attacher", Verdict::Unknown));
        assert_eq!(said(&["csi-attacher:canary"])[0].1, Verdict::Unknown);
        assert_eq!(said(&["csi-cloud:1.0.0"])[0].1, Verdict::Warning);
        let hidden = findings(&Lookup::Hidden("forbidden".into()));
        assert_eq!(hidden[0].verdict, Verdict::Unknown);
        assert!(hidden[0].advice.contains("kubectl"), "{hidden:?}");
    }

    #[test]
    fn the_versions_are_those_of_the_manifests() {
        let values = include_str!("../../../../deploy/helm/edge-csi/values.yaml");
        let lines: Vec<_> =
            values.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        for (name, major, minor) in SIDECARS {
            let image = format!("sig-storage/{name}:");
            let tags = lines.iter().filter_map(|line| line.split_once(&image));
            let found: BTreeSet<_> = tags.filter_map(|(_, tag)| version(tag)).collect();
            assert_eq!(found, [(*major, *minor)].into(), "{name}");
        }
    }
}
