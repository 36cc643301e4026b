package manifests

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Series in the notation of promtool, a sample a minute for two hours: `7x120` is 7 all the time, `0+5x120` counts 5 a
// minute. Those of the shared store, and of the same files, are the same at each csi-cloud.
const shared = `
edge_csi_nodes 100x120
edge_csi_nodes_removed 1x120
edge_csi_driver_nodes{driver="d"} 100x120
edge_csi_driver_nodes_set_apart{driver="d",reason="quota"} 0x120
edge_csi_homes{driver="d"} 500x120
edge_csi_homes_unconfirmed{driver="d"} 0x120
edge_csi_intents_open{driver="d"} 0x120
edge_csi_records_bytes 100x120
edge_csi_records_bytes_limit 1000x120
edge_csi_calls_in_flight_limit{driver="d"} 1000x120
edge_csi_certificate_seconds{of="ca"} 99999999x120
edge_csi_store_older 0x120
edge_csi_clock_doubted 0x120
edge_csi_replica_epoch 7x120
edge_csi_replica_commit 70x120
`

// Those that each csi-cloud has by itself. The one that leads has links and calls; here the others have zeros.
const leaders = `
edge_csi_replica_leads 1x120
edge_csi_replica_trouble 0x120
edge_csi_links{transport="quic"} 99x120
edge_csi_link_ups_total 0+1x120
edge_csi_link_looks_untrusted_total 0x120
edge_csi_driver_nodes_linked{driver="d"} 99x120
edge_csi_driver_nodes_health{driver="d",state="up"} 99x120
edge_csi_driver_nodes_health{driver="d",state="gone"} 0x120
edge_csi_links_ending 0x120
edge_csi_certificates_shared 0x120
edge_csi_direct_not_taken 0x120
kube_daemonset_status_number_unavailable{daemonset="csi-edge-nri"} 0x120
csi_edge_deletes_refused_total 0x120
edge_csi_direct_not_taken_nodes 0x120
edge_csi_quota_refusals_total{quota="volumes"} 0x120
edge_csi_log_lines_suppressed_total{peer="stranger"} 0x120
edge_csi_list_slow_nodes_total{driver="d"} 0x120
edge_csi_remembered_seconds{driver="d"} 30x120
edge_csi_calls_total{driver="d",rpc="CreateSnapshot",code="OK"} 0+60x120
edge_csi_calls_total{driver="d",rpc="CreateSnapshot",code="UNAVAILABLE"} 0x120
edge_csi_calls_total{driver="d",rpc="CreateSnapshot",code="INTERNAL"} 0x120
edge_csi_calls_in_flight{driver="d",stage="sent"} 5x120
edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="front",le="1"} 0+60x120
edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="front",le="120"} 0+60x120
edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="front",le="+Inf"} 0+60x120
edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="link",le="1"} 0+60x120
edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="link",le="+Inf"} 0+60x120
edge_csi_store_queue 3x120
edge_csi_store_commits_total 0+30x120
edge_csi_store_commit_failures_total 0x120
edge_csi_store_commit_changes_sum 0+60x120
edge_csi_store_commit_changes_count 0+30x120
edge_csi_store_commit_seconds_bucket{le="0.1"} 0+30x120
edge_csi_store_commit_seconds_bucket{le="5"} 0+30x120
edge_csi_store_commit_seconds_bucket{le="+Inf"} 0+30x120
edge_csi_store_read_backs_total 0x120
edge_csi_roles_total{role="leading"} 1x120
edge_csi_kubernetes_requests_total{request="get",outcome="ok"} 0+10x120
edge_csi_kubernetes_requests_total{request="get",outcome="forbidden"} 0x120
edge_csi_kubernetes_request_seconds_bucket{le="1"} 0+10x120
edge_csi_kubernetes_request_seconds_bucket{le="+Inf"} 0+10x120
`

