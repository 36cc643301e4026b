package manifests

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// contradicting are keys that values/every-key.yaml cannot set beside the others. Nodes have an identity in place of the
// files of [tls]; of several csi-clouds none makes its CA; and the life of a certificate is in days or a duration.
var contradicting = []string{"ca.hosts", "ca.node_life", "tls"}

// program is a built program. The test is skipped, by name, where there is none; CI has them.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../target/debug/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not built: cargo build", name)
		}
		t.Skipf("tier skipped: `%s serve --check` of what the chart renders: it is not built; cargo build", name)
	}
	return path
}

// Both programs take the configuration and the arguments that the chart gives them.
func TestTheProgramsTakeWhatTheChartRenders(t *testing.T) {
	for name, half := range map[string]string{"csi-cloud": "StatefulSet/csi-cloud", "csi-edge": "DaemonSet/csi-edge"} {
		t.Run(name, func(t *testing.T) {
			built := program(t, name)
			for values, documents := range checked(t) {
				container := pods(documents)[half].Spec.Containers[0]
				if container.Name != name {
					t.Fatalf("%s: the first container of %s is %s", values, half, container.Name)
				}
				arguments := arguments(t, container, configuration(t, documents, name))
				output, err := exec.Command(built, arguments...).CombinedOutput()
				if err != nil || strings.TrimSpace(string(output)) != "ok" {
					t.Errorf("%s: %s %s: %v: %s", values, name, strings.Join(arguments, " "), err, output)
				}
			}
		})
	}
}

// checked is the chart with its defaults, with three csi-clouds, for KubeEdge, and with all that can be set.
func checked(t *testing.T) map[string][]Document {
	t.Helper()
	return map[string][]Document{
		"defaults":  rendered(t, "values/address.yaml", "edge-csi"),
		"plain":     rendered(t, preset("plain"), "edge-csi"),
		"ha":        rendered(t, preset("three"), "edge-csi"),
		"kubeedge":  rendered(t, preset("kubeedge"), "edge-csi"),
		"every key": rendered(t, "values/every-key.yaml", "edge-csi"),
	}
}

// configuration is the file of a program, as its ConfigMap has it.
func configuration(t *testing.T, documents []Document, name string) string {
	t.Helper()
	for _, document := range documents {
		if found, is := document.Object.(*corev1.ConfigMap); is && found.Name == name {
			return found.Data[strings.TrimPrefix(name, "csi-")+".toml"]
		}
	}
	t.Fatalf("there is no ConfigMap %s", name)
	return ""
}

var variable = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// arguments are those of a container, for a check of this configuration.
func arguments(t *testing.T, container corev1.Container, configuration string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "configuration.toml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"POD_NAME": "csi-cloud-0", "EDGE_CSI_CA_HASH": "sha256:" + strings.Repeat("0", 64)}
	arguments := []string{"serve", "--check"}
	for _, argument := range container.Args[1:] {
		for _, found := range variable.FindAllStringSubmatch(argument, -1) {
			set := slices.ContainsFunc(container.Env, func(of corev1.EnvVar) bool { return of.Name == found[1] })
			if !set || values[found[1]] == "" {
				t.Errorf("%s: nothing sets %s", container.Name, found[0])
			}
			argument = strings.ReplaceAll(argument, found[0], values[found[1]])
		}
		if strings.HasPrefix(argument, "/etc/edge-csi/") {
			argument = file
		}
		arguments = append(arguments, argument)
	}
	if container.Args[0] != "serve" || !slices.Contains(arguments, file) {
		t.Errorf("%s is given %v", container.Name, container.Args)
	}
	return arguments
}

// values/every-key.yaml has every value of the chart, and its configurations every key.
func TestEveryKeyIsChecked(t *testing.T) {
	known, set := map[string]any{}, map[string]any{}
	for file, into := range map[string]map[string]any{Chart + "/values.yaml": known, "values/every-key.yaml": set} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, &into); err != nil {
			t.Fatal(err)
		}
	}
	// Two drivers are among the defaults, and those are taken.
	delete(known, "definitions")
	for _, missing := range missing(known, set, "") {
		t.Errorf("values/every-key.yaml has no %s", missing)
	}
	documents := rendered(t, "values/every-key.yaml", "edge-csi")
	for _, half := range []string{"cloud", "edge"} {
		text, err := os.ReadFile(filepath.Join(Deploy, half+".toml"))
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]any{}, map[string]any{}
		for text, into := range map[string]*map[string]any{
			written.ReplaceAllString(string(text), "$1"): &want, configuration(t, documents, "csi-"+half): &got,
		} {
			if _, err := toml.Decode(text, into); err != nil {
				t.Fatalf("%s.toml: %v", half, err)
			}
		}
		// The sections of drivers have other names.
		for _, keys := range []map[string]any{want, got} {
			if drivers, is := keys["driver"].(map[string]any); is {
				all := map[string]any{}
				for _, section := range drivers {
					maps.Copy(all, section.(map[string]any))
				}
				keys["driver"] = all
			}
		}
		for _, missing := range missing(want, got, "") {
			if !slices.Contains(contradicting, missing) {
				t.Errorf("values/every-key.yaml renders no %s in %s.toml", missing, half)
			}
		}
	}
}

// missing are the keys that one map has and another has not, with those of the maps in them.
func missing(known, set map[string]any, place string) []string {
	var all []string
	for key, value := range known {
		other, is := set[key]
		if !is {
			all = append(all, place+key)
			continue
		}
		if within, is := value.(map[string]any); is && len(within) > 0 && key != "resources" && key != "nodeSelector" && key != "topology" {
			others, is := other.(map[string]any)
			if !is {
				all = append(all, fmt.Sprintf("%s%s, a map", place, key))
			}
			all = append(all, missing(within, others, place+key+".")...)
		}
	}
	slices.Sort(all)
	return all
}
