use std::collections::BTreeMap;

use proptest::prelude::*;
use proto::control::metadata::{
    Attachment, Claim, Driver, NodeObject, Object, Part, Pod, PodVolume, RuntimeClass, Volume,
};

use super::*;

const NODES: [&str; 3] = ["n0", "n1", "n2"];

fn name(kind: &str, i: u8) -> Box<str> {
    format!("{kind}{i}").into()
}

/// A pod at a node, which uses these claims.
fn pod(i: u8, node: Option<u8>, claims: &[u8], class: Option<u8>) -> Observed {
    let volumes = claims.iter().map(|claim| PodVolume {
        name: name("v", *claim),
        claim: Some(name("c", *claim)),
        driver: None,
    });
    let pod = Pod {
        namespace: "ns".into(),
        name: name("p", i),
        uid: name("u", i),
        volumes: volumes.collect(),
        runtime_class: class.map(|class| name("r", class)),
        ..Pod::default()
    };
    let node = node.map(|node| NODES[usize::from(node) % NODES.len()].into());
    Observed { node, ..Observed::new(Object::Pod(pod)) }
}

fn claim(i: u8, volume: Option<u8>) -> Observed {
    Observed::new(Object::Claim(Claim {
        namespace: "ns".into(),
        name: name("c", i),
        uid: name("uc", i),
        volume: volume.map(|volume| name("pv", volume)),
        ..Claim::default()
    }))
}

fn volume(i: u8, claim: u8, driver: u8) -> Observed {
    Observed::new(Object::Volume(Volume {
        name: name("pv", i),
        driver: name("d", driver),
        handle: name("h", i),
        claim: Some(("ns".into(), name("c", claim))),
        ..Volume::default()
    }))
}

fn attachment(i: u8, node: u8, volume: u8) -> Observed {
    Observed::new(Object::Attachment(Attachment {
        name: name("a", i),
        volume: name("pv", volume),
        node: NODES[usize::from(node) % NODES.len()].into(),
        ..Attachment::default()
    }))
}

fn driver(i: u8, pod_info_on_mount: bool) -> Observed {
    let name = name("d", i);
    Observed::new(Object::Driver(Driver { name, pod_info_on_mount, ..Driver::default() }))
}

fn class(i: u8, direct: bool) -> Observed {
    let class = RuntimeClass { name: name("r", i), handler: "h".into(), direct, added: false };
    Observed::new(Object::RuntimeClass(class))
}

/// The Node of one of the nodes, with a label that changes.
fn node(i: u8, label: u8) -> Observed {
    let name = NODES[usize::from(i) % NODES.len()].into();
    let labels = [("l".into(), self::name("l", label))].into();
    Observed::new(Object::Node(NodeObject { name, labels, ..NodeObject::default() }))
}

/// An edge, as far as metadata goes.
struct Edge {
    position: Position,
    objects: BTreeMap<Key, Object>,
    wanted: Wanted,
}

impl Default for Edge {
    fn default() -> Self {
        Self { position: Position::default(), objects: BTreeMap::new(), wanted: Wanted::All }
    }
}

impl Edge {
    /// Takes what it lacks; of the parts only the first few arrive.
    fn catch_up(&mut self, index: &Index, node: &str, arrive: usize) {
        let Some(mut transfer) = index.since(node, self.position, self.wanted) else { return };
        let mut parts: Vec<Part> = Vec::new();
        while let Some(part) = transfer.next_part() {
            parts.push(part);
        }
        assert!(parts.last().unwrap().last && parts.iter().filter(|part| part.last).count() == 1);
        if arrive < parts.len() {
            return;
        }
        if parts[0].from.is_none() {
            self.objects.clear();
        }
        for part in parts {
            let mut kinds: Vec<_> = part.objects.iter().map(|object| object.key().kind).collect();
            kinds.extend(part.gone.iter().map(|key| key.kind));
            assert!(self.wanted == Wanted::All || !kinds.contains(&Kind::Node), "{kinds:?}");
            part.gone.iter().for_each(|key| drop(self.objects.remove(key)));
            self.objects.extend(part.objects.into_iter().map(|object| (object.key(), object)));
            self.position = part.to;
        }
    }
}

