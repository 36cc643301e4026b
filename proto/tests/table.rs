//! The table of RPCs holds each RPC of the descriptor set once, and its columns agree with it.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto};
use proto::csi::method::{SERVICES, Service, of_driver};
use proto::csi::{DirectCall, Key, Learn, List, Local, Method, NodeStep, Resource, Rewrite};

/// `csi.proto`, compiled.
#[expect(clippy::unwrap_used, reason = "only tests call this")]
fn descriptor() -> FileDescriptorProto {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["csi/v1/csi.proto"], [root]).unwrap();
    files.file.into_iter().find(|file| file.package() == "csi.v1").unwrap()
}

/// One RPC of `csi.proto`.
struct Declared {
    path: String,
    name: String,
    streaming: bool,
    request: DescriptorProto,
    response: DescriptorProto,
}

fn declared() -> Vec<Declared> {
    let csi = descriptor();
    let message = |name: &str| {
        let name = name.rsplit('.').next();
        csi.message_type.iter().find(|message| Some(message.name()) == name).cloned()
    };
    let mut rpcs = Vec::new();
    for service in &csi.service {
        for method in &service.method {
            rpcs.push(Declared {
                path: format!("/csi.v1.{}/{}", service.name(), method.name()),
                name: method.name().to_owned(),
                streaming: method.server_streaming(),
                request: message(method.input_type()).unwrap_or_default(),
                response: message(method.output_type()).unwrap_or_default(),
            });
        }
    }
    rpcs
}

/// The declaration of a method.
#[expect(clippy::unwrap_used, reason = "only tests call this")]
fn declaration(method: Method) -> Declared {
    declared().into_iter().find(|rpc| rpc.path == method.path()).unwrap()
}

/// The name of the type of a field, without its package.
fn field_type(message: &DescriptorProto, number: u32) -> Option<&str> {
    let field = message.field.iter().find(|field| field.number() == number.cast_signed())?;
    field.type_name().rsplit('.').next()
}

/// Whether a field is a map from text to text.
fn is_map(message: &DescriptorProto, number: u32) -> bool {
    let entry = field_type(message, number);
    let entry = message.nested_type.iter().find(|nested| Some(nested.name()) == entry);
    entry.is_some_and(|entry| entry.options.as_ref().is_some_and(|options| options.map_entry()))
}

fn methods(of: impl Fn(Method) -> bool) -> BTreeSet<Method> {
    Method::ALL.iter().copied().filter(|method| of(*method)).collect()
}

#[test]
fn every_rpc_has_exactly_one_row() {
    let mut rows: Vec<_> = Method::ALL
        .iter()
        .map(|method| (method.path().to_owned(), method.name().to_owned(), method.streaming()))
        .collect();
    let mut declared: Vec<_> =
        declared().into_iter().map(|rpc| (rpc.path, rpc.name, rpc.streaming)).collect();
    rows.sort();
    declared.sort();
    assert_eq!(rows, declared);
    assert_eq!(rows.len(), 36);
}

#[test]
fn the_services_are_those_of_the_descriptor() {
    let declared: BTreeSet<_> =
        descriptor().service.iter().map(|service| format!("csi.v1.{}", service.name())).collect();
    assert_eq!(declared, SERVICES.iter().map(|service| (*service).to_owned()).collect());
}

#[test]
fn a_method_is_found_by_its_path_and_its_name() {
    for method in Method::ALL.iter().copied() {
        assert_eq!(Method::of_path(method.path()), Some(method));
        assert_eq!(Method::of_name(method.name()), Some(method));
        assert_eq!(format!("{method} {method:?}"), format!("{0} {0}", method.name()));
    }
    let long = format!("/csi.v1.Controller/{}", "CreateVolume".repeat(1000));
    for path in [
        "",
        "/",
        "CreateVolume",
        "/csi.v1.Controller/CreateVolumf",
        "/csi.v1.Controller/CreateVolume/",
        "/csi.v1.Node/CreateVolume",
        &long,
    ] {
        assert_eq!(Method::of_path(path), None, "{path}");
    }
    assert_eq!(Method::of_name("/csi.v1.Controller/CreateVolume"), None);
}

#[test]
fn methods_are_in_the_order_of_their_names() {
    let sorted = methods(|_| true);
    let mut names: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
    names.sort_unstable();
    assert!(sorted.iter().map(|method| method.name()).eq(names));
}

