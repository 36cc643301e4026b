package manifests

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestInstallationsOf020AreTakenOver: testdata has the names, labels and selectors of the objects that kustomize built
// from deploy/ in 0.2.0, and of workloads what cannot be changed later.
func TestInstallationsOf020AreTakenOver(t *testing.T) {
	known, err := os.ReadFile("testdata/v0.2.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for line := range strings.Lines(string(known)) {
		parts := strings.SplitN(strings.TrimSpace(line), " ", 3)
		var want map[string]any
		if err := json.Unmarshal([]byte(parts[2]), &want); err != nil {
			t.Fatal(err)
		}
		index := slices.IndexFunc(shipped(t, parts[0]), func(d Document) bool { return identity(d) == parts[1] })
		if index < 0 {
			t.Errorf("%s has no %s", parts[0], parts[1])
			continue
		}
		kept++
		if difference := cmp.Diff(want, lasting(shipped(t, parts[0])[index])); difference != "" {
			t.Errorf("%s: %s: 0.2.0 has -, the chart has +:\n%s", parts[0], parts[1], difference)
		}
	}
	if kept < 90 {
		t.Errorf("only %d objects are known", kept)
	}
}

// identity is kind, namespace and name.
func identity(document Document) string {
	metadata := document.Object.(metav1.Object)
	return fmt.Sprintf("%v/%s/%s", document.Fields["kind"], metadata.GetNamespace(), metadata.GetName())
}

// lasting is what an update must not change.
func lasting(document Document) map[string]any {
	found := map[string]any{}
	for name, path := range map[string][]string{
		"labels": {"metadata", "labels"}, "selector": {"spec", "selector"}, "podLabels": {"spec", "template", "metadata", "labels"},
		"serviceName": {"spec", "serviceName"}, "volumeClaimTemplates": {"spec", "volumeClaimTemplates"},
		"podManagementPolicy": {"spec", "podManagementPolicy"},
	} {
		if name == "selector" && document.Fields["kind"] == "NetworkPolicy" {
			path = []string{"spec", "podSelector"}
		}
		if value, is, err := unstructured.NestedFieldNoCopy(document.Fields, path...); err == nil && is {
			found[name] = value
		}
	}
	return found
}

