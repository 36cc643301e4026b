package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
)

// Grafana puts these in before Prometheus sees the expression.
var grafanas = strings.NewReplacer("$__rate_interval", "5m", "$driver", ".*")

func monitoring(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Chart, "files", file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAlertsAreExpressionsAndHaveARunbook(t *testing.T) {
	documents, err := Decoded("alerts.yaml", monitoring(t, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	operations, err := os.ReadFile("../../../docs/troubleshoot/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^#+ (EdgeCsi\w+)$`).FindAllStringSubmatch(string(operations), -1) {
		headings[found[1]] = true
	}
	for _, group := range documents[0].Object.(*monitoringv1.PrometheusRule).Spec.Groups {
		for _, rule := range group.Rules {
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr.String()); err != nil {
				t.Errorf("%s: %v", rule.Alert, err)
			}
			if !headings[rule.Alert] {
				t.Errorf("docs/troubleshoot/alerts.md has no heading %s", rule.Alert)
			}
			delete(headings, rule.Alert)
			if want := "docs/troubleshoot/alerts.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
				t.Errorf("%s: its runbook is %q, not %q", rule.Alert, rule.Annotations["runbook_url"], want)
			}
		}
	}
	for heading := range headings {
		t.Errorf("docs/troubleshoot/alerts.md explains %s, which is no alert", heading)
	}
}

func TestTheChartsAlertsLinkToTheirRunbooks(t *testing.T) {
	alerts := 0
	for _, document := range rendered(t, "values/runbooks.yaml", "edge-csi") {
		rules, is := document.Object.(*monitoringv1.PrometheusRule)
		if !is {
			continue
		}
		for _, rule := range rules.Spec.Groups[0].Rules {
			alerts++
			want := "https://git.example/edge-csi/docs/troubleshoot/alerts.md#" + strings.ToLower(rule.Alert)
			if link := rule.Annotations["runbook_url"]; link != want {
				t.Errorf("%s: its runbook is %q, not %q", rule.Alert, link, want)
			}
		}
	}
	if alerts < 20 {
		t.Errorf("there are %d alerts", alerts)
	}
}

func TestTheDashboardIsReadable(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(monitoring(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("panel %q has the id or the place of another", panel.Title)
		}
		ids[panel.ID] = true
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(grafanas.Replace(target.Expr)); err != nil {
				t.Errorf("panel %q: %v", panel.Title, err)
			}
		}
	}
}
