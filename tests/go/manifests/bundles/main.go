// Bundles writes what kustomize and Helm make of deploy/ into a directory, a file for each overlay and each file of
// values. `make e2e` has a running API server judge them. It is run in tests/go/manifests. For `make e2e DEPLOYED=…` it
// adds both for the driver of the tests, as a user adds one.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
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
	err := write(os.Args[1])
	if err == nil {
		err = deployed(os.Args[1])
	}
	if err != nil {
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

// stand has the component, the overlay and the values of the driver of the tests.
const stand = "../../cluster/src/stand/manifests/deployed"

// deployed writes what a user applies for a driver that deploy/ does not have: two overlays beside the component, of
// which one has three csi-clouds, and a copy of the chart with the component in it.
func deployed(directory string) error {
	for _, overlay := range [][2]string{{"overlay", "kustomize"}, {"ha", "ha"}} {
		built, err := manifests.Kustomized(filepath.Join(stand, overlay[0]))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, "deployed-"+overlay[1]+".yaml"), built, 0o644); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	chart := filepath.Join(work, "edge-csi")
	for _, copied := range [][2]string{
		{filepath.Join(manifests.Deploy, "helm/edge-csi"), chart},
		{filepath.Join(stand, "hostdir"), filepath.Join(chart, "components/hostdir")},
	} {
		if said, err := exec.Command("cp", "-rL", copied[0], copied[1]).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot copy %s: %w: %s", copied[0], err, said)
		}
	}
	rendered, err := manifests.Helmed(chart, filepath.Join(stand, "values.yaml"), "edge-csi")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "deployed-helm.yaml"), rendered, 0o644)
}
