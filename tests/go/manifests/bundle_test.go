package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// presets are the manifests that are shipped rendered.
var presets = []string{"plain", "three", "kubeedge"}

// preset is the file of values of one of them.
func preset(name string) string { return filepath.Join(Manifests, "values", name+".yaml") }

// bundles are the shipped manifests, and the chart with values that change much, by name.
func bundles(t *testing.T) map[string][]Document {
	t.Helper()
	bundles := map[string][]Document{}
	for _, name := range presets {
		bundles[name] = shipped(t, name)
	}
	for _, name := range []string{"address", "nfs", "everything"} {
		bundles[name] = rendered(t, "values/"+name+".yaml", "edge-csi")
	}
	return bundles
}

// shipped are the documents of a file of deploy/manifests.
func shipped(t *testing.T, name string) []Document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Manifests, name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	documents, err := Decoded(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// The pods that a bundle's workloads make, and what the workloads say of them.
func pods(documents []Document) map[string]corev1.PodTemplateSpec {
	templates := map[string]corev1.PodTemplateSpec{}
	for _, document := range documents {
		switch workload := document.Object.(type) {
		case *appsv1.StatefulSet:
			templates[document.Name()] = workload.Spec.Template
		case *appsv1.DaemonSet:
			templates[document.Name()] = workload.Spec.Template
		}
	}
	return templates
}

func TestEveryBundleIsWhole(t *testing.T) {
	for name, documents := range bundles(t) {
		t.Run(name, func(t *testing.T) {
			for _, problem := range Dangling(documents) {
				t.Error(problem)
			}
			all := pods(documents)
			_, cloud := all["StatefulSet/csi-cloud"]
			_, edge := all["DaemonSet/csi-edge"]
			if !cloud || !edge || len(sidecarPods(documents)) != len(all)-2 || len(all) < 3 {
				t.Errorf("the workloads are %v, not csi-cloud, csi-edge and some sidecars", slices.Collect(maps.Keys(all)))
			}
		})
	}
}

func TestExamplesAreDecoded(t *testing.T) {
	examples, err := Plain(filepath.Join(Deploy, "examples"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %d, %v", len(examples), err)
	}
	for file, text := range examples {
		if _, err := Decoded(file, text); err != nil {
			t.Error(err)
		}
	}
}

// sidecarPods are the pods of the sidecars, by the name of their workload.
func sidecarPods(documents []Document) map[string]corev1.PodTemplateSpec {
	these := pods(documents)
	maps.DeleteFunc(these, func(name string, _ corev1.PodTemplateSpec) bool {
		return !strings.HasPrefix(name, "StatefulSet/csi-sidecars-")
	})
	return these
}

// Whoever takes over a sidecar must not reach another driver, nor have the relay's certificate.
func TestASidecarReachesItsDriverOnly(t *testing.T) {
	for name, documents := range bundles(t) {
		for workload, template := range sidecarPods(documents) {
			where := name + ": " + workload
			front := template.Spec.Containers[0]
			drivers := 0
			for _, argument := range front.Args {
				if strings.HasPrefix(argument, "--driver=") {
					drivers++
				}
			}
			driver, _ := flag(front.Args, "--driver=")
			if front.Name != "front" || drivers != 1 {
				t.Errorf("%s: its first container %s serves %d drivers", where, front.Name, drivers)
			}
			for _, container := range template.Spec.Containers[1:] {
				if socket, _ := flag(container.Args, "--csi-address="); socket != "/run/fronts/"+driver+".sock" {
					t.Errorf("%s: %s has the socket %s, and the driver is %s", where, container.Name, socket, driver)
				}
				if len(container.VolumeMounts) != 1 || container.VolumeMounts[0].Name != "fronts" {
					t.Errorf("%s: %s mounts more than the socket", where, container.Name)
				}
			}
			for _, volume := range template.Spec.Volumes {
				if volume.Name == "fronts" && volume.EmptyDir == nil {
					t.Errorf("%s: other pods have its socket", where)
				}
			}
		}
	}
}

// Whoever takes over csi-cloud must not have the sidecars' rights, nor the other way round.
func TestCsiCloudAndTheSidecarsHaveAccountsOfTheirOwn(t *testing.T) {
	of := map[string]string{}
	for _, role := range []string{"", "-join", "-doctor", "-metadata", "-pods", "-trust"} {
		of["edge-csi-cloud"+role] = "csi-cloud"
	}
	for name, documents := range bundles(t) {
		bindings := 0
		for _, document := range documents {
			role, subjects := bound(document)
			for _, subject := range subjects {
				bindings++
				want := cmp.Or(of[role], "csi-sidecars")
				if subject.Name != want {
					t.Errorf("%s: %s gives %s to %s, not to %s", name, document.Name(), role, subject.Name, want)
				}
			}
		}
		if bindings < 6 {
			t.Errorf("%s: %d bindings", name, bindings)
		}
		if account := pods(documents)["StatefulSet/csi-cloud"].Spec.ServiceAccountName; account != "csi-cloud" {
			t.Errorf("%s: csi-cloud runs as %s", name, account)
		}
		for workload, template := range sidecarPods(documents) {
			if account := template.Spec.ServiceAccountName; account != "csi-sidecars" {
				t.Errorf("%s: %s runs as %s", name, workload, account)
			}
		}
	}
}

// What csi-cloud fills with its CA is there, and empty; it may change these two and make none. With a right to create, it
// could have a token of another account put into a Secret.
func TestCsiCloudFillsTwoObjects(t *testing.T) {
	want := map[string]string{"configmaps": "csi-cloud-ca", "secrets": "csi-sidecars-tls"}
	for name, documents := range bundles(t) {
		made := name == "address" || name == "kubeedge"
		there := 0
		for _, document := range documents {
			switch document.Name() {
			case "ConfigMap/csi-cloud-ca", "Secret/csi-sidecars-tls":
				there++
				if len(document.Fields) != 3 {
					t.Errorf("%s: %s has more than its name: %v", name, document.Name(), document.Fields)
				}
			}
			role, is := document.Object.(*rbacv1.Role)
			if !is || role.Name != "edge-csi-cloud-trust" {
				continue
			}
			there++
			if len(role.Rules) != len(want) {
				t.Errorf("%s: %v", name, role.Rules)
			}
			for _, rule := range role.Rules {
				names := []string{want[rule.Resources[0]]}
				if len(rule.Resources) != 1 || !slices.Equal(rule.ResourceNames, names) || !slices.Equal(rule.Verbs, []string{"get", "patch"}) {
					t.Errorf("%s: %v", name, rule)
				}
			}
		}
		if made != (there == 3) || !made && there != 0 {
			t.Errorf("%s has %d of these", name, there)
		}
	}
}

// bound is the role that a binding gives, and to whom.
func bound(document Document) (string, []rbacv1.Subject) {
	switch binding := document.Object.(type) {
	case *rbacv1.ClusterRoleBinding:
		return binding.RoleRef.Name, binding.Subjects
	case *rbacv1.RoleBinding:
		return binding.RoleRef.Name, binding.Subjects
	}
	return "", nil
}

func TestTheCloudsPodsAreRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for name, documents := range bundles(t) {
		these := sidecarPods(documents)
		these["StatefulSet/csi-cloud"] = pods(documents)["StatefulSet/csi-cloud"]
		for workload, template := range these {
			for _, result := range evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec) {
				if !result.Allowed {
					t.Errorf("%s: %s: %s: %s", name, workload, result.ForbiddenReason, result.ForbiddenDetail)
				}
			}
		}
	}
}