// TestManifestsAreThoseOfTheChart compares what is committed with what the chart renders.
func TestManifestsAreThoseOfTheChart(t *testing.T) {
	for _, name := range presets {
		want, err := Rendered(preset(name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(Manifests, name+".yaml"))
		if err != nil || string(got) != string(want) {
			t.Errorf("deploy/manifests/%s.yaml is not what the chart renders (%v): make manifests", name, err)
		}
	}
	want, err := Configurations()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("testdata/changed.yaml"); err != nil || string(got) != string(want) {
		t.Errorf("testdata/changed.yaml is not what the chart renders (%v): make manifests", err)
	}
	files, err := filepath.Glob(filepath.Join(Manifests, "values/*.yaml"))
	if err != nil || len(files) != len(presets) {
		t.Errorf("values of %v: %v", files, err)
	}
}

// A value of the schema that says nothing, or too much, is refused with the name of the value.
func TestTheChartSaysWhatIsMissing(t *testing.T) {
	for text, want := range map[string]string{
		"join: {method: files}":                                   "address",
		"address: [\"wss://a:1\"]\ncloud: {etcd: {hosts: [e:1]}}": "join.caHash is missing",
		"address: [\"wss://a:1\"]\njoin: {method: hope}":          "method",
		"address: [\"http://a:1\"]\njoin: {method: files}":        "address",
		"address: [\"wss://a:1\"]\npage: true":                    "page",
		"address: [\"wss://a:1\"]\ncloud: {replicas: 3}":          "replicas",
		"address: [\"wss://a:1\"]\ndefinitions: {x: {name: x.y}}": "sidecars",
	} {
		values := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Helmed(Chart, values, "edge-csi"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A CA that Helm makes is another one at each upgrade, and its key is in the release's Secret. csi-cloud fills the one
// Secret of the chart itself.
func TestTheChartMakesNoKeys(t *testing.T) {
	for name, documents := range bundles(t) {
		for _, document := range documents {
			if secret, is := document.Object.(*corev1.Secret); is && len(secret.Data)+len(secret.StringData) > 0 {
				t.Errorf("%s: %s has data", name, document.Name())
			}
		}
	}
	err := filepath.WalkDir(Chart, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, word := range []string{"genCA", "genSelfSignedCert", "genSignedCert", "genPrivateKey"} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s has %s", path, word)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// csi-page has nothing of csi-cloud but the socket `view`.
func TestCsiPageHasItsOwnUserAndNoToken(t *testing.T) {
	pod := pods(bundles(t)["everything"])["StatefulSet/csi-cloud"].Spec
	cloud, page := pod.Containers[0], pod.Containers[1]
	if page.Name != "csi-page" || *pod.AutomountServiceAccountToken || *page.SecurityContext.RunAsUser == *pod.SecurityContext.RunAsUser {
		t.Errorf("%s runs as csi-cloud does", page.Name)
	}
	var mounted []string
	for _, mount := range page.VolumeMounts {
		mounted = append(mounted, mount.Name)
	}
	if !slices.Equal(mounted, []string{"view", "page"}) {
		t.Errorf("csi-page mounts %v", mounted)
	}
	account := slices.ContainsFunc(cloud.VolumeMounts, func(mount corev1.VolumeMount) bool { return mount.Name == "account" })
	if !account {
		t.Error("csi-cloud has no token")
	}
}

func TestTheChartsValuesReachTheirPlaces(t *testing.T) {
	documents := rendered(t, "values/changed.yaml", "storage")
	for _, problem := range Dangling(documents) {
		t.Error(problem)
	}
	text := ""
	for _, document := range documents {
		text += string(document.Text)
	}
	for _, expected := range []string{
		"registry.example/edge:2", "registry.example/provisioner:1", "storageClassName: fast", "storage: 20Gi", "wss://storage.example:443",
		"/data/kubelet/plugins_registry", `targets = "/data/kubelet"`, "new_leases = false", "[quotas]\n    volumes = 7", "handshakes_per_address = 9", `deny = ["ControllerExpandVolume"]`, `topology = { "topology.hostpath.csi/node" = "node" }`, "type: ClusterIP", "name: pull-secret", "registry.example/cloud@sha256:abab", "serviceaccount:storage:csi-cloud", "site: north", "failover_s = 60", `allow = ["*.vendor.example"]`,
	} {
		if !strings.Contains(text, expected) {
			t.Errorf("%q is nowhere", expected)
		}
	}
	for _, name := range []string{"Role", "RoleBinding"} {
		if found := slices.Sorted(secretRights(documents, name)); !slices.Equal(found, []string{"keys", "storage"}) {
			t.Errorf("%ss for Secrets are in %v", name, found)
		}
	}
	for _, left := range []string{"namespace: edge-csi", "serviceaccount:edge-csi", "name: edge-csi\n", "/var/lib/kubelet", "externalTrafficPolicy", `http = "0.0.0.0:9808"`} {
		if strings.Contains(text, left) {
			t.Errorf("%q was left", left)
		}
	}
}

// written are the lines of a configuration with all keys, also those that are comments.
var written = regexp.MustCompile(`(?m)^# (\[[^ ]*$|[a-z_]+ = )`)

// Every key of deploy/cloud.toml and deploy/edge.toml can be set by values, and what they say is what is rendered.
func TestEveryKeyCanBeSet(t *testing.T) {
	for _, half := range []string{"cloud", "edge"} {
		text, err := os.ReadFile(filepath.Join(Deploy, half+".toml"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{}
		if _, err := toml.Decode(written.ReplaceAllString(string(text), "$1"), &want); err != nil {
			t.Fatalf("%s.toml: %v", half, err)
		}
		if len(want) < 12 {
			t.Errorf("%s.toml has only %v", half, slices.Sorted(maps.Keys(want)))
		}
		values, err := yaml.Marshal(map[string]any{
			"address": []string{"wss://a.example:1"}, "drivers": []string{}, "join": map[string]any{"method": "files"},
			half: map[string]any{"config": want},
		})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, values, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, document := range rendered(t, file, "edge-csi") {
			configuration, is := document.Object.(*corev1.ConfigMap)
			if !is || configuration.Name != "csi-"+half {
				continue
			}
			got := map[string]any{}
			if _, err := toml.Decode(configuration.Data[half+".toml"], &got); err != nil {
				t.Fatalf("%s.toml: %v in\n%s", half, err, configuration.Data[half+".toml"])
			}
			for key := range want {
				// Tables are lists of maps in both, of different types.
				if difference := cmp.Diff(plain(t, want[key]), plain(t, got[key])); difference != "" {
					t.Errorf("%s.toml: %s: the file has -, the chart +:\n%s", half, key, difference)
				}
			}
		}
	}
}

func plain(t *testing.T, value any) (out any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// secretRights are the namespaces in which an object of this kind is for Secrets.
func secretRights(documents []Document, kind string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, document := range documents {
			if document.Name() != kind+"/edge-csi-secrets" {
				continue
			}
			if binding, is := document.Object.(*rbacv1.RoleBinding); is && binding.Subjects[0].Namespace != "storage" {
				yield("the account of " + binding.Subjects[0].Namespace)
				return
			}
			if !yield(document.Object.(metav1.Object).GetNamespace()) {
				return
			}
		}
	}
}

func TestTheChartRefusesADriverThatItDoesNotHave(t *testing.T) {
	_, err := Helmed(Chart, "values/unknown.yaml", "edge-csi")
	if err == nil || !strings.Contains(err.Error(), `no driver "floppy"`) {
		t.Errorf("%v", err)
	}
}

func TestTheChartRefusesAValueThatItDoesNotHave(t *testing.T) {
	_, err := Helmed(Chart, "values/misspelt.yaml", "edge-csi")
	if err == nil || !strings.Contains(err.Error(), "drivres") {
		t.Errorf("%v", err)
	}
}

func TestTheChartHasNothingThatHelmWarnsOf(t *testing.T) {
	given, err := common.ReadValuesFile(preset("plain"))
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range lint.RunAll(Chart, given, "edge-csi").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message.Error())
		}
	}
}

func rendered(t *testing.T, values, namespace string) []Document {
	t.Helper()
	text, err := Helmed(Chart, filepath.FromSlash(values), namespace)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := Decoded("the chart with "+values, text)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}
