//! The CSIDriver object of a driver: its wanted content, and whether we may apply it.
//!
//! Pure. An object that somebody else manages is left alone. We never delete an object to change an
//! immutable field: without it the attach/detach controller and kubelets treat volumes differently.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, TokenRequest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::config::Reader;
use proto::csi::{Capabilities, Local};
use proto::names::DriverName;
use serde_json::Value;

use crate::kubernetes::managed_fields::{MANAGER, ManagedFields};
use crate::state::capabilities::capability_names;
use crate::state::driver_info::{DriverInfo, Unknown};

/// The label that names an object's manager.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Labels and annotations that tools leave on their objects.
const TOOLS: [(&str, &str); 7] = [
    ("meta.helm.sh/release-name", "a Helm release"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
    ("addonmanager.kubernetes.io/mode", "the addon manager"),
    ("olm.owner", "the Operator Lifecycle Manager"),
];
/// The shortest life of a token that the API accepts, in seconds.
const SHORTEST_TOKEN: u16 = 600;

/// The operator's settings of a CSIDriver object. Others have the API's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiDriverSettings {
    /// Volumes are attached, also if the driver needs none of that.
    pub attach_required: bool,
    /// Node calls have the pod's name.
    pub pod_info_on_mount: Option<bool>,
    /// The scheduler considers capacity.
    pub storage_capacity: Option<bool>,
    /// `None`, `File` or `ReadWriteOnceWithFSType`.
    pub fs_group_policy: Option<&'static str>,
    /// `Persistent`, `Ephemeral`; the API's default if empty.
    pub volume_lifecycle_modes: Vec<&'static str>,
    /// NodePublishVolume is repeated periodically.
    pub requires_republish: Option<bool>,
    /// The driver mounts with SELinux contexts.
    pub se_linux_mount: Option<bool>,
    /// Tokens of the pod's service account, for node calls.
    pub token_requests: Vec<Token>,
}

/// A token of a pod's service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its audience; empty for the API server's.
    pub audience: String,
    /// Its lifetime in seconds, at least 600; the API's default if none.
    pub expiration_s: Option<u16>,
}

impl CsiDriverSettings {
    /// Reads a driver's section. Mistakes are noted in it.
    pub(crate) fn read(driver: &str, section: &mut Reader) -> Self {
        let tokens = section.sections("token_requests", |token| {
            let audience = token.parsed("audience", |text| Ok::<_, String>(text.to_owned()));
            let expiration_s = token.number("expiration_s", u16::MAX);
            if expiration_s.is_some_and(|s| s < SHORTEST_TOKEN) {
                token.problem(format!(
                    "[driver.{driver:?}] a token's expiration_s is at least {SHORTEST_TOKEN}"
                ));
            }
            // An empty audience is the API server's own.
            Token { audience: audience.unwrap_or_default(), expiration_s }
        });
        let modes = section
            .list("volume_lifecycle_modes", |text| one_of(text, ["Persistent", "Ephemeral"]));
        let attach_required = section.yes_no("attach_required");
        if attach_required == Some(false) {
            section.problem(format!(
                "[driver.{driver:?}] attach_required can only be true; otherwise the driver itself \
                 says whether its volumes are attached"
            ));
        }
        Self {
            attach_required: attach_required.unwrap_or_default(),
            pod_info_on_mount: section.yes_no("pod_info_on_mount"),
            storage_capacity: section.yes_no("storage_capacity"),
            fs_group_policy: section.parsed("fs_group_policy", |text| {
                one_of(text, ["None", "File", "ReadWriteOnceWithFSType"])
            }),
            volume_lifecycle_modes: modes,
            requires_republish: section.yes_no("requires_republish"),
            se_linux_mount: section.yes_no("se_linux_mount"),
            token_requests: tokens,
        }
    }
}

