// Package kubernetes pins the Kubernetes that the end-to-end tests run, with its sidecars.
package kubernetes

// The snapshots' custom resource definitions lie beside this package, in config/crd.
import _ "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
