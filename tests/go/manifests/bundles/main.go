// Bundles writes what the chart makes of the shipped values and of those that the tests have into a directory, for
// `make e2e` to have a running API server judge them. For `make e2e DEPLOYED=…` it adds the manifests with the driver
// of the tests, as a user adds one. It is run in tests/go/manifests.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"edge-csi.io/tests/manifests"
)

// stand has the values of the tests' driver, for one csi-cloud and for three.
const stand = "../../cluster/src/stand/manifests/deployed"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bundles DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	shipped := filepath.Join(manifests.Manifests, "values")
	for name, values := range map[string]string{
		"plain":              filepath.Join(shipped, "plain.yaml"),
		"three":              filepath.Join(shipped, "three.yaml"),
		"kubeedge":           filepath.Join(shipped, "kubeedge.yaml"),
		"address":            "values/address.yaml",
		"everything":         "values/everything.yaml",
		"nfs":                "values/nfs.yaml",
		"deployed-manifests": filepath.Join(stand, "one.yaml"),
		"deployed-ha":        filepath.Join(stand, "three.yaml"),
	} {
		text, err := manifests.Rendered(values)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, name+".yaml"), text, 0o644); err != nil {
			return err
		}
	}
	// As Helm renders it, with its comments. csi-cloud makes its CA and the nodes join, which is the chart's default.
	values, err := joining(filepath.Join(stand, "one.yaml"), directory)
	if err != nil {
		return err
	}
	defer os.Remove(values)
	text, err := manifests.Helmed(manifests.Chart, values, "edge-csi")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "deployed-helm.yaml"), text, 0o644)
}

// joining writes a copy of values without join.method, and returns its path.
func joining(values, directory string) (string, error) {
	text, err := os.ReadFile(values)
	if err != nil {
		return "", err
	}
	const byFiles = "join: {method: files}\n"
	if !strings.Contains(string(text), byFiles) {
		return "", fmt.Errorf("%s has no line %q", values, byFiles)
	}
	copied := filepath.Join(directory, "joining.values")
	return copied, os.WriteFile(copied, []byte(strings.Replace(string(text), byFiles, "", 1)), 0o644)
}
