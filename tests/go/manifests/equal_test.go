package manifests

import (
	"iter"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// hashed is what kustomize puts behind the name of a ConfigMap that it makes.
var hashed = regexp.MustCompile(`\b(csi-cloud|csi-edge)-[0-9a-z]{10}\b`)

const chart = Deploy + "/helm/edge-csi"

// Helm tells of every symbolic link, and the chart has the manifests by two.
func init() { slog.SetDefault(slog.New(slog.DiscardHandler)) }

func TestTheChartIsWhatKustomizeBuilds(t *testing.T) {
	for name, documents := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			rendered := rendered(t, "values/"+name+".yaml", "edge-csi")
			want, got := normal(t, documents), normal(t, rendered)
			if difference := cmp.Diff(want, got); difference != "" {
				t.Errorf("kustomize has -, the chart has +:\n%s", difference)
			}
		})
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
		"/data/kubelet/plugins_registry", `targets = "/data/kubelet"`, "type: ClusterIP", "name: pull-secret", "registry.example/cloud@sha256:abab", "serviceaccount:storage:csi-cloud", "site: north", "failover_s = 60", `allow = ["*.vendor.example"]`,
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
	for _, left := range []string{"namespace: edge-csi", "serviceaccount:edge-csi", "name: edge-csi\n", "/var/lib/kubelet", "externalTrafficPolicy"} {
		if strings.Contains(text, left) {
			t.Errorf("%q was left", left)
		}
	}
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
	_, err := Helmed(chart, "values/unknown.yaml", "edge-csi")
	if err == nil || !strings.Contains(err.Error(), `no driver "floppy"`) {
		t.Errorf("%v", err)
	}
}

func TestTheChartRefusesAValueThatItDoesNotHave(t *testing.T) {
	_, err := Helmed(chart, "values/misspelt.yaml", "edge-csi")
	if err == nil || !strings.Contains(err.Error(), "drivres") {
		t.Errorf("%v", err)
	}
}

func TestTheChartHasNothingThatHelmWarnsOf(t *testing.T) {
	for _, message := range lint.RunAll(chart, nil, "edge-csi").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message.Error())
		}
	}
}

func rendered(t *testing.T, values, namespace string) []Document {
	t.Helper()
	text, err := Helmed(chart, filepath.FromSlash(values), namespace)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := Decoded("the chart with "+values, text)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// normal is each document by its name, without what the two tools write differently and mean the same. That is hashes
// in names against a checksum, and the layout of TOML.
func normal(t *testing.T, documents []Document) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, document := range documents {
		text, err := yaml.Marshal(document.Object)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(hashed.ReplaceAll(text, []byte("$1")), &fields); err != nil {
			t.Fatal(err)
		}
		if annotations, found := at(fields, "spec", "template", "metadata", "annotations"); found {
			delete(annotations, "checksum/config")
		}
		if data, found := at(fields, "data"); found {
			for file, text := range data {
				if strings.HasSuffix(file, ".toml") {
					read := map[string]any{}
					if _, err := toml.Decode(text.(string), &read); err != nil {
						t.Fatalf("%s of %s: %v", file, document.From, err)
					}
					data[file] = read
				} else {
					data[file] = strings.TrimSpace(text.(string))
				}
			}
		}
		name := hashed.ReplaceAllString(document.Name(), "$1")
		if all[name] != nil {
			t.Fatalf("%s is there twice in %s", name, document.From)
		}
		all[name] = fields
	}
	return all
}

func at(fields map[string]any, path ...string) (map[string]any, bool) {
	for _, key := range path {
		next, found := fields[key].(map[string]any)
		if !found {
			return nil, false
		}
		fields = next
	}
	return fields, true
}
