//! `csi-cloud doctor`, and `csi-cloud doctor kubeedge`, against a real API server: what they may
//! not read, what is missing, and what is right.

use std::collections::BTreeMap;

use super::*;

/// What the doctor said: its exit code was 0, and the verdicts by check.
type Said = (bool, BTreeMap<String, Vec<String>>);

impl Plane {
    /// Makes an object of any kind.
    async fn post(&self, path: &str, object: Value) -> anyhow::Result<()> {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object)?)?;
        self.admin.request::<Value>(request).await.with_context(|| path.to_owned())?;
        Ok(())
    }
}

impl Site {
    async fn doctor(&self) -> anyhow::Result<Said> {
        let admin = self.world.stand.at("cloud/_admin.sock");
        let mut command = self.world.stand.program("csi-cloud")?;
        command.args(["doctor", "kubeedge", "-o", "json", "--admin", &admin]);
        let output = command.output().await?;
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let mut said = BTreeMap::<String, Vec<String>>::new();
        for finding in &findings {
            let word = |key: &str| finding[key].as_str().map(str::to_owned).context("no word");
            let needs_advice = word("verdict")? != "ok";
            ensure!(word("advice")?.is_empty() != needs_advice, "{finding}");
            said.entry(word("check")?).or_default().push(word("verdict")?);
        }
        Ok((output.status.success(), said))
    }

    /// Waits until the doctor says this of all checks.
    async fn doctor_says(&self, expected: &[(&str, &[&str])]) -> anyhow::Result<()> {
        let of = |verdicts: &[&str]| verdicts.iter().map(|word| (*word).to_owned()).collect();
        let expected: BTreeMap<String, Vec<String>> =
            expected.iter().map(|(check, verdicts)| ((*check).to_owned(), of(verdicts))).collect();
        let is_right = expected.values().flatten().all(|verdict| verdict == "ok");
        until("the doctor says so", || async {
            let said = self.doctor().await?;
            ensure!(said == (is_right, expected.clone()), "{said:?}");
            Ok(())
        })
        .await
    }

    /// Gives csi-cloud the rights that the chart gives it with `kubeedge: true`.
    async fn let_the_doctor_look(&self) -> anyhow::Result<()> {
        let rule = |group: &str, resources: &[&str], verb: &str| {
            let verbs = [verb];
            json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
        };
        let policies = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
        let rules = json!([
            rule(RBAC, &["clusterroles"], "get"),
            rule("admissionregistration.k8s.io", &policies, "get"),
            rule("reliablesyncs.kubeedge.io", &["objectsyncs"], "list"),
            rule("apps", &["daemonsets"], "get"),
        ]);
        let role = json!({"metadata": {"name": "doctor"}, "rules": rules});
        self.plane.make::<ClusterRole>(role, "admin").await?;
        let binding = json!({
            "metadata": {"name": "doctor"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "doctor"},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "edge-csi"}],
        });
        self.plane.make::<ClusterRoleBinding>(binding, "admin").await.map(drop)
    }

    /// What the component brings, and a CloudCore.
    async fn install(&self) -> anyhow::Result<()> {
        let rule = json!({"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"],
            "verbs": ["get", "list", "watch"]});
        let role = json!({"metadata": {"name": "cloudcore"}, "rules": [rule]});
        self.plane.make::<ClusterRole>(role, "admin").await?;
        let rule = json!({"apiGroups": ["reliablesyncs.kubeedge.io"], "apiVersions": ["*"],
            "operations": ["CREATE"], "resources": ["objectsyncs"]});
        let expression = "object.?spec.?objectKind.orValue(\"\") != \"VolumeAttachment\"";
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "edge-csi-kubeedge"},
            "spec": {"failurePolicy": "Ignore", "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": expression}]},
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "edge-csi-kubeedge"},
            "spec": {"policyName": "edge-csi-kubeedge", "validationActions": ["Deny"]},
        });
        let at = "/apis/admissionregistration.k8s.io/v1";
        self.plane.post(&format!("{at}/validatingadmissionpolicies"), policy).await?;
        self.plane.post(&format!("{at}/validatingadmissionpolicybindings"), binding).await?;
        let labels = json!({"app": "csi-edge"});
        let container = json!({"name": "registrar", "image": "x",
            "args": ["--kubelet-registration-path=/x"]});
        let pod = json!({"nodeSelector": {"node-role.kubernetes.io/edge": ""},
            "containers": [container]});
        let daemon_set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "csi-edge"},
            "spec": {"selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod}},
        });
        self.plane.post("/apis/apps/v1/namespaces/default/daemonsets", daemon_set).await
    }
}

