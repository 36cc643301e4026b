//! Each row of the routing table, against a small world.

use super::*;

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn topology(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn volume(id: &str) -> Id {
    Id::Volume(id.into())
}

/// `n1` and `n2` in zone a, `n3` in zone b; volume `v1` lives on n1, `v3` on n3.
fn decide(key: &Key, default: Option<&str>) -> Result<Plan, Unclear> {
    let nodes = || {
        let at = |zone: &str, name: &str| {
            let pairs = [("node", name), ("zone", zone)];
            (node(name), pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
        };
        Arc::new(Nodes::from([at("a", "n1"), at("a", "n2"), at("b", "n3")]))
    };
    let home = |id: &Id| match id {
        Id::Volume(v) if v == "v1" => Some(node("n1")),
        Id::Volume(v) if v == "v3" => Some(node("n3")),
        _ => None,
    };
    let default = default.map(node);
    route(key, &Facts { home: &home, nodes: &nodes, default: default.as_ref() })
}

fn place(source: Option<Id>, topology: Vec<Segments>) -> Key {
    Key::Place { name: "pvc-1".into(), source, topology }
}

fn reason(decided: Result<Plan, Unclear>) -> String {
    match decided {
        Err(Unclear::Yet(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn to(name: &str) -> Result<Plan, Unclear> {
    Ok(Plan::Node(node(name)))
}

#[test]
fn a_volume_goes_to_the_first_topology_that_a_node_has() {
    let (n3, zone_a, nowhere) =
        (topology(&[("node", "n3")]), topology(&[("zone", "a")]), topology(&[("zone", "c")]));
    assert_eq!(decide(&place(None, vec![n3.clone(), zone_a.clone()]), Some("n2")), to("n3"));
    assert_eq!(decide(&place(None, vec![nowhere.clone(), zone_a]), Some("n2")), to("n1"));
    let both = topology(&[("zone", "b"), ("node", "n1")]);
    let refused = reason(decide(&place(None, vec![nowhere, both]), Some("n2")));
    assert!(refused.contains("{zone=c} or {node=n1,zone=b}; known: n1 {node=n1,zone=a}"), "{refused}");
}

#[test]
fn a_volume_goes_to_its_source_whatever_the_topology() {
    let key = place(Some(volume("v3")), vec![topology(&[("node", "n1")])]);
    assert_eq!(decide(&key, Some("n2")), to("n3"));
}

#[test]
fn without_a_word_it_is_the_default_node_or_nothing() {
    for key in [place(None, vec![]), place(None, vec![Segments::default()]), Key::All, Key::Capacity(None)] {
        assert_eq!(decide(&key, Some("n2")), to("n2"));
        let refused = reason(decide(&key, None));
        assert!(refused.contains("n1, n2, n3") && refused.contains("--default-node"), "{refused}");
    }
}

#[test]
fn what_lives_somewhere_is_called_there() {
    assert_eq!(decide(&Key::Home(volume("v3")), Some("n2")), to("n3"));
    assert_eq!(decide(&Key::Home(volume("other")), Some("n2")), to("n2"));
    // A snapshot of the same id is another thing.
    assert_eq!(decide(&Key::Home(Id::Snapshot("v3".into())), Some("n2")), to("n2"));
}

/// A driver answers OK when it is told to delete what it does not have, and the volume would be leaked.
#[test]
fn nothing_is_ended_on_a_guess() {
    assert_eq!(decide(&Key::End(volume("v3")), Some("n2")), to("n3"));
    assert!(reason(decide(&Key::End(volume("other")), Some("n2"))).contains("n1, n2, n3"));
    let one = || Arc::new(Nodes::from([(node("n1"), Place::default())]));
    let facts = Facts { home: &|_| None, nodes: &one, default: None };
    assert_eq!(route(&Key::End(volume("other")), &facts), to("n1"));
}

#[test]
fn a_group_has_one_home() {
    let group =
        |ids: &[&str]| Key::Cut { name: "g".into(), volumes: ids.iter().map(|id| volume(id)).collect() };
    assert_eq!(decide(&group(&["v1", "v1"]), Some("n2")), to("n1"));
    assert_eq!(decide(&group(&["v1", "unknown"]), Some("n2")), to("n1"));
    assert_eq!(decide(&group(&["unknown"]), Some("n2")), to("n2"));
    let several = vec![node("n1"), node("n3")];
    assert_eq!(decide(&group(&["v3", "v1"]), Some("n2")), Err(Unclear::SeveralHomes(several)));
}

#[test]
fn of_many_nodes_a_reason_names_a_few() {
    let all: Nodes = (0..20_000).map(|n| (node(&format!("n{n:05}")), Place::default())).collect();
    let all = Arc::new(all);
    let facts = Facts { home: &|_| None, nodes: &|| all.clone(), default: None };
    for key in [Key::All, Key::Capacity(Some(topology(&[("zone", "c")])))] {
        let refused = reason(route(&key, &facts));
        assert!(refused.contains("n00009") && refused.contains("and 19990 more"), "{refused}");
        assert!(refused.len() < 500, "{}", refused.len());
    }
}

#[test]
fn capacity_is_asked_where_the_topology_is() {
    let key = Key::Capacity(Some(topology(&[("zone", "b")])));
    assert_eq!(decide(&key, None), to("n3"));
}

#[test]
fn the_front_answers_for_itself_and_refuses_what_is_a_nodes() {
    assert_eq!(decide(&Key::Local, None), Ok(Plan::Local));
    assert_eq!(decide(&Key::Node(None), Some("n1")), Ok(Plan::NodeOnly));
}
