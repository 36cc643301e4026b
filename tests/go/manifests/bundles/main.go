// Bundles writes what kustomize and Helm make of deploy/ into a directory, a file for each overlay and each file of
// values. `make e2e` has a running API server judge them. It is run in tests/go/manifests.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"edge-csi.io/tests/manifests"
)

func main() {
	// Helm tells of every symbolic link, and the chart has the manifests by two.
	slog.SetDefault(slog.New(slog.DiscardHandler))
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
	overlays, err := filepath.Glob(filepath.Join(manifests.Deploy, "kustomize/overlays/*"))
	if err != nil {
		return err
	}
	for _, overlay := range overlays {
		name := filepath.Base(overlay)
		built, err := manifests.Kustomized(overlay)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, "kustomize-"+name+".yaml"), built, 0o644); err != nil {
			return err
		}
		values := filepath.Join("values", name+".yaml")
		rendered, err := manifests.Helmed(filepath.Join(manifests.Deploy, "helm/edge-csi"), values, "edge-csi")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, "helm-"+name+".yaml"), rendered, 0o644); err != nil {
			return err
		}
	}
	return nil
}
