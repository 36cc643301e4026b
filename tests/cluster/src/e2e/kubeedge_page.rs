//! docs/how-to/kubeedge.md, step by step out of the page. Stand-ins are there for what is
//! KubeEdge's own: CloudCore's role, its kind of objects, and its label of the node. The chart is
//! not installed by Helm: what it renders is applied, and a quota keeps its pods away, because the
//! stand's processes are in their place.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use proto::host::publish::{Existing, publish};
use serde_json::{Value, json};

use super::examples::{adapted, has_image};
use super::joins;
use super::kubeedge::{ROLE, forget_csinode, label, published_by_kubelet, says};
use super::scene::Scene;
use super::traces::Traces;
use crate::stand::cloud::NAMESPACE;
use crate::stand::node::Node;
use crate::stand::objects::{apply, delete, list, only, parse, within};
use crate::stand::{DRIVER, METADATA, RIGHTS, SECOND, SHARED};

/// The longest time for an action of our programs or of Kubernetes.
const SOON: Duration = Duration::from_secs(90);
/// How long the pod may take until it is back after a power cut.
const BACK: Duration = Duration::from_secs(60);
/// The page, and the section that has the steps.
const PAGE: &str = "docs/how-to/kubeedge.md";
const SECTION: &str = "\n## From a plain cluster to a pod that survives a power cut\n";
/// The name that the page has for the node.
const NAMED: &str = "node-1";
/// What the chart renders with each file of values, which the page names.
const VALUES: &str = "deploy/manifests/values/";
const RENDERED: &str = "deploy/manifests/";
/// The example's claim and Deployment.
const CLAIM: &str = "records";
const DEPLOYMENT: &str = "recorder";