#[test]
fn what_is_made_is_in_the_answer_under_a_name_in_the_request() {
    for kind in Resource::ALL {
        let method = Method::creating(kind);
        assert_eq!(method.creates(), Some(kind));
        assert!(matches!(method.learn(), Learn::Made(_)));
        let rpc = declaration(method);
        assert!(rpc.request.field.iter().any(|field| field.name() == "name"), "{method}");
        let made = match kind {
            Resource::Volume => "Volume",
            Resource::Snapshot => "Snapshot",
            Resource::Group => "VolumeGroupSnapshot",
        };
        assert_eq!(field_type(&rpc.response, 1), Some(made));
    }
    assert_eq!(
        methods(|method| method.creates().is_some()),
        methods(|method| declaration(method).name.starts_with("Create"))
    );
    assert_eq!(
        methods(|method| matches!(method.learn(), Learn::Gone)),
        methods(|method| declaration(method).name.starts_with("Delete"))
    );
    assert_eq!(
        methods(|method| matches!(method.learn(), Learn::Made(_))),
        methods(|method| method.creates().is_some())
    );
    assert_eq!(methods(Method::detaches), [Method::ControllerUnpublishVolume].into());
}

#[test]
fn a_list_has_pages_and_travels_as_bulk() {
    for list in List::ALL {
        assert_eq!(Method::listing(list).lists(), Some(list));
    }
    let has_pages = |method| {
        let rpc = declaration(method);
        rpc.request.field.iter().any(|field| field.name() == "starting_token")
            && rpc.response.field.iter().any(|field| field.name() == "next_token")
    };
    assert_eq!(methods(|method| method.lists().is_some()), methods(has_pages));
    assert_eq!(methods(Method::bulk), methods(|m| m.lists().is_some() || m.streaming()));
}

#[test]
fn a_front_answers_what_is_the_same_for_all_requests() {
    for local in Local::ALL {
        assert_eq!(Method::answering(local).local(), Some(local));
    }
    let local = methods(|method| method.local().is_some());
    assert_eq!(local, Local::ALL.map(Method::answering).into_iter().collect());
    assert_eq!(local, methods(|method| method.key(&[]) == Ok(Key::Local)));
    assert!(local.iter().all(|method| declaration(*method).request.field.is_empty()));
    assert_eq!(
        methods(|method| matches!(method.local(), Some(Local::Capabilities(_)))),
        methods(|method| method.name().ends_with("GetCapabilities")
            || method == Method::GetPluginCapabilities)
    );
}

#[test]
fn the_secrets_of_a_request_are_its_field_of_that_name() {
    for method in Method::ALL.iter().copied() {
        let request = declaration(method).request;
        let secrets = request.field.iter().find(|field| field.name() == "secrets");
        let number = secrets.map(|field| field.number().cast_unsigned());
        assert_eq!(method.secrets(), number, "{method}");
        assert!(number.is_none_or(|number| is_map(&request, number)), "{method}");
    }
    assert_eq!(methods(|method| method.secrets().is_some()).len(), 22);
}

#[test]
fn without_its_secrets_a_request_keeps_all_else() {
    let secrets = std::collections::HashMap::from([("key".to_owned(), "marked".to_owned())]);
    let request = proto::csi::DeleteVolumeRequest { volume_id: "v".into(), secrets };
    let mut bytes = request.encode_to_vec();
    proto::csi::wire::append(&mut bytes, &[777], b"newer");
    let without = Method::DeleteVolume.without_secrets(&bytes).unwrap().unwrap();
    let mut expected = proto::csi::DeleteVolumeRequest { volume_id: "v".into(), ..request.clone() };
    expected.secrets.clear();
    let mut expected = expected.encode_to_vec();
    proto::csi::wire::append(&mut expected, &[777], b"newer");
    assert_eq!(without, expected);
    assert_eq!(Method::DeleteVolume.without_secrets(&without).unwrap(), None);
    assert_eq!(Method::ControllerGetVolume.without_secrets(&bytes).unwrap(), None);
}

#[test]
fn what_holds_a_topology_is_rewritten() {
    let csi = descriptor();
    let message = |name: &str| csi.message_type.iter().find(|message| message.name() == name);
    // Volumes and snapshots are inside answers, and inside the entries of lists.
    fn holds(message: &DescriptorProto, types: &[&str]) -> bool {
        let direct = message.field.iter().any(|field| {
            let name = field.type_name().rsplit('.').next();
            types.iter().any(|held| Some(*held) == name)
        });
        direct || message.nested_type.iter().any(|nested| holds(nested, types))
    }
    let rewritten = |method: Method| method.rewrite() != Rewrite::Nothing;
    for method in methods(rewritten) {
        let rpc = declaration(method);
        let holds_it = match method.rewrite() {
            Rewrite::Nothing => unreachable!(),
            Rewrite::PluginCapabilities => holds(&rpc.response, &["PluginCapability"]),
            Rewrite::NodeInfo => holds(&rpc.response, &["Topology"]),
            Rewrite::Capacity => holds(&rpc.request, &["Topology"]),
            Rewrite::CreateVolume => holds(&rpc.response, &["Volume"]),
            Rewrite::CreateSnapshot => holds(&rpc.response, &["Snapshot"]),
            Rewrite::ListVolumes => holds(&rpc.response, &["Volume"]),
            Rewrite::ListSnapshots => holds(&rpc.response, &["Snapshot"]),
        };
        assert!(holds_it, "{method}");
    }
    // And no request that asks for a place is forgotten.
    let asks = |method| holds(&declaration(method).request, &["Topology", "TopologyRequirement"]);
    assert!(methods(asks).is_subset(&methods(rewritten)));
    assert!(message("TopologyRequirement").is_some() && message("Topology").is_some());
}

