package manifests

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	account = "system:serviceaccount:edge-csi:csi-cloud"
	merge   = "application/merge-patch+json"
	node    = "/api/v1/nodes/n1"
	drivers = "/apis/storage.k8s.io/v1/csidrivers"
)

// plane is an API server with its store.
type plane struct {
	t    *testing.T
	url  string
	http http.Client
}

// start runs the API server; the test is skipped where the programs are missing.
func start(t *testing.T) plane {
	t.Helper()
	etcd, err := exec.LookPath("etcd")
	apiserver, _ := filepath.Abs("../bin/kube-apiserver")
	if _, missing := os.Stat(apiserver); err != nil || missing != nil {
		t.Skip("tier skipped: etcd or tests/go/bin/kube-apiserver is missing")
	}
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("admin,admin,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, peer, secure := "http://"+free(t), "http://"+free(t), free(t)
	run(t, etcd, "--data-dir="+dir+"/etcd", "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	// The API server makes its own certificate, whose key signs no account's token here.
	key := filepath.Join(dir, "accounts.key")
	if out, err := exec.Command("openssl", "genrsa", "-out", key, "2048").CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v: %s", err, out)
	}
	_, port, _ := net.SplitHostPort(secure)
	run(t, apiserver, "--etcd-servers="+client, "--secure-port="+port, "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24", "--cert-dir="+dir+"/certs",
		"--token-auth-file="+tokens, "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--authorization-mode=RBAC", "--endpoint-reconciler-type=none")
	p := plane{t: t, url: "https://" + secure}
	p.http = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // A loopback server of this test.
	}}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if code, text := p.ask("GET", "/readyz", "", "", ""); code == http.StatusOK {
			return p
		} else if time.Now().After(end) {
			t.Fatalf("the API server does not serve: %d %s", code, text)
		}
	}
}

func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// run starts a program, and ends it with the test.
func run(t *testing.T, program string, arguments ...string) {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Dir = t.TempDir()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
}

// ask sends a request, as this user if there is one.
func (p plane) ask(method, path, as, kind, body string) (int, string) {
	request, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer admin")
	request.Header.Set("Content-Type", kind)
	if as != "" {
		request.Header.Set("Impersonate-User", as)
	}
	response, err := p.http.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// must makes an object as the administrator.
func (p plane) must(path, object string) {
	p.t.Helper()
	if code, text := p.ask("POST", path, "", "application/yaml", object); code != http.StatusCreated {
		p.t.Fatalf("%s: %d %s", path, code, text)
	}
}

// apply makes the admission policies whose names begin so, and their bindings.
func (p plane) apply(prefix string) {
	p.t.Helper()
	for _, document := range rendered(p.t, "values/everything.yaml", "edge-csi") {
		kind := map[string]string{
			"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
			"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
		}[document.Fields["kind"].(string)]
		if kind == "" || !strings.HasPrefix(document.Object.(metav1.Object).GetName(), prefix) {
			continue
		}
		object, err := yaml.YAMLToJSON(document.Text)
		if err != nil {
			p.t.Fatal(err)
		}
		p.must("/apis/admissionregistration.k8s.io/v1/"+kind, string(object))
	}
}

// awaitRefusal asks as csi-cloud until a policy refuses: each one counts some time after it was made.
func (p plane) awaitRefusal(method, path, kind string, body func() string) {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		code, text := p.ask(method, path, account, kind, body())
		if code == http.StatusUnprocessableEntity {
			return
		} else if time.Now().After(end) {
			p.t.Fatalf("no policy refuses %s %s: %d %s", method, path, code, text)
		}
	}
}

const everything = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
	"metadata": {"name": "all"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
	"name": "cluster-admin"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "` + account + `"}]}`

func csidriver(name, labels string) string {
	return fmt.Sprintf(`{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": %q, "labels": %s}}`, name, labels)
}

// Even with all rights csi-cloud writes its own keys only.
func TestThePoliciesLetCsiCloudWriteItsOwnKeysOnly(t *testing.T) {
	p := start(t)
	p.apply("edge-csi-cloud-")
	p.must("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", everything)
	p.must("/api/v1/nodes", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}}`)
	p.must(drivers, csidriver("foreign.example", "{}"))
	// Another one each time: what changes nothing is allowed.
	spec := func() string {
		return fmt.Sprintf(`{"spec": {"taints": [{"key": "a", "value": "t%d", "effect": "NoSchedule"}]}}`, time.Now().UnixNano())
	}
	p.awaitRefusal("PATCH", node, merge, spec)
	p.awaitRefusal("POST", drivers+"?dryRun=All", "application/json", func() string {
		return csidriver("other.example", "{}")
	})
	ours := `{"app.kubernetes.io/managed-by": "edge-csi"}`
	for _, step := range []struct {
		method, path, body string
		allowed            bool
	}{
		{"PATCH", node, `{"metadata": {"labels": {"topology.hostpath.csi/node": "n1", "topology.kubernetes.io/zone": "a"}}}`, true},
		{"PATCH", node, `{"metadata": {"labels": {"topology.hostpath.csi/node": null}}}`, true},
		{"PATCH", node, `{"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}}}`, true},
		{"PATCH", node, `{"metadata": {"annotations": {"other": "x"}}}`, false},
		{"PATCH", node, `{"metadata": {"finalizers": ["a.b/c"]}}`, false},
		{"PATCH", node, `{"metadata": {"labels": {"edge-csi.io/edge": "true"}}}`, false},
		{"PATCH", node, `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`, false},
		{"PATCH", node, `{"metadata": {"labels": {"a.node-restriction.kubernetes.io/b": "c"}}}`, false},
		{"PATCH", node, `{"metadata": {"labels": {"kubernetes.io/hostname": null}}}`, false},
		{"PATCH", node + "/status", `{"status": {"phase": "Running"}}`, false},
		{"DELETE", node, "", false},
		{"POST", "/api/v1/nodes", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}}`, false},
		{"POST", drivers, csidriver("ours.example", ours), true},
		{"DELETE", drivers + "/ours.example", "", true},
		{"POST", drivers, csidriver("other.example", "{}"), false},
		{"PATCH", drivers + "/foreign.example", `{"metadata": {"labels": ` + ours + `}}`, false},
		{"DELETE", drivers + "/foreign.example", "", false},
	} {
		kind := "application/json"
		if step.method == "PATCH" {
			kind = merge
		}
		code, text := p.ask(step.method, step.path, account, kind, step.body)
		refused := code == http.StatusUnprocessableEntity && strings.Contains(text, "ValidatingAdmissionPolicy")
		if step.allowed && code/100 != 2 || !step.allowed && !refused {
			t.Errorf("%s %s %s: %d %s", step.method, step.path, step.body, code, text)
		}
	}
	// The policies are about csi-cloud's account alone.
	if code, text := p.ask("PATCH", node, "", merge, spec()); code != http.StatusOK {
		t.Errorf("an administrator is refused: %d %s", code, text)
	}
}
