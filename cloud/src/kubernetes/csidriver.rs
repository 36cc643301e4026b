//! The CSIDriver object of a driver: what it shall say, and whether it is for us to say it.
//!
//! Pure. An object that somebody else manages is left alone, and what cannot be changed in place is never deleted by
//! us: a CSIDriver that is gone for a moment lets the attach/detach controller and kubelets treat volumes otherwise.

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

/// By this label an object says who manages it.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Labels and annotations that tools leave on what they manage.
const TOOLS: [(&str, &str); 7] = [
    ("meta.helm.sh/release-name", "a Helm release"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
    ("addonmanager.kubernetes.io/mode", "the addon manager"),
    ("olm.owner", "the Operator Lifecycle Manager"),
];
/// The shortest life of a token that the API takes, in seconds.
const SHORTEST_TOKEN: u16 = 600;

/// What an operator says of a driver's CSIDriver object. What he does not say has the API's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiDriverSettings {
    /// Node calls are told of the pod.
    pub pod_info_on_mount: Option<bool>,
    /// The scheduler asks for capacity.
    pub storage_capacity: Option<bool>,
    /// `None`, `File` or `ReadWriteOnceWithFSType`.
    pub fs_group_policy: Option<&'static str>,
    /// `Persistent`, `Ephemeral`; empty is the API's default.
    pub volume_lifecycle_modes: Vec<&'static str>,
    /// NodePublishVolume is called again and again.
    pub requires_republish: Option<bool>,
    /// The driver mounts with SELinux contexts.
    pub se_linux_mount: Option<bool>,
    /// Tokens of the pod's service account that node calls are given.
    pub token_requests: Vec<Token>,
}

/// A token of a pod's service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// For whom it is.
    pub audience: String,
    /// How long it is good, in seconds, at least 600; the API's default if it is not said.
    pub expiration_s: Option<u16>,
}

impl CsiDriverSettings {
    /// Takes a driver's section. What is contradictory in it is noted there.
    pub(crate) fn read(driver: &str, section: &mut Reader) -> Self {
        let tokens = section.sections("token_requests", |token| {
            let audience = token.parsed("audience", |text| Ok::<_, String>(text.to_owned()));
            let expiration_s = token.number("expiration_s", u16::MAX);
            if expiration_s.is_some_and(|s| s < SHORTEST_TOKEN) {
                token.problem(format!(
                    "[driver.{driver:?}] a token's expiration_s is at least {SHORTEST_TOKEN}"
                ));
            }
            // The API's audience is told by an empty text.
            Token { audience: audience.unwrap_or_default(), expiration_s }
        });
        let modes = section
            .list("volume_lifecycle_modes", |text| one_of(text, ["Persistent", "Ephemeral"]));
        Self {
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

/// What is to be done about a CSIDriver object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// It says what it shall.
    Keep,
    /// Apply what is wanted.
    Apply,
    /// This one manages it.
    Leave(String),
    /// It is ours, and says something that the API does not let us change: this.
    Remake(&'static str),
}

/// Whether volumes of the driver must be attached, as it says itself.
///
/// # Errors
/// Nothing is known of it yet.
pub(super) fn attach_required(said: &DriverInfo) -> Result<bool, Unknown> {
    let kind = Capabilities::Controller;
    let answer = said.answer(Local::Capabilities(kind), false)?;
    Ok(answer.is_some_and(|answer| {
        capability_names(kind, &answer).iter().any(|can| can == "PUBLISH_UNPUBLISH_VOLUME")
    }))
}

/// The object that a driver shall have.
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
            attach_required: Some(attach_required),
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

/// What is to be done, when the API has this object or none.
pub(super) fn decide(wanted: &CSIDriver, live: Option<&CSIDriver>) -> Decision {
    let Some(live) = live else { return Decision::Apply };
    let owners = ManagedFields::of(&live.metadata);
    if let Some(who) = someone_else(&live.metadata, &owners) {
        return Decision::Leave(who);
    }
    if wanted.spec.attach_required != live.spec.attach_required {
        return Decision::Remake("attachRequired");
    }
    if !same_modes(&wanted.spec, &live.spec) {
        return Decision::Remake("volumeLifecycleModes");
    }
    let (wanted, said) = (fields(&wanted.spec), fields(&live.spec));
    let differs = wanted.iter().any(|(field, value)| said.get(field) != Some(value));
    // What we applied before and do not want any more goes back to its default when we apply without it.
    let ours = owners.our_names(&["f:spec"]);
    if differs || !ours.iter().eq(wanted.keys()) { Decision::Apply } else { Decision::Keep }
}

/// As a map, in order of the fields' names.
fn fields(spec: &CSIDriverSpec) -> BTreeMap<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

fn same_modes(wanted: &CSIDriverSpec, live: &CSIDriverSpec) -> bool {
    let modes = |spec: &CSIDriverSpec| {
        let mut modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
        if modes.is_empty() {
            modes.push("Persistent".into());
        }
        modes.sort();
        modes
    };
    modes(wanted) == modes(live)
}

/// Who else manages an object, if anybody does.
fn someone_else(metadata: &ObjectMeta, owners: &ManagedFields<'_>) -> Option<String> {
    let labels = metadata.labels.iter().flatten();
    let mut marks = labels.chain(metadata.annotations.iter().flatten());
    let tool = marks.find_map(|(key, value)| {
        let tool =
            TOOLS.iter().find(|(mark, _)| mark == key).map(|(_, tool)| format!("{tool} ({value})"));
        tool.or_else(|| (key == MANAGED_BY && value != MANAGER).then(|| value.clone()))
    });
    let owner = || {
        let owner = metadata.owner_references.iter().flatten().next()?;
        Some(format!("{} {}", owner.kind, owner.name))
    };
    let manager = || owners.other(&["f:spec"]).map(str::to_owned);
    let nobody =
        || owners.ours(&["f:spec"]).is_none().then(|| "somebody who does not say so".to_owned());
    tool.or_else(owner).or_else(manager).or_else(nobody)
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

    /// What the API has after this was applied: with its defaults, and whose which field is.
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
        // Not said any more: the default comes back.
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
        // What others say of it besides is theirs, and no reason.
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

        let said = |answers: &[(&str, Vec<u8>)]| {
            let alike =
                answers.iter().map(|(name, answer)| ((*name).to_owned(), answer.clone().into()));
            let at = crate::state::record::NodeDriver {
                answers: std::sync::Arc::new(alike.collect()),
                ..Default::default()
            };
            attach_required(&DriverInfo::of(&BTreeMap::from([("n1".parse().unwrap(), at)])))
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
        // It has no controller.
        assert_eq!(said(&[("GetPluginInfo", Vec::new())]), Ok(false));
        assert_eq!(said(&[]), Err(Unknown));
    }
}
