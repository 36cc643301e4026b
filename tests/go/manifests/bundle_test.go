package manifests

import (
	"fmt"
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

// overlays are all there are, by name.
func overlays(t *testing.T) map[string][]Document {
	t.Helper()
	directories, err := filepath.Glob(filepath.Join(Deploy, "kustomize/overlays/*"))
	if err != nil || len(directories) < 3 {
		t.Fatalf("overlays: %v, %v", directories, err)
	}
	bundles := map[string][]Document{}
	for _, directory := range directories {
		bundles[filepath.Base(directory)] = built(t, directory)
	}
	return bundles
}

func built(t *testing.T, directory string) []Document {
	t.Helper()
	text, err := Kustomized(directory)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := Decoded(directory, text)
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

func TestEveryOverlayIsWhole(t *testing.T) {
	for name, documents := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			for _, problem := range Dangling(documents) {
				t.Error(problem)
			}
			if found := len(pods(documents)); found != 2 {
				t.Errorf("there are %d workloads, not the cloud's and the edges'", found)
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

func TestTheCloudsPodIsRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for name, documents := range overlays(t) {
		template := pods(documents)["StatefulSet/csi-cloud"]
		for _, result := range evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", name, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
	}
}

func TestContainersAreBoundedPinnedAndReadOnly(t *testing.T) {
	for name, documents := range overlays(t) {
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
				mayBe := vendors || container.Image == "csi-edge-direct:0.1.0"
				if privileged && !mayBe {
					t.Errorf("%s is privileged", where)
				}
			}
		}
	}
}

// Whoever takes over a sidecar must not read the Secrets of the whole cluster.
func TestNoClusterRoleReadsSecrets(t *testing.T) {
	for name, documents := range overlays(t) {
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

func TestPodsHaveTheRuntimesSeccompProfile(t *testing.T) {
	for name, documents := range overlays(t) {
		for workload, template := range pods(documents) {
			context := template.Spec.SecurityContext
			if context == nil || context.SeccompProfile == nil || context.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s has not the runtime's seccomp profile", name, workload)
			}
		}
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	base := built(t, filepath.Join(Deploy, "kustomize/overlays/hostpath"))
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
