package manifests

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

const edgeRole = "node-role.kubernetes.io/edge"

// selector is where csi-edge runs.
func selector(documents []Document) map[string]string {
	return pods(documents)["DaemonSet/csi-edge"].Spec.NodeSelector
}

func TestForKubeEdgeTheEdgesRunWhereKubeEdgeDoes(t *testing.T) {
	want := map[string]string{edgeRole: ""}
	if found := selector(shipped(t, "kubeedge")); !maps.Equal(found, want) {
		t.Errorf("%v", found)
	}
	// What an operator sets counts.
	if found := selector(rendered(t, "values/kubeedge-selected.yaml", "edge-csi")); found["site"] != "north" {
		t.Errorf("the chart with a selector: %v", found)
	}
}

// CloudCore gets one right by aggregation, and the doctor reads and changes nothing.
func TestForKubeEdgeTheRightsAreTheLeast(t *testing.T) {
	roles := map[string][]rbacv1.PolicyRule{}
	labels := map[string]map[string]string{}
	for _, document := range shipped(t, "kubeedge") {
		switch role := document.Object.(type) {
		case *rbacv1.ClusterRole:
			roles[role.Name] = append(roles[role.Name], role.Rules...)
			labels[role.Name] = role.Labels
		case *rbacv1.Role:
			roles[role.Name] = append(roles[role.Name], role.Rules...)
		}
	}
	cloudcore := roles["edge-csi-cloudcore"]
	if labels["edge-csi-cloudcore"]["rbac/aggregate-to-cloudcore"] != "true" || len(cloudcore) != 1 ||
		!slices.Equal(cloudcore[0].Resources, []string{"volumeattachments"}) {
		t.Errorf("CloudCore's: %v %v", labels["edge-csi-cloudcore"], cloudcore)
	}
	doctor := roles["edge-csi-cloud-doctor"]
	if len(doctor) != 4 {
		t.Errorf("the doctor's: %v", doctor)
	}
	// It reads objects by their names, so these have to be those that are made.
	named := 0
	for _, rule := range doctor {
		for _, name := range rule.ResourceNames {
			if rule.Resources[0] == "daemonsets" || strings.HasPrefix(rule.Resources[0], "validating") {
				named++
				made := func(d Document) bool { return strings.HasSuffix(d.Name(), "/"+name) }
				if !slices.ContainsFunc(shipped(t, "kubeedge"), made) {
					t.Errorf("the doctor may read %s of %v, which nothing makes", name, rule.Resources)
				}
			}
		}
	}
	if named != 2 {
		t.Errorf("the doctor's rights name %d of our objects", named)
	}
	for _, rule := range append(doctor, cloudcore...) {
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				t.Errorf("%v may be done to %v", verb, rule.Resources)
			}
		}
	}
}

const objectSyncs = "/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces/default/objectsyncs"

// As KubeEdge has it, as far as the policy looks at it.
const objectSyncKind = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	"metadata": {"name": "objectsyncs.reliablesyncs.kubeedge.io"}, "spec": {"group": "reliablesyncs.kubeedge.io", "scope": "Namespaced",
	"names": {"kind": "ObjectSync", "listKind": "ObjectSyncList", "plural": "objectsyncs", "singular": "objectsync"},
	"versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
	"properties": {"spec": {"type": "object", "properties": {"objectKind": {"type": "string"}, "objectName": {"type": "string"}}}}}}}]}}`

func objectSync(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion": "reliablesyncs.kubeedge.io/v1alpha1", "kind": "ObjectSync", "metadata": {"name": %q}%s}`, name, spec)
}

// CloudCore keeps all in sync but VolumeAttachments.
func TestThePolicyRefusesObjectSyncsOfVolumeAttachmentsOnly(t *testing.T) {
	p := start(t)
	// Before KubeEdge is there: the order of the two does not matter.
	p.apply("edge-csi-kubeedge")
	p.must("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", objectSyncKind)
	attachment := `, "spec": {"objectKind": "VolumeAttachment", "objectName": "csi-1"}`
	for end, turn := time.Now().Add(30*time.Second), 0; ; time.Sleep(100 * time.Millisecond) {
		turn++
		code, text := p.ask("POST", objectSyncs, "", "application/json", objectSync(fmt.Sprintf("n1.%d", turn), attachment))
		if code == http.StatusUnprocessableEntity && strings.Contains(text, "edge-csi-kubeedge") {
			break
		} else if time.Now().After(end) {
			t.Fatalf("an ObjectSync of a VolumeAttachment is made: %d %s", code, text)
		}
	}
	for name, spec := range map[string]string{
		"n1.pod":   `, "spec": {"objectKind": "Pod", "objectName": "p"}`,
		"n1.claim": `, "spec": {"objectKind": "PersistentVolumeClaim", "objectName": "c"}`,
		"n1.none":  `, "spec": {}`,
		"n1.empty": "",
	} {
		p.must(objectSyncs, objectSync(name, spec))
	}
}
