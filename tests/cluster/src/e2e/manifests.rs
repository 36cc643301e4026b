//! deploy/ against a real API server. Every document of the manifests, of the chart with the tests'
//! values and of the examples is applied as a dry run on the server, which validates, defaults and
//! admits it, and keeps nothing.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use kube::api::{Patch, PatchParams};

use super::scene::Scene;
use crate::stand::objects;

/// What `make e2e` renders from the chart.
const BUNDLES: &str = "tests/go/bin/bundles";
/// Manifests that are applied unchanged.
const EXAMPLES: &str = "deploy/examples";
/// Kinds that are other projects', and not installed here.
const FOREIGN: [&str; 2] = ["ServiceMonitor", "PrometheusRule"];

/// The API server accepts all of it; kinds that it does not know are named, and only those of the
/// monitoring are left out.
pub(super) async fn accepted(scene: &Scene<'_>) -> anyhow::Result<()> {
    let ground = &scene.cluster.ground;
    let mut tried = 0;
    let mut absent = BTreeSet::new();
    let [bundles, examples] = [BUNDLES, EXAMPLES].map(|dir| ground.sources(dir));
    let [bundles, examples] = [bundles?, examples?];
    ensure!(!bundles.is_empty(), "there is nothing in {BUNDLES}");
    ensure!(!examples.is_empty(), "there is nothing in {EXAMPLES}");
    for text in bundles.into_iter().chain(examples) {
        for object in objects::parse(&text)? {
            let kind = object["kind"].as_str().context("an object without a kind")?;
            if FOREIGN.contains(&kind) {
                absent.insert(kind.to_owned());
                continue;
            }
            dry_run(scene, &object).await?;
            tried += 1;
        }
    }
    ensure!(tried > 0, "no document was tried");
    println!(
        "{:24} {:>8}  {tried} documents accepted, not tried for want of their kinds: {absent:?}",
        "", ""
    );
    Ok(())
}

async fn dry_run(scene: &Scene<'_>, object: &serde_json::Value) -> anyhow::Result<()> {
    // The API server makes the name of an object without one at its creation.
    let kind = &object["kind"];
    let name = objects::name(object)?;
    let api = objects::api(&scene.cluster.client, object, scene.namespace()).await?;
    let mut params = PatchParams::apply("manifests").force().dry_run();
    params.field_validation = Some(kube::api::ValidationDirective::Strict);
    let applied = api.patch(name, &params, &Patch::Apply(object)).await;
    applied.map(drop).with_context(|| format!("the API server refuses {kind} {name}"))
}