// Each change of these series, and the alerts that it must raise with their values.
var faults = []struct{ series, raised string }{
	{`edge_csi_store_commit_failures_total 0+1x120`, "EdgeCsiStoreFailing=10"},
	{`edge_csi_store_commit_seconds_bucket{le="0.1"} 0x120`, "EdgeCsiStoreSlow=4.951"},
	{`edge_csi_store_queue 2000x120`, "EdgeCsiStoreBehind=2000"},
	{`edge_csi_store_older 1x120`, "EdgeCsiStoreOlder=1"},
	{`edge_csi_clock_doubted 1x120`, "EdgeCsiClockJumped=1"},
	{`edge_csi_replica_trouble 1x120`, "EdgeCsiEtcdUnusable=1"},
	{`edge_csi_replica_leads 0x120`, "EdgeCsiNoLeader=0"},
	{`edge_csi_driver_nodes_linked{driver="d"} 80x120`, "EdgeCsiEdgesAway{d}=0.2"},
	{`edge_csi_driver_nodes_linked{driver="d"} 40x120`, "EdgeCsiEdgesAway{d}=0.6 EdgeCsiMostEdgesAway{d}=0.6"},
	{`edge_csi_quota_refusals_total{quota="volumes"} 0+2x120`, "EdgeCsiQuotaExceeded{volumes}=30"},
	{`edge_csi_records_bytes 800x120`, "EdgeCsiStoreFull=0.8"},
	{`edge_csi_driver_nodes_set_apart{driver="d",reason="quota"} 2x120`, "EdgeCsiNodeSetApart{d,quota}=2"},
	{`edge_csi_driver_nodes_health{driver="d",state="gone"} 4x120`, "EdgeCsiDriverDown{d}=4"},
	{`edge_csi_links_ending 3x120`, "EdgeCsiCertificateEnds=3"},
	{`edge_csi_certificates_shared 1x120`, "EdgeCsiCertificateShared=1"},
	{`edge_csi_certificate_seconds{of="ca"} 86400x120`, "EdgeCsiCaEnds{ca}=8.64e+04"},
	{`edge_csi_link_ups_total 0+20x120`, "EdgeCsiLinksFlapping=1200"},
	{`edge_csi_intents_open{driver="d"} 3x120`, "EdgeCsiOutcomeUnknown{d}=3"},
	{`edge_csi_calls_total{driver="d",rpc="CreateSnapshot",code="UNAVAILABLE"} 0+180x120`, "EdgeCsiCallsUnavailable{d}=0.75"},
	{`edge_csi_calls_total{driver="d",rpc="CreateSnapshot",code="INTERNAL"} 0+20x120`, "EdgeCsiDriverFailing{d}=0.25"},
	{`edge_csi_call_seconds_bucket{driver="d",rpc="CreateSnapshot",hop="front",le="1"} 0x120`, "EdgeCsiCallsSlow{d}=118.8"},
	{`edge_csi_calls_in_flight{driver="d",stage="sent"} 900x120`, "EdgeCsiFrontFull{d}=0.9"},
	{`edge_csi_list_slow_nodes_total{driver="d"} 0+1x120`, "EdgeCsiListsIncomplete{d}=60"},
	{`edge_csi_direct_not_taken 2x120`, "EdgeCsiDirectNotTaken=2"},
	{`csi_edge_deletes_refused_total 0+1x120`, "EdgeCsiDeletesRefused=60"},
	{`kube_daemonset_status_number_unavailable{daemonset="csi-edge-nri"} 2x120`, "EdgeCsiNriPluginMissing=2"},
	{`edge_csi_kubernetes_requests_total{request="get",outcome="forbidden"} 0+1x120`, "EdgeCsiKubernetesRefuses{forbidden,get}=30"},
}

// An installation is the series of all its csi-clouds.
type installation []storage.Series

// installed is one csi-cloud that leads, and so many that follow. The series of a change replaces that of the same labels.
func installed(t *testing.T, followers int, change string) installation {
	t.Helper()
	name, _, _ := strings.Cut(change, " ")
	var all installation
	for replica := range followers + 1 {
		for kind, lines := range map[string]string{"shared": shared, "leaders": leaders} {
			for line := range strings.Lines(strings.Trim(lines, "\n")) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, name+" ") {
					line = change
				}
				if kind == "leaders" && replica > 0 {
					line, _, _ = strings.Cut(line, " ")
					line += " 0x120"
				}
				all = append(all, described(t, line, replica))
			}
		}
	}
	return all
}

// described is a series in promtool's notation, as Prometheus has it of this csi-cloud.
func described(t *testing.T, line string, replica int) storage.Series {
	t.Helper()
	metric, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	points := make([]promql.FPoint, len(values))
	for minute, value := range values {
		points[minute] = promql.FPoint{T: int64(minute) * time.Minute.Milliseconds(), F: value.Value}
	}
	builder := labels.NewBuilder(metric).Set("instance", fmt.Sprintf("10.0.0.%d:9808", replica))
	return promql.NewStorageSeries(promql.Series{Metric: builder.Labels(), Floats: points})
}

