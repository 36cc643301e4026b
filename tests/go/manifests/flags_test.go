package manifests

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// sidecars are the containers whose programs `make e2e` builds, by the beginning of their names.
var sidecars = map[string]string{
	"provisioner-": "csi-provisioner", "attacher-": "csi-attacher", "resizer-": "csi-resizer", "snapshotter-": "csi-snapshotter",
}

func TestSidecarsHaveTheirFlags(t *testing.T) {
	checked := 0
	for name, documents := range bundles(t) {
		for _, template := range sidecarPods(documents) {
			for _, container := range template.Spec.Containers {
				program := filepath.Join("../bin", sidecar(container))
				if _, err := exec.LookPath(program); err != nil {
					continue
				}
				checked++
				// Flags are read before what they say is looked at.
				output, err := exec.Command(program, append(slices.Clone(container.Args), "--version")...).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %s: %v: %s", name, container.Name, err, output)
				}
			}
		}
	}
	if checked == 0 {
		t.Skip("the sidecars are not built (make e2e builds them)")
	}
}

func sidecar(container corev1.Container) string {
	for beginning, program := range sidecars {
		if len(container.Name) > len(beginning) && container.Name[:len(beginning)] == beginning {
			return program
		}
	}
	return "none"
}