fn object_sync_kind() -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-preserve-unknown-fields": true}}});
    let names = json!({"kind": "ObjectSync", "listKind": "ObjectSyncList",
        "plural": "objectsyncs", "singular": "objectsync"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "objectsyncs.reliablesyncs.kubeedge.io"},
        "spec": {"group": "reliablesyncs.kubeedge.io", "scope": "Namespaced", "names": names,
            "versions": [{"name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

#[tokio::test]
async fn the_doctor_says_what_it_cannot_see_what_is_missing_and_that_all_is_well()
-> anyhow::Result<()> {
    let Some(mut site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.stands("ours").await?;
    // csi-cloud has its usual rights alone, and no node is KubeEdge's.
    let mut expected: Vec<(&str, &[&str])> = vec![
        ("cloudcore-rights", &["unknown"]),
        ("admission-policy", &["unknown"]),
        ("object-syncs", &["unknown"]),
        ("attach-required", &["ok"]),
        ("nodes", &["fault"]),
        ("daemon-set", &["unknown"]),
        ("claims", &["ok"]),
    ];
    site.doctor_says(&expected).await?;
    site.let_the_doctor_look().await?;
    // There is no CloudCore, so only the policy is known to be missing.
    expected[1].1 = &["fault"];
    site.doctor_says(&expected).await?;
    site.install().await?;
    let kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    site.plane.post(kinds, object_sync_kind()).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}}));
    site.plane.all::<Node>().patch(NODE, &PatchParams::default(), &label).await?;
    let mut right: [(&str, &[&str]); 10] = [
        ("cloudcore-rights", &["ok"]),
        ("admission-policy", &["ok"]),
        ("object-syncs", &["ok"]),
        ("attach-required", &["ok"]),
        ("publish-csinode", &["ok"]),
        ("nodes", &["ok"]),
        ("node-selector", &["ok"]),
        ("registrar", &["ok"]),
        ("claims", &["ok"]),
        ("node-expansion", &["fault"]),
    ];
    site.doctor_says(&right).await?;
    // csi-edge does the node's half of expansion from now on.
    let config = site.world.stand.at("edge.toml");
    let text = b"node_expansion = \"edge\"\n";
    publish(config.as_ref(), text, 0o600, Existing::Keep)?;
    let url = site.world.url().to_owned();
    let state = site.world.stand.at("edge-state");
    let more = ["--cloud", &url, "--config", &config, "--state", &state];
    let socket = site.world.stand.at("driver.sock");
    site.end_edge().await?;
    let edge = site.world.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
    std::mem::replace(&mut site.world.edge, edge).stop(START).await?;
    right[9].1 = &["ok"];
    site.doctor_says(&right).await?;
    // A table for people has the same.
    let table = site.say(&["doctor", "kubeedge"]).await?;
    assert!(table.contains("cloudcore-rights") && table.contains("1 of 1 are right"), "{table}");
    site.stop().await
}

/// The findings of a check of `csi-cloud doctor`: verdict, object, and text.
type Checked = Vec<[String; 3]>;

impl Site {
    async fn checked(&self, check: &str) -> anyhow::Result<Checked> {
        let admin = self.world.stand.at("cloud/_admin.sock");
        let mut command = self.world.stand.program("csi-cloud")?;
        command.args(["doctor", "-o", "json", "--admin", &admin]);
        let output = command.output().await?;
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let is_well = !findings.iter().any(|finding| finding["verdict"] == "fault");
        ensure!(output.status.success() == is_well, "{findings:?}");
        let word = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
        let of = findings.iter().filter(|finding| finding["check"] == check);
        Ok(of.map(|of| ["verdict", "about", "found"].map(|key| word(of, key))).collect())
    }

    /// Checks that there is one finding of this check, and what it says.
    async fn is(&self, check: &str, verdict: &str, found: &str) -> anyhow::Result<()> {
        let findings = self.checked(check).await?;
        let is_so =
            matches!(&findings[..], [[of, _, text]] if of == verdict && text.contains(found));
        ensure!(is_so, "{check}: {findings:?}");
        Ok(())
    }
}

#[tokio::test]
async fn rights_kinds_of_snapshots_and_the_time_are_asked_for() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.stands("ours").await?;
    site.is("api-server", "ok", "it answers").await?;
    site.is("clock", "ok", "agree").await?;
    site.is("rights", "ok", "all 29 are there").await?;
    site.is("snapshot-kinds", "warning", "there are none").await?;
    site.is("sidecars", "warning", "no sidecar runs there").await?;
    // A role of an older release, which may not label nodes nor list pods.
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| {
        let groups = [group];
        json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
    };
    let all = ["get", "list", "watch", "create", "patch"];
    let snapshots = ["volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents"];
    let rules = [
        rule("storage.k8s.io", &["csidrivers", "csinodes"], &all),
        rule("", &["nodes", "persistentvolumeclaims"], &["get", "list", "watch"]),
        rule("", &["persistentvolumes"], &["get", "list"]),
        rule("", &["pods"], &["get"]),
        rule("", &["events"], &["list"]),
        rule("storage.k8s.io", &["storageclasses", "volumeattachments"], &["get", "list"]),
        rule("snapshot.storage.k8s.io", &snapshots, &["get", "list"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    let less = Patch::Merge(json!({"rules": rules}));
    let roles = site.plane.all::<ClusterRole>();
    roles.patch("edge-csi", &PatchParams::default(), &less).await?;
    until("the rights are gone", || async {
        site.is("rights", "fault", "may not patch them").await?;
        site.is("sidecars", "unknown", "may not list pods").await
    })
    .await?;
    let [[_, about, _]] = &site.checked("rights").await?[..] else { panic!("one right") };
    assert_eq!(about, "nodes");
    site.stop().await
}