func (all installation) Querier(_, _ int64) (storage.Querier, error) {
	selected := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		differs := func(series storage.Series) bool {
			return slices.ContainsFunc(matchers, func(matcher *labels.Matcher) bool {
				return !matcher.Matches(series.Labels().Get(matcher.Name))
			})
		}
		return &set{rest: slices.DeleteFunc(slices.Clone(all), differs)}
	}
	return &storage.MockQuerier{SelectMockFunction: selected}, nil
}

// set goes through series.
type set struct {
	rest []storage.Series
	at   storage.Series
}

func (s *set) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}
func (s *set) At() storage.Series                { return s.at }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// answers are the results of a query after two hours: the values of their labels but the instance, and the number.
func (all installation) answers(t *testing.T, query string) []string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	asked, err := engine.NewInstantQuery(context.Background(), all, nil, query, time.Unix(0, 0).Add(2*time.Hour))
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer asked.Close()
	vector, err := asked.Exec(context.Background()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var answers []string
	for _, sample := range vector {
		var values []string
		sample.Metric.Range(func(label labels.Label) {
			if label.Name != "instance" && label.Name != labels.MetricName {
				values = append(values, label.Value)
			}
		})
		of := ""
		if len(values) > 0 {
			of = "{" + strings.Join(values, ",") + "}"
		}
		answers = append(answers, fmt.Sprintf("%s=%.4g", of, sample.F))
	}
	slices.Sort(answers)
	return answers
}

// raised are the alerts whose queries have answers, whatever time they ask for.
func (all installation) raised(t *testing.T, rules []monitoringv1.Rule) string {
	t.Helper()
	var raised []string
	for _, rule := range rules {
		for _, answer := range all.answers(t, rule.Expr.String()) {
			raised = append(raised, rule.Alert+answer)
		}
	}
	slices.Sort(raised)
	return strings.Join(raised, " ")
}

func rules(t *testing.T) []monitoringv1.Rule {
	t.Helper()
	documents, err := Decoded("alerts.yaml", monitoring(t, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return documents[0].Object.(*monitoringv1.PrometheusRule).Spec.Groups[0].Rules
}

func TestAlertsHoldForOneAndForSeveralCsiClouds(t *testing.T) {
	rules := rules(t)
	left := map[string]bool{}
	for _, rule := range rules {
		left[rule.Alert] = true
	}
	for _, followers := range []int{0, 2} {
		if raised := installed(t, followers, "").raised(t, rules); raised != "" {
			t.Errorf("all is well with %d followers, and there is %s", followers, raised)
		}
		for _, fault := range faults {
			raised := installed(t, followers, fault.series).raised(t, rules)
			if raised != fault.raised {
				t.Errorf("%d followers and %s: it is %q, not %q", followers, fault.series, raised, fault.raised)
			}
			for alert := range strings.FieldsSeq(raised) {
				delete(left, alert[:strings.IndexAny(alert, "{=")])
			}
		}
	}
	if raised := (installation{}).raised(t, rules); !strings.HasPrefix(raised, "EdgeCsiDown=1") {
		t.Errorf("nothing was scraped: %q", raised)
	}
	delete(left, "EdgeCsiDown")
	if len(left) > 0 {
		t.Errorf("no fault raises %v", slices.Sorted(maps.Keys(left)))
	}
}

func TestTheDashboardShowsTheSameOfOneAndOfSeveralCsiClouds(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(monitoring(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	one, three := installed(t, 0, ""), installed(t, 2, "")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			query := grafanas.Replace(target.Expr)
			want, got := one.answers(t, query), three.answers(t, query)
			// It shows each csi-cloud.
			if strings.Contains(target.LegendFormat, "{{instance}}") {
				if len(got) != 3*len(want) {
					t.Errorf("%s: %s has %v of three csi-clouds", panel.Title, query, got)
				}
				continue
			}
			if len(want) == 0 || !slices.Equal(want, got) {
				t.Errorf("%s: %s is %v of one csi-cloud and %v of three", panel.Title, query, want, got)
			}
		}
	}
}
