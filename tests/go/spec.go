// Package tests holds what the conformance tests take from the world of Go, with versions in go.mod.
package tests

// The official csi.proto, with which tests/conformance/tests/contracts/descriptor.rs compares ours.
import _ "github.com/container-storage-interface/spec/lib/go/csi"