/// All objects that concern a node, found without any index.
fn expected(all: &BTreeMap<Key, Observed>, node: &str) -> BTreeMap<Key, Object> {
    let mut found = BTreeMap::new();
    let mut volumes = Vec::new();
    found.extend(one(all, &Key::of_cluster(Kind::Node, node)));
    for observed in all.values() {
        match observed.object.as_ref() {
            Object::Pod(pod) if observed.node.as_deref() == Some(node) => {
                found.insert(observed.object.key(), observed.object.as_ref().clone());
                if let Some(class) = &pod.runtime_class {
                    found.extend(one(all, &Key::of_cluster(Kind::RuntimeClass, class)));
                }
                for claim in pod.volumes.iter().filter_map(|volume| volume.claim.as_ref()) {
                    let key = Key::within(Kind::Claim, &pod.namespace, claim);
                    found.extend(one(all, &key));
                    let Some((_, Object::Claim(claim))) = one(all, &key) else { continue };
                    let own = all.values().filter_map(|other| match other.object.as_ref() {
                        Object::Volume(volume) => Some(volume),
                        _ => None,
                    });
                    let own = own.filter(|volume| {
                        claim.volume.as_ref() == Some(&volume.name)
                            && volume.claim == Some((claim.namespace.clone(), claim.name.clone()))
                    });
                    volumes.extend(own.map(|volume| volume.name.clone()));
                }
            }
            Object::Attachment(attachment) if *attachment.node == *node => {
                found.insert(observed.object.key(), observed.object.as_ref().clone());
                volumes.push(attachment.volume.clone());
            }
            _ => {}
        }
    }
    for volume in volumes {
        let volume = one(all, &Key::of_cluster(Kind::Volume, &volume));
        if let Some((_, Object::Volume(of))) = &volume {
            found.extend(one(all, &Key::of_cluster(Kind::Driver, &of.driver)));
        }
        found.extend(volume);
    }
    found
}

fn one(all: &BTreeMap<Key, Observed>, key: &Key) -> Option<(Key, Object)> {
    all.get(key).map(|observed| (key.clone(), observed.object.as_ref().clone()))
}

#[derive(Clone, Debug)]
enum Step {
    Set(Observed),
    Delete(usize),
    /// The edge of a node links; so many parts arrive.
    Link(u8, usize),
    /// A watch is broken, and reads its list again.
    List(usize),
    /// csi-cloud is started again.
    Restart,
}

