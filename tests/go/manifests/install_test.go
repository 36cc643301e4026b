package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"
)

var (
	install = regexp.MustCompile(`(?m)^ *helm install [^\\\n]*(\\\n[^\\\n]*)*`)
	option  = regexp.MustCompile(`(-f|--set) ('[^']*'|[^' ]+)`)
	command = regexp.MustCompile(`\$\(.*\)`)
)

// What the documents have a user type renders as it stands there.
func TestTheDocumentsInstall(t *testing.T) {
	root := filepath.Join(Deploy, "..")
	for document, want := range map[string]string{
		"README.md":               "join_service_account",
		"docs/start/install.md":   "registry.example/csi-cloud:0.2.0",
		"docs/how-to/kubeedge.md": "ValidatingAdmissionPolicy",
	} {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		line := install.FindString(string(text))
		// The hash of a CA, in place of the command that computes it.
		line = command.ReplaceAllString(line, strings.Repeat("0", 64))
		values := map[string]any{}
		for _, given := range option.FindAllStringSubmatch(line, -1) {
			argument := strings.Trim(given[2], "'")
			if given[1] == "-f" {
				file, err := os.ReadFile(filepath.Join(root, argument))
				if err != nil {
					t.Fatal(err)
				}
				if err := yaml.Unmarshal(file, &values); err != nil {
					t.Fatal(err)
				}
			} else if err := strvals.ParseInto(argument, values); err != nil {
				t.Fatalf("%s: %s: %v", document, argument, err)
			}
		}
		written, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, written, 0o600); err != nil {
			t.Fatal(err)
		}
		rendered, err := Helmed(Chart, file, "edge-csi")
		if err != nil {
			t.Errorf("%s: %s: %v", document, line, err)
		} else if !strings.Contains(string(rendered), want) {
			t.Errorf("%s: %s renders no %s", document, line, want)
		}
	}
}
