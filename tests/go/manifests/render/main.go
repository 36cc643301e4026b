// Command render writes deploy/manifests from the chart, a file for each file of values there. With `--print VALUES`
// it prints what the chart makes of these values, for tests that apply it on machines without Helm.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"edge-csi.io/tests/manifests"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "--print" {
		text, err := manifests.Rendered(args[1])
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	all, err := filepath.Glob(filepath.Join(manifests.Manifests, "values/*.yaml"))
	if err != nil || len(all) == 0 {
		return fmt.Errorf("no values in %s: %w", manifests.Manifests, err)
	}
	for _, values := range all {
		text, err := manifests.Rendered(values)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(manifests.Manifests, filepath.Base(values)), text, 0o644); err != nil {
			return err
		}
	}
	text, err := manifests.Configurations()
	if err != nil {
		return err
	}
	return os.WriteFile("testdata/changed.yaml", text, 0o644)
}