#[test]
fn the_places_of_direct_volumes_are_capabilities_and_maps() {
    let has_capability = |method| {
        let request = declaration(method).request;
        request.field.iter().any(|field| field.type_name() == ".csi.v1.VolumeCapability")
    };
    assert_eq!(methods(|method| method.places().is_some()), methods(has_capability));
    for method in methods(has_capability) {
        let request = declaration(method).request;
        let places = method.places().unwrap();
        assert_eq!(field_type(&request, places.capability), Some("VolumeCapability"), "{method}");
        for number in places.context {
            assert!(is_map(&request, *number), "{method}: {number}");
        }
        let named = |field: &&prost_types::FieldDescriptorProto| {
            ["volume_context", "parameters"].contains(&field.name())
        };
        assert_eq!(request.field.iter().filter(named).count(), places.context.len(), "{method}");
        assert!(method.direct().is_some(), "{method} is sent to drivers of direct volumes");
    }
}

#[test]
fn each_call_on_a_direct_volume_is_one_rpcs() {
    let calls: BTreeSet<_> = Method::ALL.iter().filter_map(|method| method.direct()).collect();
    assert_eq!(calls.len(), methods(|method| method.direct().is_some()).len());
    let steps = methods(|method| matches!(method.direct(), Some(DirectCall::Node(_))));
    assert_eq!(steps, methods(|method| matches!(method.key(&[]), Ok(Key::Node(Some(_))))));
    assert_eq!(Method::NodeUnstageVolume.direct(), Some(DirectCall::Node(NodeStep::Unstage)));
}

#[test]
fn a_required_field_is_missed_in_an_empty_request() {
    let incomplete = methods(|method| method.incomplete(&bytes::Bytes::new()).is_some());
    let expected = [
        Method::ControllerPublishVolume,
        Method::ValidateVolumeCapabilities,
        Method::ControllerExpandVolume,
    ];
    assert_eq!(incomplete, expected.into());
}

#[test]
fn a_path_says_which_plugin_it_is_for() {
    let controllers = |path: &str| Service::of_path(path).map(Service::is_controllers);
    for service in ["Controller", "GroupController", "SnapshotMetadata"] {
        assert_eq!(controllers(&format!("/csi.v1.{service}/Future")), Some(true));
    }
    assert_eq!(controllers("/csi.v1.Node/NodeGetInfo"), Some(false));
    assert_eq!(controllers("/csi.v1.Identity/Probe"), Some(false));
    assert_eq!(controllers("/x.Controller/Future"), None);
}

#[test]
fn a_path_is_of_a_driver_only_if_its_service_is() {
    assert!(of_driver("/csi.v1.Controller/CreateVolume"));
    assert!(of_driver("/csi.v1.Node/NodeOfTheFuture"));
    for path in [
        "",
        "/",
        "csi.v1.Node/X",
        "/csi.v1.Node/",
        "/csi.v1.Node/a/b",
        "/grpc.health.v1.Health/Check",
        "/csi.v2.Node/X",
    ] {
        assert!(!of_driver(path), "{path}");
    }
}

proptest! {
    /// Bytes from outside are a key or an error, never a panic; so are answers.
    #[test]
    fn any_bytes_are_a_key_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        for method in Method::ALL.iter().copied() {
            if let Ok(key) = method.key(&bytes) {
                let _ = key.missing();
                let _ = method.about(&key);
            }
            let _ = method.same(&bytes, &bytes);
            let _ = method.incomplete(&bytes.clone().into());
            match method.learn() {
                Learn::Nothing | Learn::Gone => {}
                Learn::Made(read) => drop(read(&bytes.clone().into())),
                Learn::Attached(read) | Learn::Detached(read) => drop(read(&bytes)),
                Learn::Resized(read) => drop(read(&bytes)),
            }
        }
    }

    /// Any text is a path of the table or none.
    #[test]
    fn any_text_is_a_path_or_none(path in "(/csi\\.v1\\.[A-Z][a-z]+/)?[A-Za-z]{0,60}") {
        prop_assert!(Method::of_path(&path).is_none_or(|method| method.path() == path));
    }
}