func TestContainersAreBoundedPinnedAndReadOnly(t *testing.T) {
	for name, documents := range bundles(t) {
		for workload, template := range pods(documents) {
			for _, container := range template.Spec.Containers {
				where := fmt.Sprintf("%s: %s: container %s", name, workload, container.Name)
				if _, tag, found := strings.Cut(container.Image, ":"); !found || tag == "latest" {
					t.Errorf("%s: image %s has no fixed tag", where, container.Image)
				}
				if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s has no requests or no limit of memory", where)
				}
				context := container.SecurityContext
				vendors := strings.HasPrefix(container.Name, "driver-")
				if !vendors && (context == nil || context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem) {
					t.Errorf("%s can write its root file system", where)
				}
				privileged := context != nil && context.Privileged != nil && *context.Privileged
				mayBe := vendors || container.Image == "csi-edge-direct:0.2.0"
				if privileged && !mayBe {
					t.Errorf("%s is privileged", where)
				}
			}
		}
	}
}

// Whoever takes over a sidecar must not read the Secrets of the whole cluster.
func TestNoClusterRoleReadsSecrets(t *testing.T) {
	for name, documents := range bundles(t) {
		roles := 0
		for _, document := range documents {
			role, is := document.Object.(*rbacv1.ClusterRole)
			if !is {
				continue
			}
			roles++
			for _, rule := range role.Rules {
				core := slices.Contains(rule.APIGroups, "") || slices.Contains(rule.APIGroups, "*")
				secrets := slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*")
				if core && secrets {
					t.Errorf("%s: %s reads the Secrets of all namespaces", name, document.Name())
				}
			}
		}
		if roles == 0 {
			t.Errorf("%s has no ClusterRole", name)
		}
	}
}

