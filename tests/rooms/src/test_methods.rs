//! Tests of what counts as naming a method.

use super::*;

const PROTO: &str = "\
service Controller {
  rpc CreateVolume(CreateVolumeRequest) returns (CreateVolumeResponse);
  rpc ListVolumes (ListVolumesRequest) returns (ListVolumesResponse);
}
";

fn mentions(code: &str) -> Vec<(usize, String)> {
    let tree = Tree::of(&[
        ("Cargo.toml", "[workspace]\nmembers = [\"proto\", \"tests/x\"]"),
        ("proto/Cargo.toml", "[package]\nname = \"proto\""),
        ("proto/src/lib.rs", "mod csi;\nmod other;"),
        ("proto/src/csi/mod.rs", "fn f() { let a = \"CreateVolume\"; }"),
        ("proto/src/other.rs", code),
        ("tests/x/Cargo.toml", "[package]\nname = \"x\""),
        ("tests/x/src/lib.rs", "fn f() { let a = \"CreateVolume\"; }"),
        (SERVICES, PROTO),
    ]);
    let found = all(&tree, &House::read(&tree).unwrap()).unwrap();
    assert!(found.iter().all(|mention| mention.file == "proto/src/other.rs"));
    found.into_iter().map(|mention| (mention.line, mention.what)).collect()
}

fn lines(code: &str) -> Vec<usize> {
    mentions(code).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn strings_count_wherever_they_stand() {
    let code = "\
fn f(m: &str) {
    m == \"CreateVolume\";
    \"/csi.v1.Controller/ListVolumes\";
    g!(m, [\"ListVolumes\"]);
}
#[derive(Parser)]
struct S {
    #[arg(default_value = \"CreateVolume\")]
    m: String,
}
";
    assert_eq!(lines(code), [2, 3, 4, 8]);
}

#[test]
fn patterns_and_comparisons_count() {
    let code = "\
fn f(m: Method) {
    match m {
        Method::CreateVolume | csi::Method::ListVolumes => {}
        _ => {}
    }
    if m == Method::CreateVolume {}
    if &Method::CreateVolume != m {}
    matches!(m, Method::ListVolumes if m.x());
    let _ = if let Some(Method::ListVolumes) = m {};
    [Method::ListVolumes].contains(&m);
    assert!(m == Method::ListVolumes);
    select! { a = b() => match m { Method::ListVolumes => {} } };
    match m { ListVolumes => {} }
    m == Some(Method::CreateVolume);
}
";
    assert_eq!(lines(code), [3, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    assert_eq!(mentions(code)[0].1, "pattern Method::CreateVolume");
}

#[test]
fn comparisons_with_a_name_or_a_path_count() {
    let code = "\
fn f(m: &str) {
    if m == Method::CreateVolume.name() {}
    if Method::ListVolumes.path() != m {}
    let is = m.ends_with(Method::ListVolumes.name());
    let is = Some(m) == Some(Method::ListVolumes.name());
    m.ends_with(\"/CreateVolume\");
    matches!(m, other if other == Method::CreateVolume.path());
    select! { a = b() => if Method::CreateVolume.name() == a {} };
    assert_eq!(m.path(), Method::CreateVolume.path());
}
";
    assert_eq!(lines(code), [2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn constants_of_a_name_or_a_path_count() {
    let code = "\
const MAKES: &str = Method::CreateVolume.name();
static PATHS: [&str; 1] = [Method::ListVolumes.path()];
impl S {
    const LISTS: &str = csi::Method::ListVolumes.name();
}
fn f(m: &str) {
    const MAKES: &str = (Method::CreateVolume.path());
    match m { MAKES => {} _ => {} }
}
const METHOD: Method = Method::CreateVolume;
const OTHER: &str = Method::POST.name();
static URI: Uri = Uri::from_static(Method::CreateVolume.path());
";
    assert_eq!(lines(code), [1, 2, 4, 7]);
    assert_eq!(mentions(code)[0].1, "constant of Method::CreateVolume");
}

#[test]
fn values_comments_tests_and_other_methods_do_not_count() {
    let code = "\
/// Like \"CreateVolume\".
fn f(m: http::Method) {
    ask(Method::ListVolumes, select! { a = b(Method::CreateVolume) => {} });
    if m == Method::POST {}
    let text = \"CreateVolume failed\";
    for m in [Method::ListVolumes] {}
    answers.get(Method::ListVolumes.name());
    if m.name() == n.name() {}
}
#[cfg(test)]
mod tests {
    const A: &str = \"CreateVolume\";
}
";
    assert_eq!(mentions(code), []);
}