fn object() -> impl Strategy<Value = Observed> {
    let small = || 0_u8..4;
    prop_oneof![
        3 => (0_u8..6, proptest::option::of(small()), proptest::collection::vec(small(), 0..3),
              proptest::option::of(small()))
            .prop_map(|(i, node, claims, class)| pod(i, node, &claims, class)),
        2 => (small(), proptest::option::of(small())).prop_map(|(i, of)| claim(i, of)),
        2 => (small(), small(), small()).prop_map(|(i, of, by)| volume(i, of, by)),
        1 => (small(), small(), small()).prop_map(|(i, at, of)| attachment(i, at, of)),
        1 => (small(), any::<bool>()).prop_map(|(i, info)| driver(i, info)),
        1 => (small(), any::<bool>()).prop_map(|(i, direct)| class(i, direct)),
        2 => (small(), small()).prop_map(|(i, label)| node(i, label)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => object().prop_map(Step::Set),
        6 => any::<usize>().prop_map(Step::Delete),
        6 => (0_u8..3, 0_usize..4).prop_map(|(node, parts)| Step::Link(node, parts)),
        2 => (0..KINDS.len()).prop_map(Step::List),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Reads all lists of a kind.
fn list(index: &mut Index, all: &BTreeMap<Key, Observed>, kind: Kind) {
    index.take(kind, Change::Begin);
    for (key, value) in all.iter().filter(|(key, _)| key.kind == kind) {
        index.take(kind, Change::Listed(key.clone(), Some(value.clone())));
    }
    index.take(kind, Change::Whole);
}

fn started(epoch: u64, all: &BTreeMap<Key, Observed>) -> Index {
    let mut index = Index::new(epoch);
    index.begin(Handlers::default());
    KINDS.iter().for_each(|kind| list(&mut index, all, *kind));
    index
}

proptest! {
    /// In any order of events, cuts and restarts: who caught up has exactly what concerns its node.
    #[test]
    fn each_edge_ends_with_exactly_what_concerns_its_node(steps in steps()) {
        let mut all: BTreeMap<Key, Observed> = BTreeMap::new();
        let mut epoch = 1;
        let mut index = started(epoch, &all);
        let mut edges: [Edge; 3] = Default::default();
        edges[1].wanted = Wanted::WithoutNode;
        for step in steps {
            match step {
                Step::Set(observed) => {
                    let key = observed.object.key();
                    all.insert(key.clone(), observed.clone());
                    index.take(key.kind, Change::Set(key, Some(observed)));
                }
                Step::Delete(at) => {
                    let key = all.keys().nth(at % all.len().max(1)).cloned();
                    let Some(key) = key else { continue };
                    all.remove(&key);
                    index.take(key.kind, Change::Set(key, None));
                }
                Step::Link(node, parts) => {
                    let at = NODES[usize::from(node)];
                    index.follow(at);
                    edges[usize::from(node)].catch_up(&index, at, parts);
                }
                Step::List(kind) => list(&mut index, &all, KINDS[kind]),
                Step::Restart => {
                    epoch += 1;
                    index = started(epoch, &all);
                }
            }
        }
        for (edge, node) in edges.iter_mut().zip(NODES) {
            index.follow(node);
            edge.catch_up(&index, node, usize::MAX);
            let mut expected = expected(&all, node);
            expected.retain(|key, _| edge.wanted == Wanted::All || key.kind != Kind::Node);
            prop_assert_eq!(&edge.objects, &expected);
            prop_assert!(index.since(node, edge.position, edge.wanted).is_none());
        }
    }
}

#[test]
fn nothing_is_said_before_every_kind_was_read() {
    let all: BTreeMap<_, _> = [pod(0, Some(0), &[0], None), claim(0, None)]
        .map(|observed| (observed.object.key(), observed))
        .into();
    let mut index = Index::new(1);
    let mut changed = index.follow("n0");
    for kind in KINDS {
        assert!(index.since("n0", Position::default(), Wanted::All).is_none());
        assert!(!changed.has_changed().unwrap());
        list(&mut index, &all, kind);
    }
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let mut edge = Edge::default();
    edge.catch_up(&index, "n0", usize::MAX);
    assert_eq!(edge.objects.len(), 2);
    // A list that is broken off changes nothing.
    index.take(Kind::Pod, Change::Begin);
    assert!(index.since("n0", edge.position, Wanted::All).is_none());
    index.take(Kind::Pod, Change::Whole);
    assert!(changed.has_changed().unwrap());
    edge.catch_up(&index, "n0", usize::MAX);
    assert!(edge.objects.is_empty(), "deletions that no event told");
}

#[test]
fn a_node_with_nothing_is_told_so() {
    let mut index = started(9, &BTreeMap::new());
    index.follow("n0");
    let part = index.since("n0", Position::default(), Wanted::All).unwrap().next_part().unwrap();
    assert!(part.last && part.from.is_none() && part.objects.is_empty());
    assert!(index.since("n0", part.to, Wanted::All).is_none());
}

#[test]
fn a_claim_that_names_anothers_volume_does_not_lead_to_it() {
    let all: BTreeMap<_, _> =
        [pod(0, Some(0), &[0], None), claim(0, Some(1)), claim(1, Some(1)), volume(1, 1, 1)]
            .map(|observed| (observed.object.key(), observed))
            .into();
    let mut index = started(1, &all);
    index.follow("n0");
    let kinds: Vec<_> = index.concerning("n0").into_keys().map(|key| key.kind).collect();
    assert_eq!(kinds, [Kind::Pod, Kind::Claim]);
}

#[test]
fn a_large_transfer_comes_in_parts_and_an_edge_far_behind_gets_everything() {
    let mut all = BTreeMap::new();
    let mut put = |observed: Observed| all.insert(observed.object.key(), observed);
    for i in 0..=255 {
        put(pod(i, Some(0), &[i], None));
        put(claim(i, None));
    }
    let mut index = started(1, &all);
    index.follow("n0");
    let mut transfer = index.since("n0", Position::default(), Wanted::All).unwrap();
    let mut parts = Vec::new();
    while let Some(part) = transfer.next_part() {
        let text = proto::control::hello::Message::Metadata(part.clone()).encode().unwrap();
        assert!(text.len() < 40_000);
        parts.push(part);
    }
    assert!(parts.len() > 1);
    let sent: usize = parts.iter().map(|part| part.objects.len()).sum();
    assert_eq!(sent, 512);
    let at = transfer.to();
    let keys: Vec<_> = all.keys().cloned().collect();
    for key in keys.iter().take(300) {
        index.take(key.kind, Change::Set(key.clone(), None));
    }
    assert!(index.since("n0", at, Wanted::All).unwrap().next_part().unwrap().from.is_some());
    for key in keys.iter().skip(300) {
        index.take(key.kind, Change::Set(key.clone(), None));
    }
    let all_over = index.since("n0", at, Wanted::All).unwrap().next_part();
    // 512 deletions are kept, and there were exactly as many.
    assert!(all_over.unwrap().from.is_some());
    index.take(Kind::Pod, Change::Set(keys[0].clone(), all.get(&keys[0]).cloned()));
    index.take(Kind::Pod, Change::Set(keys[0].clone(), None));
    assert!(index.since("n0", at, Wanted::All).unwrap().next_part().unwrap().from.is_none());
}

/// An index in which these pods use the claim `c0`.
fn used_by(pods: &[(Option<u8>, bool)], selected: bool) -> Index {
    let mut all = BTreeMap::new();
    let mut put = |observed: Observed| all.insert(observed.object.key(), observed);
    put(class(0, false));
    put(class(1, true));
    put(Observed { selected, ..claim(0, None) });
    for (i, (class, finished)) in pods.iter().enumerate() {
        let i = u8::try_from(i).unwrap();
        put(Observed { finished: *finished, ..pod(i, None, &[0], *class) });
    }
    started(1, &all)
}

#[test]
fn all_pods_that_use_the_claim_decide_and_nothing_is_guessed() {
    use crate::metadata::decide::Undecided;
    let of = |name: &str| crate::state::record::Claim {
        namespace: "ns".into(),
        name: name.into(),
        volume: "pv".into(),
    };
    let decide = |index: &Index| index.decide(Some(&of("c0")), "pvc-x");
    assert_eq!(decide(&used_by(&[(Some(1), false)], true)), Ok(true));
    assert_eq!(decide(&used_by(&[(Some(1), false), (Some(1), false)], false)), Ok(true));
    assert_eq!(decide(&used_by(&[(None, false)], true)), Ok(false));
    assert_eq!(decide(&used_by(&[(Some(0), false), (None, false)], true)), Ok(false));
    // An ended pod of the other kind does not count.
    assert_eq!(decide(&used_by(&[(Some(1), false), (None, true)], true)), Ok(true));
    let mixed = decide(&used_by(&[(Some(1), false), (None, false)], true)).unwrap_err();
    assert!(matches!(&mixed, Undecided::Mixed { direct, other, .. }
        if direct == "ns/p0" && other == "ns/p1"));
    assert!(!mixed.passes());
    // The scheduler has selected a node, so there is a pod.
    assert!(decide(&used_by(&[], true)).unwrap_err().passes());
    assert_eq!(decide(&used_by(&[], false)), Err(Undecided::NoPod("ns/c0".into())));
    assert!(decide(&used_by(&[(Some(3), false)], true)).unwrap_err().passes(), "no such class");
    let index = used_by(&[(None, false)], true);
    assert!(index.decide(Some(&of("c9")), "x").unwrap_err().passes());
    assert_eq!(index.decide(None, "x"), Err(Undecided::NoClaim));
    let other = "pvc-00000000-0000-0000-0000-000000000009";
    assert!(index.decide(Some(&of("c0")), other).unwrap_err().passes(), "of an earlier claim");
    assert_eq!(Index::new(1).decide(Some(&of("c0")), "x"), Err(Undecided::Off));
    let mut unread = Index::new(1);
    unread.begin(Handlers::default());
    assert!(unread.decide(Some(&of("c0")), "x").unwrap_err().passes());
}

/// An index in which a populator's pod without a RuntimeClass fills the volume of one claim for
/// `c0`, which pods of these classes use.
fn filled_for(pods: &[Option<u8>], selected: bool) -> Index {
    let mut all = BTreeMap::new();
    let mut put = |observed: Observed| all.insert(observed.object.key(), observed);
    put(class(0, false));
    put(class(1, true));
    put(Observed { selected, ..claim(0, None) });
    let prime = Claim { namespace: "cdi".into(), name: "prime-uc0".into(), ..Claim::default() };
    put(Observed { selected, ..Observed::new(Object::Claim(prime)) });
    let volume = PodVolume { claim: Some("prime-uc0".into()), ..PodVolume::default() };
    let importer = Pod {
        namespace: "cdi".into(),
        name: "importer".into(),
        volumes: [volume].into(),
        ..Pod::default()
    };
    put(Observed::new(Object::Pod(importer)));
    for (i, class) in (0..).zip(pods) {
        put(pod(i, None, &[0], *class));
    }
    started(1, &all)
}

#[test]
fn a_populators_pod_decides_nothing_for_the_pods_of_the_claim_that_it_fills() {
    use crate::metadata::decide::Undecided;
    let prime = crate::state::record::Claim {
        namespace: "cdi".into(),
        name: "prime-uc0".into(),
        volume: "pv".into(),
    };
    let decide = |index: &Index| index.decide(Some(&prime), "pvc-x");
    assert_eq!(decide(&filled_for(&[None, Some(0)], true)), Ok(false));
    let refused = decide(&filled_for(&[Some(1)], true)).unwrap_err();
    assert!(matches!(&refused, Undecided::Populated { claim, pod }
        if claim == "ns/c0" && pod == "ns/p0"));
    assert!(!refused.passes());
    let mixed = decide(&filled_for(&[Some(1), None], true)).unwrap_err();
    assert!(matches!(mixed, Undecided::Mixed { claim, .. } if claim == "ns/c0"));
    assert!(decide(&filled_for(&[], true)).unwrap_err().passes(), "the pod is on its way");
    // Nobody uses that claim yet, and what the host mounts to fill it is ordinary.
    assert_eq!(decide(&filled_for(&[], false)), Ok(false));
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// 1,000 nodes with 30 pods each, with names as long as those of a large installation.
#[test]
fn a_large_cluster_fits_into_300_mib() {
    const NODES: u32 = 1000;
    const PODS: u32 = 30;
    let before = resident();
    let mut index = Index::new(1);
    index.begin(Handlers::default());
    let node = |n: u32| format!("edge-node-{n:04}.shop.example.com");
    let followed: Vec<_> = (0..NODES).map(|n| index.follow(&node(n))).collect();
    KINDS.iter().for_each(|kind| index.take(*kind, Change::Begin));
    let mut put = |observed: Observed| {
        let key = observed.object.key();
        index.take(key.kind, Change::Listed(key, Some(observed)));
    };
    put(driver(0, true));
    put(class(0, true));
    for n in 0..NODES * PODS {
        let name =
            |kind: &str| -> Box<str> { format!("{kind}-data-point-of-sale-{n:06}-0").into() };
        let volume: Box<str> = format!("pvc-00000000-0000-4000-8000-{n:012}").into();
        let uses = PodVolume { name: "data".into(), claim: Some(name("c")), driver: None };
        let of = Pod {
            namespace: "point-of-sale".into(),
            name: name("p"),
            uid: format!("00000000-0000-4000-9000-{n:012}").into(),
            volumes: [uses].into(),
            runtime_class: Some("r0".into()),
            ..Pod::default()
        };
        let at = node(n % NODES);
        put(Observed { node: Some(at.as_str().into()), ..Observed::new(Object::Pod(of)) });
        let claim = Claim {
            namespace: "point-of-sale".into(),
            name: name("c"),
            uid: format!("00000000-0000-4000-8000-{n:012}").into(),
            volume: Some(volume.clone()),
            ..Claim::default()
        };
        put(Observed::new(Object::Claim(claim)));
        put(Observed::new(Object::Volume(Volume {
            name: volume.clone(),
            driver: "d0".into(),
            handle: volume.clone(),
            claim: Some(("point-of-sale".into(), name("c"))),
            ..Volume::default()
        })));
        let name = format!("csi-{n:064}").into();
        let of = Attachment { name, volume, node: at.into(), ..Attachment::default() };
        put(Observed::new(Object::Attachment(of)));
    }
    KINDS.iter().for_each(|kind| index.take(*kind, Change::Whole));
    assert!(followed.iter().all(|changed| changed.has_changed().unwrap()));
    let has = index.concerning(&node(7)).len();
    assert_eq!(has, 4 * usize::try_from(PODS).unwrap() + 2);
    let taken = resident().saturating_sub(before) >> 20;
    assert!(taken <= 300, "{taken} MiB");
}