// Whoever is elected for a shared driver sees all its secrets, so an operator has to name the nodes.
func TestASharedDriverIsElectedAmongNamedNodesOnly(t *testing.T) {
	shared := 0
	for name, documents := range bundles(t) {
		for _, document := range documents {
			configuration, is := document.Object.(*corev1.ConfigMap)
			if !is || configuration.Data["cloud.toml"] == "" {
				continue
			}
			for section := range strings.SplitSeq(configuration.Data["cloud.toml"], "\n[") {
				if !strings.Contains(section, "scope = \"shared\"") {
					continue
				}
				shared++
				if !strings.Contains(section, "controllers = [\"node-restriction.kubernetes.io/") {
					t.Errorf("%s: any node may be elected for [%s", name, section)
				}
			}
		}
	}
	if shared < 2 {
		t.Errorf("there are only %d shared drivers", shared)
	}
}

func TestPodsHaveTheRuntimesSeccompProfile(t *testing.T) {
	for name, documents := range bundles(t) {
		for workload, template := range pods(documents) {
			context := template.Spec.SecurityContext
			if context == nil || context.SeccompProfile == nil || context.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s has not the runtime's seccomp profile", name, workload)
			}
		}
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	base := shipped(t, "plain")
	for _, document := range base {
		if document.Name() != "StatefulSet/csi-cloud" {
			continue
		}
		misspelt := strings.Replace(string(document.Text), "readOnlyRootFilesystem", "readonlyRootFilesystem", 1)
		if _, err := Decoded("misspelt", []byte(misspelt)); err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Errorf("a misspelt field: %v", err)
		}
		misplaced := strings.Replace(string(document.Text), "serviceName:", "hostNetwork: true\n  serviceName:", 1)
		if _, err := Decoded("misplaced", []byte(misplaced)); err == nil {
			t.Error("a misplaced field was taken")
		}
	}
	without := slices.DeleteFunc(base, func(d Document) bool { return d.Name() == "ServiceAccount/csi-edge" })
	if problems := Dangling(without); len(problems) != 1 || !strings.Contains(problems[0], "csi-edge") {
		t.Errorf("a service account that is not there: %v", problems)
	}
	if _, err := Decoded("kind", []byte("apiVersion: v1\nkind: Pot\n")); err == nil {
		t.Error("an unknown kind was taken")
	}
}