fn one_of<const N: usize>(text: &str, known: [&'static str; N]) -> Result<&'static str, String> {
    known
        .into_iter()
        .find(|known| *known == text)
        .ok_or_else(|| format!("{text:?} is none of {known:?}"))
}

/// The decision about a CSIDriver object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// It is as wanted.
    Keep,
    /// Apply the wanted object.
    Apply,
    /// Leave it to this manager.
    Leave(String),
    /// It is ours, and this immutable field differs.
    Remake(&'static str),
}

/// Whether volumes of the driver must be attached, by its reported capabilities.
///
/// # Errors
/// No node has reported them yet.
pub(super) fn attach_required(said: &DriverInfo) -> Result<bool, Unknown> {
    let kind = Capabilities::Controller;
    let answer = said.answer(Local::Capabilities(kind), false)?;
    Ok(answer.is_some_and(|answer| {
        capability_names(kind, &answer).iter().any(|can| can == "PUBLISH_UNPUBLISH_VOLUME")
    }))
}

/// The wanted object of a driver.
pub(super) fn wanted(
    driver: &DriverName,
    attach_required: bool,
    settings: &CsiDriverSettings,
) -> CSIDriver {
    let tokens = settings.token_requests.iter().map(|token| TokenRequest {
        audience: token.audience.clone(),
        expiration_seconds: token.expiration_s.map(Into::into),
    });
    let modes = settings.volume_lifecycle_modes.iter().map(|mode| (*mode).to_owned());
    CSIDriver {
        metadata: ObjectMeta {
            name: Some(driver.to_string()),
            labels: Some(BTreeMap::from([(MANAGED_BY.to_owned(), MANAGER.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: CSIDriverSpec {
            attach_required: Some(attach_required || settings.attach_required),
            pod_info_on_mount: settings.pod_info_on_mount,
            storage_capacity: settings.storage_capacity,
            fs_group_policy: settings.fs_group_policy.map(Into::into),
            volume_lifecycle_modes: Some(modes.collect::<Vec<_>>())
                .filter(|modes| !modes.is_empty()),
            requires_republish: settings.requires_republish,
            se_linux_mount: settings.se_linux_mount,
            token_requests: Some(tokens.collect::<Vec<_>>()).filter(|tokens| !tokens.is_empty()),
            ..CSIDriverSpec::default()
        },
    }
}

/// Decides about the object that the API has.
pub(super) fn decide(wanted: &CSIDriver, live: Option<&CSIDriver>) -> Decision {
    let Some(live) = live else { return Decision::Apply };
    let managed = ManagedFields::of(&live.metadata);
    if let Some(who) = other_manager(&live.metadata, &managed) {
        return Decision::Leave(who);
    }
    if wanted.spec.attach_required != live.spec.attach_required {
        return Decision::Remake("attachRequired");
    }
    if !same_modes(&wanted.spec, &live.spec) {
        return Decision::Remake("volumeLifecycleModes");
    }
    let wanted = fields(&wanted.spec);
    let live = fields(&live.spec);
    let differs = wanted.iter().any(|(field, value)| live.get(field) != Some(value));
    // A field that we applied before and no longer want returns to its default.
    let ours = managed.our_names(&["f:spec"]);
    if differs || !ours.iter().eq(wanted.keys()) { Decision::Apply } else { Decision::Keep }
}

/// The fields that are set, in order of their names.
fn fields(spec: &CSIDriverSpec) -> BTreeMap<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

fn same_modes(wanted: &CSIDriverSpec, live: &CSIDriverSpec) -> bool {
    modes(wanted) == modes(live)
}

/// The lifecycle modes in order, with the API's default.
fn modes(spec: &CSIDriverSpec) -> Vec<String> {
    let mut modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
    if modes.is_empty() {
        modes.push("Persistent".into());
    }
    modes.sort();
    modes
}

/// The other manager of an object, if it has one.
fn other_manager(metadata: &ObjectMeta, managed: &ManagedFields<'_>) -> Option<String> {
    let unnamed = || "somebody who does not say so".to_owned();
    tool(metadata)
        .or_else(|| owner(metadata))
        .or_else(|| managed.other(&["f:spec"]).map(str::to_owned))
        .or_else(|| managed.ours(&["f:spec"]).is_none().then(unnamed))
}

/// The tool that left its mark on the object.
fn tool(metadata: &ObjectMeta) -> Option<String> {
    let labels = metadata.labels.iter().flatten();
    let mut marks = labels.chain(metadata.annotations.iter().flatten());
    marks.find_map(|(key, value)| {
        let known = TOOLS.iter().find(|(mark, _)| mark == key);
        let known = known.map(|(_, tool)| format!("{tool} ({value})"));
        known.or_else(|| (key == MANAGED_BY && value != MANAGER).then(|| value.clone()))
    })
}

/// The object that owns this one.
fn owner(metadata: &ObjectMeta) -> Option<String> {
    let owner = metadata.owner_references.iter().flatten().next()?;
    Some(format!("{} {}", owner.kind, owner.name))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::managed_fields::tests::managed;

    fn settings() -> CsiDriverSettings {
        CsiDriverSettings { storage_capacity: Some(true), ..CsiDriverSettings::default() }
    }

    fn ours(attach: bool, settings: &CsiDriverSettings) -> CSIDriver {
        wanted(&"d.example".parse().unwrap(), attach, settings)
    }

    /// The object that the API has after this one was applied, with its defaults and managers.
    fn applied(object: &CSIDriver) -> CSIDriver {
        let mut live = object.clone();
        let named = fields(&object.spec).into_keys().map(|field| (format!("f:{field}"), json!({})));
        let named = Value::Object(named.collect());
        live.metadata.managed_fields =
            Some(vec![managed(MANAGER, "Apply", json!({ "f:spec": named }))]);
        live.spec.pod_info_on_mount.get_or_insert(false);
        live.spec.fs_group_policy.get_or_insert_with(|| "ReadWriteOnceWithFSType".into());
        live.spec.volume_lifecycle_modes.get_or_insert_with(|| vec!["Persistent".into()]);
        live
    }

    #[test]
    fn it_is_applied_if_it_is_not_there_or_says_something_else() {
        let object = ours(true, &settings());
        assert_eq!(decide(&object, None), Decision::Apply);
        assert_eq!(decide(&object, Some(&applied(&object))), Decision::Keep);
        let more = CsiDriverSettings { pod_info_on_mount: Some(true), ..settings() };
        assert_eq!(decide(&ours(true, &more), Some(&applied(&object))), Decision::Apply);
        // A field that is no longer wanted returns to its default.
        assert_eq!(decide(&object, Some(&applied(&ours(true, &more)))), Decision::Apply);
        let mut changed = applied(&object);
        changed.spec.storage_capacity = Some(false);
        assert_eq!(decide(&object, Some(&changed)), Decision::Apply);
    }

    #[test]
    fn what_the_api_does_not_change_is_told() {
        let object = ours(true, &settings());
        let live = applied(&ours(false, &settings()));
        assert_eq!(decide(&object, Some(&live)), Decision::Remake("attachRequired"));
        let both = CsiDriverSettings {
            volume_lifecycle_modes: vec!["Persistent", "Ephemeral"],
            ..settings()
        };
        let both = ours(true, &both);
        assert_eq!(
            decide(&both, Some(&applied(&object))),
            Decision::Remake("volumeLifecycleModes")
        );
        let mut swapped = applied(&both);
        swapped.spec.volume_lifecycle_modes = Some(vec!["Ephemeral".into(), "Persistent".into()]);
        assert!(!matches!(decide(&both, Some(&swapped)), Decision::Remake(_)));
    }

    #[test]
    fn whoever_else_manages_it_is_left_alone() {
        let object = ours(true, &settings());
        let who = |change: &dyn Fn(&mut ObjectMeta)| {
            let mut live = applied(&ours(false, &settings()));
            change(&mut live.metadata);
            match decide(&object, Some(&live)) {
                Decision::Leave(who) => who,
                other => format!("{other:?}"),
            }
        };
        let also = |entry| {
            move |metadata: &mut ObjectMeta| {
                let entries: &mut Vec<_> = metadata.managed_fields.as_mut().unwrap();
                entries.push(Clone::clone(&entry));
            }
        };
        let edited =
            managed("kubectl-edit", "Update", json!({ "f:spec": { "f:podInfoOnMount": {} } }));
        assert_eq!(who(&also(edited)), "kubectl-edit");
        assert_eq!(who(&|metadata| metadata.managed_fields = None), "somebody who does not say so");
        let mark =
            |key: &str, value: &str| Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let helm = mark("meta.helm.sh/release-name", "lvm");
        assert_eq!(who(&|metadata| metadata.annotations = helm.clone()), "a Helm release (lvm)");
        let operator = mark(MANAGED_BY, "lvm-operator");
        assert_eq!(who(&|metadata| metadata.labels = operator.clone()), "lvm-operator");
        let owner =
            OwnerReference { kind: "Deployment".into(), name: "x".into(), ..Default::default() };
        assert_eq!(
            who(&|metadata| metadata.owner_references = Some(vec![owner.clone()])),
            "Deployment x"
        );
        // Fields of others outside the spec are no reason.
        let labelled = managed(
            "kubectl-label",
            "Update",
            json!({ "f:metadata": { "f:labels": { "f:x": {} } } }),
        );
        assert_eq!(who(&also(labelled)), "Remake(\"attachRequired\")");
    }

    #[test]
    fn attachment_is_what_the_driver_says() {
        use prost::Message;
        use proto::csi::controller_service_capability::{Rpc, Type, rpc};
        use proto::csi::{ControllerGetCapabilitiesResponse, ControllerServiceCapability};

        let said = |reported: &[(&str, Vec<u8>)]| {
            let answers =
                reported.iter().map(|(name, answer)| ((*name).to_owned(), answer.clone().into()));
            let at = crate::state::record::NodeDriver {
                answers: std::sync::Arc::new(answers.collect()),
                ..Default::default()
            };
            attach_required(&DriverInfo::of(None, &BTreeMap::from([("n1".parse().unwrap(), at)])))
        };
        let can = |can: rpc::Type| {
            let r#type = Some(Type::Rpc(Rpc { r#type: can.into() }));
            let answer = ControllerGetCapabilitiesResponse {
                capabilities: vec![ControllerServiceCapability { r#type }],
            };
            ("ControllerGetCapabilities", answer.encode_to_vec())
        };
        assert_eq!(said(&[can(rpc::Type::PublishUnpublishVolume)]), Ok(true));
        assert_eq!(said(&[can(rpc::Type::CreateDeleteVolume)]), Ok(false));
        // The driver has no controller.
        assert_eq!(said(&[("GetPluginInfo", Vec::new())]), Ok(false));
        assert_eq!(said(&[]), Err(Unknown));
    }
}
