// Command render prints what an overlay of deploy/kustomize would have a cluster do, as YAML: for tests that apply it,
// on machines without kustomize.
//
//	render DIRECTORY
package main

import (
	"fmt"
	"os"

	"edge-csi.io/tests/manifests"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: render DIRECTORY, of an overlay")
		os.Exit(2)
	}
	text, err := manifests.Kustomized(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
	if _, err := os.Stdout.Write(text); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}
