// Package manifests checks what deploy/ would have a cluster do, as far as that goes without one.
//
// The chart is rendered as Helm does it; every document is decoded strictly into the type that the API server has for
// it, so a misspelt or misplaced field fails; references within a bundle have to lead somewhere. What only a server
// knows (defaults, validation of values, admission) is for `make e2e`, which applies the same bundles.
package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Deploy is the directory that is checked.
const Deploy = "../../../deploy"

// Document is one object, as text and as its type.
type Document struct {
	From string
	Text []byte
	// As what the API server would decode it to.
	Object runtime.Object
	// As it is written.
	Fields map[string]any
}

// Name is "Kind/name".
func (d Document) Name() string {
	metadata, _ := d.Fields["metadata"].(map[string]any)
	return fmt.Sprintf("%v/%v", d.Fields["kind"], metadata["name"])
}

// Chart is the one source of manifests.
const Chart = Deploy + "/helm/edge-csi"

// Manifests has a file of manifests for each file in its directory `values`.
const Manifests = Deploy + "/manifests"

// Rendered are the manifests of a file of values, as deploy/manifests has them: the chart's, without its comments.
func Rendered(values string) ([]byte, error) {
	all, err := Helmed(Chart, values, "edge-csi")
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# Made from deploy/helm/edge-csi with values/%s by `make manifests`. Change those.\n", filepath.Base(values))
	for document := range strings.SplitSeq("\n"+string(all), "\n---") {
		var lines []string
		for line := range strings.SplitSeq(document, "\n") {
			if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "# ") {
				lines = append(lines, strings.TrimRight(line, " "))
			}
		}
		if len(lines) > 0 {
			fmt.Fprintf(&text, "---\n%s\n", strings.Join(lines, "\n"))
		}
	}
	return []byte(text.String()), nil
}

// Helmed renders the chart with a file of values, for a namespace.
func Helmed(directory, values, namespace string) ([]byte, error) {
	chart, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("cannot read the chart %s: %w", directory, err)
	}
	given, err := common.ReadValuesFile(values)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", values, err)
	}
	release := common.ReleaseOptions{Name: "edge-csi", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, given, release, common.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("%s does not fit the chart: %w", values, err)
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("cannot render the chart with %s: %w", values, err)
	}
	var text strings.Builder
	names := slices.Collect(maps.Keys(files))
	// Everything else is in the namespace.
	first := func(name string) int { return strings.Count(name, "/namespace.yaml") }
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(first(b)-first(a), strings.Compare(a, b)) })
	for _, name := range names {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&text, "---\n%s\n", files[name])
		}
	}
	return []byte(text.String()), nil
}

// Configurations are the ConfigMaps of values that change much, for a test that reads them as the programs do.
func Configurations() ([]byte, error) {
	all, err := Rendered("values/changed.yaml")
	if err != nil {
		return nil, err
	}
	documents := strings.Split(string(all), "\n---\n")
	documents = slices.DeleteFunc(documents, func(document string) bool { return !strings.Contains(document, "kind: ConfigMap\n") })
	return []byte(strings.Join(documents, "\n---\n") + "\n"), nil
}

// Plain reads the YAML files of a directory as they stand.
func Plain(directory string) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return nil, err
	}
	texts := map[string][]byte{}
	for _, file := range files {
		if texts[file], err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// Decoder knows all types that the manifests may have, and nothing else.
func Decoder() (runtime.Decoder, error) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, snapshotv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(types); err != nil {
			return nil, err
		}
	}
	return serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer(), nil
}

// Decoded splits a stream of documents and decodes each.
func Decoded(from string, stream []byte) ([]Document, error) {
	decoder, err := Decoder()
	if err != nil {
		return nil, err
	}
	var documents []Document
	for _, text := range strings.Split("\n"+string(stream), "\n---") {
		// What follows on the line is a comment.
		_, text, _ = strings.Cut(text, "\n")
		fields := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(text), &fields); err != nil {
			return nil, fmt.Errorf("%s: no YAML: %w in\n%s", from, err, text)
		}
		if len(fields) == 0 {
			continue
		}
		object, _, err := decoder.Decode([]byte(text), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %v: %w", from, fields["kind"], err)
		}
		documents = append(documents, Document{from, []byte(text), object, fields})
	}
	return documents, nil
}
