package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

func scrape(t *testing.T, s *Server) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Address.String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v\n%s", res.Status, err, body)
	}
	return string(body)
}

func serve(t *testing.T, m *Metrics) *Server {
	t.Helper()
	s, err := m.Serve(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func has(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(page, l+"\n") {
			t.Errorf("there is no %s in\n%s", l, page)
		}
	}
}

func TestScrape(t *testing.T) {
	trouble := errors.New("no answer")
	var failing error
	m := New(func(context.Context) ([]v1alpha1.Migration, error) {
		return []v1alpha1.Migration{{
			ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{}},
			Status: v1alpha1.MigrationStatus{
				Counts: v1alpha1.Counts{Total: 10, Moved: 4, Bridged: 5, Pinned: 1, Stays: 2},
				Conditions: []metav1.Condition{
					{Type: "Ready", Status: metav1.ConditionFalse, LastTransitionTime: metav1.Unix(1700000000, 0)},
					{Type: "GateWaiting", Status: metav1.ConditionTrue, LastTransitionTime: metav1.Unix(1700000060, 0)},
				},
			},
		}}, failing
	})
	r := m.Of("m")
	m.About(engine.Identity{UID: "u", Server: "s:1", Context: "c"})
	s := serve(t, m)
	has(
		t,
		scrape(t, s),
		`replumb_cluster_info{context="c",server="s:1",uid="u"} 1`,
		`replumb_run_state{migration="m",state="idle"} 1`,
		`replumb_run_state{migration="m",state="running"} 0`,
		`replumb_barrier_wait_seconds_count{migration="m"} 0`,
	)
	for _, e := range []engine.Event{
		{Kind: engine.RunStarted},
		{Kind: engine.StepDone, Phase: "move", Step: "hop/shop/cart", Seconds: 0.3},
		{Kind: engine.StepDone, Phase: "move", Step: "barrier/batch 1 of 2", Role: engine.RoleBarrier, Seconds: 1.5},
		{Kind: engine.StepUnchanged, Phase: "move", Step: "barrier/batch 2 of 2", Role: engine.RoleBarrier},
	} {
		r.Event(e)
	}
	r.Sample(journal.Sample{Probe: "host/name", Sent: 50, Failed: 2, Late: 3, NotMeasured: 4})
	r.Sample(journal.Sample{Probe: "host/name", Sent: 50})
	has(
		t,
		scrape(t, s),
		`replumb_run_state{migration="m",state="running"} 1`,
		`replumb_run_state{migration="m",state="idle"} 0`,
		`replumb_barrier_wait_seconds_count{migration="m"} 1`,
		`replumb_barrier_wait_seconds_sum{migration="m"} 1.5`,
		`replumb_step_duration_seconds_count{migration="m",phase="move"} 2`,
		`replumb_step_duration_seconds_bucket{migration="m",phase="move",le="0.5"} 1`,
		`replumb_probe_requests_total{migration="m",probe="host/name",result="ok"} 95`,
		`replumb_probe_requests_total{migration="m",probe="host/name",result="failed"} 2`,
		`replumb_probe_requests_total{migration="m",probe="host/name",result="late"} 3`,
		`replumb_probe_requests_total{migration="m",probe="host/name",result="not-measured"} 4`,
		`replumb_objects{migration="m",state="waiting",type="serviceCIDR"} 6`,
		`replumb_objects{migration="m",state="moved",type="serviceCIDR"} 4`,
		`replumb_objects{migration="m",state="bridged",type="serviceCIDR"} 5`,
		`replumb_objects{migration="m",state="pinned",type="serviceCIDR"} 1`,
		`replumb_objects{migration="m",state="stays",type="serviceCIDR"} 2`,
		`replumb_migration_condition{condition="Ready",migration="m",type="serviceCIDR"} 0`,
		`replumb_migration_condition{condition="GateWaiting",migration="m",type="serviceCIDR"} 1`,
		`replumb_migration_condition_since_seconds{condition="GateWaiting",migration="m",type="serviceCIDR"} 1.70000006e+09`,
	)
	for kind, state := range map[engine.EventKind]RunState{
		engine.RunDone: Done, engine.RunFailed: Failed, engine.RunInterrupted: Interrupted,
	} {
		r.Event(engine.Event{Kind: kind})
		has(t, scrape(t, s), `replumb_run_state{migration="m",state="`+string(state)+`"} 1`)
	}
	failing = trouble
	if page := scrape(t, s); strings.Contains(page, "replumb_objects{") {
		t.Errorf("counts that are not known:\n%s", page)
	}
}

// TestProbesAreBounded: names come from NodeReports, and each would be a time series for good.
func TestProbesAreBounded(t *testing.T) {
	m := New(nil)
	r := m.Of("m")
	r.Probes([]v1alpha1.ProbeSpec{{Name: "shop"}})
	for _, name := range []string{"pod/dns", "host/shop", "host/x1", "x2", "host/", "HOST/dns", "host/dns/x"} {
		r.Sample(journal.Sample{Probe: name, Sent: 1})
	}
	page := scrape(t, serve(t, m))
	has(
		t,
		page,
		`replumb_probe_requests_total{migration="m",probe="pod/dns",result="ok"} 1`,
		`replumb_probe_requests_total{migration="m",probe="host/shop",result="ok"} 1`,
		`replumb_probe_requests_total{migration="m",probe="other",result="ok"} 5`,
	)
	if n := strings.Count(page, `result="ok"`); n != 3 {
		t.Errorf("%d probes:\n%s", n, page)
	}
}

// TestOnlyThisMachine: a port alone is open to this machine alone; metrics are neither encrypted
// nor authenticated.
func TestOnlyThisMachine(t *testing.T) {
	for given, want := range map[string]string{
		":9090": "127.0.0.1:9090", "9090": "127.0.0.1:9090", "0.0.0.0:9090": "0.0.0.0:9090", "[::]:9090": "[::]:9090", "localhost:1": "localhost:1", "nonsense": "nonsense",
	} {
		if got := here(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
	s, err := New(nil).Serve(t.Context(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.Address.String(), "127.0.0.1:") {
		t.Errorf("listens on %s", s.Address)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPortInUse(t *testing.T) {
	s := serve(t, New(nil))
	if _, err := New(nil).Serve(t.Context(), s.Address.String()); err == nil || !strings.Contains(err.Error(), "metrics: ") {
		t.Errorf("listening twice: %v", err)
	}
}