/// CloudCore's role, aggregated as in KubeEdge's chart, and the objects that it makes.
const CLOUDCORE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cloudcore}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {rbac/aggregate-to-cloudcore: \"true\"}}]}
rules: []
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: objectsyncs.reliablesyncs.kubeedge.io}
spec:
  group: reliablesyncs.kubeedge.io
  names: {kind: ObjectSync, plural: objectsyncs}
  scope: Namespaced
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";
/// Keeps the pods of the chart away.
const QUOTA: &str = "
apiVersion: v1
kind: ResourceQuota
metadata: {name: processes, namespace: edge-csi}
spec: {hard: {pods: \"0\"}}
";
/// What CloudCore makes of an attachment without the policy.
const OBJECT_SYNC: &str = "
apiVersion: reliablesyncs.kubeedge.io/v1alpha1
kind: ObjectSync
metadata: {name: n2.attachment, namespace: default}
spec: {objectKind: VolumeAttachment, objectName: csi-1}
";

/// The blocks of each step of the page, in order.
fn steps(page: &str) -> anyhow::Result<Vec<String>> {
    let (_, section) = page.split_once(SECTION).context("the page has no steps")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut steps: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in section.lines() {
        let number = format!("{}. ", steps.len() + 1);
        if line.starts_with(&number) {
            steps.push(String::new());
        } else if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code && let Some(step) = steps.last_mut() {
            step.push_str(line.strip_prefix("   ").unwrap_or(line));
            step.push('\n');
        }
    }
    Ok(steps)
}

/// The commands of a step, each with its continuation lines.
fn commands(step: &str) -> Vec<String> {
    let joined = step.replace("\\\n", " ");
    joined.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Follows the page. In the end all is as other rows have it, but for the node's identity.
pub(super) async fn followed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let ground = &scene.cluster.ground;
    let walk = Walk {
        scene,
        node: scene.cluster.node("n2")?,
        steps: steps(&ground.source(PAGE)?)?,
        rendered: ground.source(&format!("{RENDERED}kubeedge.yaml"))?,
        plain: ground.source(&format!("{RENDERED}plain.yaml"))?,
    };
    let settings = [Setting::of_cloud(&walk), Setting::of_edge(&walk)];
    let settings = settings.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let done = walk.all(&settings).await;
    walk.end(&settings).await?;
    done
}

/// A configuration of the stand, as it is and as the chart would have it.
struct Setting {
    file: PathBuf,
    before: String,
    with: String,
}

impl Setting {
    fn new(file: PathBuf, added: &str) -> anyhow::Result<Self> {
        let before = std::fs::read_to_string(&file)?;
        let with = format!("{added}{before}");
        Ok(Self { file, before, with })
    }

    /// Where nodes join, as the chart has it of `address`. The stand's shared driver, if it is
    /// there, attaches its volumes, as the doctor asks for.
    fn of_cloud(walk: &Walk<'_>) -> anyhow::Result<Self> {
        let cluster = walk.scene.cluster;
        let [wss, _] = &cluster.cloud.urls;
        let file = cluster.ground.dir().join("cloud.toml");
        let setting = Self::new(file, &format!("advertise = \"{wss}\"\n"))?;
        let section = format!("[driver.\"{SHARED}\"]\n");
        let with = setting.with.replace(&section, &format!("{section}attach_required = true\n"));
        Ok(Self { with, ..setting })
    }

    fn of_edge(walk: &Walk<'_>) -> anyhow::Result<Self> {
        let dir = walk.scene.cluster.ground.dir().join(walk.node.name);
        Self::new(dir.join("csi-edge.toml"), "node_expansion = \"edge\"\n")
    }

    fn set(&self, text: &str) -> anyhow::Result<()> {
        publish(&self.file, text.as_bytes(), 0o600, Existing::Replace)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// The way through the page.
struct Walk<'a> {
    scene: &'a Scene<'a>,
    node: &'a Node,
    steps: Vec<String>,
    /// What the chart renders for KubeEdge, and for a plain cluster, which the stand has.
    rendered: String,
    plain: String,
}

impl Walk<'_> {
    async fn all(&self, settings: &[Setting]) -> anyhow::Result<()> {
        let [cloudcore, images, install, join, doctor, mount, wait, known] = &self.steps[..] else {
            bail!("the page has {} steps: {:?}", self.steps.len(), self.steps)
        };
        // CloudCore itself and images are not there.
        ensure!(cloudcore.contains("unixsocket:") && images.is_empty(), "{cloudcore}{images}");
        self.scene.apply(CLOUDCORE).await?;
        label(self.scene, self.node, json!("")).await?;
        has_image(self.scene, self.node).await?;
        for (check, verdict) in
            [("cloudcore-rights", "unknown"), ("nodes", "fault"), ("daemon-set", "unknown")]
        {
            says(self.scene, check, verdict).await?;
        }
        self.step(install).await?;
        says(self.scene, "nodes", "fault").await?;
        for setting in settings {
            setting.set(&setting.with)?;
        }
        self.scene.cluster.cloud.program.restart().await?;
        self.forget_shared().await?;
        says(self.scene, "publish-csinode", "ok").await?;
        self.step(join).await?;
        // As where edged is: no kubelet makes a CSINode.
        forget_csinode(self.scene, self.node).await?;
        self.clean(doctor).await?;
        self.traps(settings).await?;
        self.clean(doctor).await?;
        self.step(mount).await?;
        self.step(wait).await?;
        self.waiting_claim().await?;
        self.clean(doctor).await?;
        self.power(known).await?;
        self.clean(doctor).await
    }

    /// Deletes the shared driver's CSIDriver, whose `attachRequired` nobody can change. csi-cloud
    /// makes it anew by its present settings.
    async fn forget_shared(&self) -> anyhow::Result<()> {
        let drivers = Api::<CSIDriver>::all(self.scene.cluster.client.clone());
        match drivers.delete(SHARED, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).context("the CSIDriver of the shared driver stays"),
        }
    }

    /// Runs the commands of a step, as far as they are possible here.
    async fn step(&self, step: &str) -> anyhow::Result<()> {
        ensure!(!step.is_empty(), "a step has no commands");
        for command in commands(step) {
            self.run(&command).await.with_context(|| format!("the page's `{command}`"))?;
        }
        Ok(())
    }

    /// Runs a command of the page; returns what it says.
    async fn run(&self, command: &str) -> anyhow::Result<String> {
        let cluster = self.scene.cluster;
        let command = command.replace(NAMED, self.node.name);
        let words: Vec<_> = command.split_whitespace().collect();
        match &words[..] {
            ["helm", "install", ..] => {
                let values = words.iter().find_map(|word| word.strip_prefix(VALUES));
                ensure!(values == Some("kubeedge.yaml"), "other values than what is rendered");
                let quota = format!("{QUOTA}---\n{}", self.rendered);
                apply(&cluster.client, NAMESPACE, &quota).await?;
            }
            ["kubectl", "-n", "edge-csi", "exec", "csi-cloud-0", "--", "csi-cloud", asked @ ..] => {
                let said = cluster.cloud.says(&cluster.ground, asked).await?;
                if asked.starts_with(&["token", "create"]) {
                    self.join(&said).await?;
                }
                return Ok(said);
            }
            ["kubectl", "apply", "-f", file] => {
                self.scene.apply(&self.example(file)?).await?;
            }
            ["kubectl", "rollout", "status", deployment] => {
                ensure!(*deployment == format!("deployment/{DEPLOYMENT}"), "another Deployment");
                within(deployment, SOON, || async {
                    let found = self.scene.api::<Deployment>().get(DEPLOYMENT).await?;
                    let ready = found.status.and_then(|status| status.ready_replicas);
                    ensure!(ready == Some(1), "{ready:?} pods are ready");
                    Ok(())
                })
                .await?;
            }
            ["csi-edge", command, "--admin", _] => {
                let program = cluster.ground.program("csi-edge").display().to_string();
                let admin = cluster.ground.dir().join(self.node.name).join("fronts/_admin.sock");
                let admin = admin.display().to_string();
                let args = [*command, "--admin", &admin, "-o", "json"];
                return self.node.worker.space.run(&program, &args).await;
            }
            _ => bail!("it is not known here"),
        }
        Ok(String::new())
    }

    /// Runs what `csi-cloud token create` printed at the node, into the stand's directory.
    async fn join(&self, printed: &str) -> anyhow::Result<()> {
        joins::piped(self.scene, self.node, printed).await?;
        joins::serve(self.scene, self.node, &[]).await
    }

    /// An example, with pods that end at once.
    fn example(&self, file: &str) -> anyhow::Result<String> {
        let mut objects = parse(&adapted(&self.scene.cluster.ground.source(file)?)?)?;
        for object in &mut objects {
            if let Some(Value::Object(pod)) = object.pointer_mut("/spec/template/spec") {
                pod.insert("terminationGracePeriodSeconds".into(), json!(1));
            }
        }
        Ok(objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n"))
    }

    /// Waits until the doctor's command ends with exit code 0.
    async fn clean(&self, doctor: &str) -> anyhow::Result<()> {
        within("a doctor that finds nothing", SOON, || self.step(doctor)).await
    }

    /// An object of what is rendered.
    fn shipped(&self, kind: &str, of: &str) -> anyhow::Result<Value> {
        let objects = parse(&self.rendered)?;
        let is_it = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == of;
        objects.into_iter().find(is_it).with_context(|| format!("no {kind} {of} is rendered"))
    }

    /// Changes a rendered object, which the doctor must find, and puts it back.
    async fn changed(
        &self,
        check: &str,
        (kind, of): (&str, &str),
        change: impl FnOnce(&mut Value),
    ) -> anyhow::Result<()> {
        let client = &self.scene.cluster.client;
        let right = self.shipped(kind, of)?;
        let mut wrong = right.clone();
        change(&mut wrong);
        ensure!(wrong != right, "{kind} {of} is not changed");
        apply(client, NAMESPACE, &wrong.to_string()).await?;
        says(self.scene, check, "fault").await?;
        apply(client, NAMESPACE, &right.to_string()).await?;
        says(self.scene, check, "ok").await
    }

    /// Each thing that the page does is undone in turn, and the doctor says so.
    async fn traps(&self, settings: &[Setting]) -> anyhow::Result<()> {
        const POLICY: &str = "edge-csi-kubeedge";
        let policy = ("ValidatingAdmissionPolicy", POLICY);
        let binding = ("ValidatingAdmissionPolicyBinding", POLICY);
        let role = ("ClusterRole", "edge-csi-cloudcore");
        let daemon_set = ("DaemonSet", "csi-edge");
        self.changed("cloudcore-rights", role, |role| role["rules"] = json!([])).await?;
        self.changed("admission-policy", policy, |policy| {
            policy["spec"]["validations"][0]["expression"] = json!("true");
        })
        .await?;
        self.changed("admission-policy", binding, |binding| {
            let selector = json!({"matchLabels": {"no": "namespace"}});
            binding["spec"]["matchResources"] = json!({"namespaceSelector": selector});
        })
        .await?;
        self.object_sync(binding).await?;
        self.changed("node-selector", daemon_set, |set| {
            set["spec"]["template"]["spec"]["nodeSelector"] =
                json!({"edge-csi.io/no-node-has-it": "true"});
        })
        .await?;
        self.changed("registrar", daemon_set, |set| {
            let containers = set["spec"]["template"]["spec"]["containers"].as_array_mut();
            if let Some(containers) = containers {
                containers.retain(|one| !one["name"].to_string().contains("registrar"));
            }
        })
        .await?;
        self.of_cloud().await?;
        self.of_node(settings).await
    }

    /// The policy refuses an ObjectSync. Without its binding there is one, which the doctor finds.
    async fn object_sync(&self, (kind, of): (&str, &str)) -> anyhow::Result<()> {
        let client = &self.scene.cluster.client;
        within("a refusal by the policy", SOON, || async {
            let Err(refused) = apply(client, NAMESPACE, OBJECT_SYNC).await else {
                delete(client, NAMESPACE, OBJECT_SYNC).await?;
                bail!("it is made")
            };
            ensure!(format!("{refused:#}").contains("has no namespace"), "{refused:#}");
            Ok(())
        })
        .await?;
        says(self.scene, "object-syncs", "ok").await?;
        let binding = self.shipped(kind, of)?.to_string();
        delete(client, NAMESPACE, &binding).await?;
        says(self.scene, "admission-policy", "fault").await?;
        within("an ObjectSync", SOON, || apply(client, NAMESPACE, OBJECT_SYNC)).await?;
        says(self.scene, "object-syncs", "fault").await?;
        delete(client, NAMESPACE, OBJECT_SYNC).await?;
        apply(client, NAMESPACE, &binding).await?;
        says(self.scene, "admission-policy", "ok").await?;
        says(self.scene, "object-syncs", "ok").await
    }

    /// csi-cloud publishes no CSINodes, and a CSIDriver of somebody else needs no attachment.
    async fn of_cloud(&self) -> anyhow::Result<()> {
        let cluster = self.scene.cluster;
        let cloud = &cluster.cloud.program;
        let drivers = Api::<CSIDriver>::all(cluster.client.clone());
        cloud.stop().await?;
        self.publishes("off").await?;
        drivers.delete(SECOND, &DeleteParams::default()).await?;
        let spec = json!({"attachRequired": false});
        let other = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": SECOND}, "spec": spec});
        apply(&cluster.client, NAMESPACE, &other.to_string()).await?;
        cloud.run().await?;
        says(self.scene, "publish-csinode", "fault").await?;
        says(self.scene, &format!("attach-required of CSIDriver {SECOND}"), "fault").await?;
        drivers.delete(SECOND, &DeleteParams::default()).await?;
        says(self.scene, &format!("attach-required of CSIDriver {SECOND}"), "ok").await?;
        cloud.stop().await?;
        self.publishes("auto").await?;
        cloud.run().await?;
        says(self.scene, "publish-csinode", "ok").await?;
        says(self.scene, "nodes", "ok").await
    }

    /// From its next start on csi-cloud publishes CSINodes so.
    async fn publishes(&self, word: &str) -> anyhow::Result<()> {
        let cloud = &self.scene.cluster.cloud.program;
        let change = |args: &mut Vec<String>| {
            args.retain(|arg| !arg.starts_with("--publish-csinode="));
            args.push(format!("--publish-csinode={word}"));
        };
        cloud.reargue(change).await
    }

    /// The node has no link, and then no node expansion.
    async fn of_node(&self, settings: &[Setting]) -> anyhow::Result<()> {
        let Self { scene, node, .. } = self;
        node.relay.cut();
        says(scene, "nodes", "fault").await?;
        node.relay.mend();
        says(scene, "nodes", "ok").await?;
        let edge = settings.last().context("no settings")?;
        for (text, verdict) in [(&edge.before, "fault"), (&edge.with, "ok")] {
            edge.set(text)?;
            node.edge.restart().await?;
            says(scene, "node-expansion", verdict).await?;
        }
        Ok(())
    }

    /// A claim waits for its node to expand it, as the kubelet's own expansion leaves it.
    async fn waiting_claim(&self) -> anyhow::Result<()> {
        let claims = self.scene.api::<PersistentVolumeClaim>();
        let condition = json!({"type": "FileSystemResizePending", "status": "True"});
        for (conditions, verdict) in [(json!([condition]), "fault"), (json!([]), "ok")] {
            let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
            claims.patch_status(CLAIM, &PatchParams::default(), &status).await?;
            says(self.scene, "claims", verdict).await?;
        }
        Ok(())
    }

    /// A power cut without csi-cloud. The pod is back with its data, and the node knows its pod,
    /// its claim, and its own Node.
    async fn power(&self, known: &str) -> anyhow::Result<()> {
        let Self { scene, node, .. } = self;
        let traces = Traces::of(scene, CLAIM).await?;
        let driver = node.drivers.iter().find(|one| one.name == DRIVER).context("no driver")?;
        let data = driver.state.join("volumes").join(&traces.handle).join("data/records");
        let lines = || anyhow::Ok(std::fs::read_to_string(&data)?.lines().count());
        let before = lines()?;
        let pods = list(&scene.api::<Pod>()).await?;
        let pod = pods.first().context("no pod")?.name_any();
        node.relay.cut();
        tokio::try_join!(node.cut(), scene.cluster.cloud.program.kill())?;
        // The stand's kubelet finds none of ours when it makes its own; edged never looks.
        forget_csinode(scene, node).await?;
        node.switch_on(Duration::from_secs(1)).await?;
        within("the pod's data", BACK, || async {
            let now = lines()?;
            ensure!(now > before, "the pod has written {now} lines, and {before} before");
            Ok(())
        })
        .await?;
        let mut said = Vec::new();
        for command in commands(known) {
            said.push(serde_json::from_str::<Value>(&self.run(&command).await?)?);
        }
        let [volumes, status] = &said[..] else { bail!("step 8 shows {said:?}") };
        let names = [&pod, CLAIM].map(|name| format!("{}/{name}", scene.namespace()));
        let is_known = |one: &Value| {
            one["volume"] == *traces.handle && one["pod"] == names[0] && one["claim"] == names[1]
        };
        ensure!(volumes.as_array().into_iter().flatten().any(is_known), "it knows {volumes}");
        let object = &status["node_object"];
        ensure!(status["cloud"].is_null() && object["name"] == node.name, "it knows {status}");
        ensure!(object["labels"][ROLE] == "", "it knows {object}");
        let in_use = object["volumes_in_use"].to_string();
        ensure!(in_use.contains(&*traces.handle), "in use is {in_use}");
        scene.cluster.cloud.program.run().await?;
        node.relay.mend();
        scene.ready(&[&pod]).await?;
        forget_csinode(scene, node).await
    }

    /// Undoes what other rows do not expect.
    async fn end(&self, settings: &[Setting]) -> anyhow::Result<()> {
        let cluster = self.scene.cluster;
        cluster.mend().await?;
        for setting in settings {
            setting.set(&setting.before)?;
        }
        self.publishes("auto").await?;
        let stand = only(&self.plain, |kind, _| RIGHTS.contains(&kind))?;
        let kept = parse(&stand)?;
        let is_added = |object: &&Value| {
            let is_it = |other: &Value| {
                other["kind"] == object["kind"]
                    && other["metadata"]["name"] == object["metadata"]["name"]
            };
            object["metadata"]["name"] != METADATA && !kept.iter().any(is_it)
        };
        let rendered = parse(&self.rendered)?;
        let added: Vec<_> = rendered.iter().filter(is_added).map(Value::to_string).collect();
        for text in [&added.join("\n---\n"), QUOTA, CLOUDCORE] {
            delete(&cluster.client, NAMESPACE, text).await?;
        }
        apply(&cluster.client, NAMESPACE, &stand).await?;
        let example = self.example("deploy/examples/kubeedge.yaml")?;
        delete(&cluster.client, self.scene.namespace(), &example).await?;
        cluster.cloud.program.restart().await?;
        self.forget_shared().await?;
        self.node.edge.restart().await?;
        published_by_kubelet(self.scene, self.node).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_the_page_have_their_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/kubeedge.md");
        let steps = steps(&std::fs::read_to_string(page).unwrap()).unwrap();
        let counts: Vec<_> = steps.iter().map(|step| commands(step).len()).collect();
        assert_eq!(counts[1..], [0, 1, 1, 1, 1, 2, 2], "{steps:?}");
        assert!(commands(&steps[2])[0].contains("--set namespace=false"), "{steps:?}");
    }
}
