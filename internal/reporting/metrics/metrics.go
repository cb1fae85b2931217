// Package metrics tells Prometheus how a migration goes. It listens only when asked to.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// RunState is what the run of this process does.
type RunState string

// The states, of which one holds at a time. Idle is before the first event.
const (
	Idle        RunState = "idle"
	Running     RunState = "running"
	Done        RunState = "done"
	Failed      RunState = "failed"
	Interrupted RunState = "interrupted"
)

func states() []RunState { return []RunState{Idle, Running, Done, Failed, Interrupted} }

// Metrics are those of one process.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	barriers *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
	run      *prometheus.GaugeVec
}

// RunMetrics is what is measured of one migration. A nil one measures nothing.
type RunMetrics struct {
	of        *Metrics
	migration string
	// probes are the names that there can be, with the origin of requests.
	probes map[string]bool
}

const otherProbes = "other"

// Look reads the Migrations of the process, with every scrape; while it fails, nothing is said of
// them.
type Look func(context.Context) ([]v1alpha1.Migration, error)

// New makes metrics. look may be nil.
func New(look Look) *Metrics {
	long := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "replumb_probe_requests_total",
			Help: "Requests of probes, over all nodes, by result: ok, late (answered, after more than a second or a second question to a name server), failed, or not-measured (nothing is known of it).",
		}, []string{"migration", "probe", "result"}),
		barriers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "replumb_barrier_wait_seconds", Help: "How long it took until every node was proven to know a batch.", Buckets: long,
		}, []string{"migration"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "replumb_step_duration_seconds", Help: "How long steps took that did something, by the phase they are of.", Buckets: long,
		}, []string{"migration", "phase"}),
		run: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "replumb_run_state", Help: "1 for the state that the run is in, 0 for every other.",
		}, []string{"migration", "state"}),
	}
	m.registry.MustRegister(m.requests, m.barriers, m.steps, m.run)
	if look != nil {
		m.registry.MustRegister(newRecorded(look))
	}
	return m
}

// Of is what is measured of one migration. Of nil metrics it is nil, which measures nothing.
func (m *Metrics) Of(migration string) *RunMetrics {
	if m == nil {
		return nil
	}
	r := &RunMetrics{of: m, migration: migration, probes: map[string]bool{}}
	r.state(Idle)
	m.barriers.WithLabelValues(migration)
	for _, name := range v1alpha1.OwnProbes() {
		r.know(name)
	}
	return r
}

// About says which cluster the metrics are about, by replumb_cluster_info. It is called once.
func (m *Metrics) About(of engine.Identity) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "replumb_cluster_info",
		Help:        "1, with labels that say which cluster this is about: the UID of its namespace kube-system, its server and its context.",
		ConstLabels: prometheus.Labels{"uid": of.UID, "server": of.Server, "context": of.Context},
	})
	info.Set(1)
	m.registry.MustRegister(info)
}

// Probes are those of the Migration, called before the first Sample. Any other counts as "other":
// names come from nodes, and each would be a time series for good.
func (r *RunMetrics) Probes(all []v1alpha1.ProbeSpec) {
	if r == nil {
		return
	}
	for i := range all {
		r.know(all[i].Name)
	}
}

func (r *RunMetrics) know(name string) {
	for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		r.probes[strings.ToLower(string(origin))+"/"+name] = true // as in reports: see orders.full in internal/verify/agent
	}
}

func (r *RunMetrics) state(now RunState) {
	for _, s := range states() {
		value := 0.0
		if s == now {
			value = 1
		}
		r.of.run.WithLabelValues(r.migration, string(s)).Set(value)
	}
}

// Event is a sink of events.
func (r *RunMetrics) Event(e engine.Event) {
	if r == nil {
		return
	}
	switch e.Kind {
	case engine.RunStarted:
		r.state(Running)
	case engine.RunDone:
		r.state(Done)
	case engine.RunFailed:
		r.state(Failed)
	case engine.RunInterrupted:
		r.state(Interrupted)
	case engine.StepDone:
		r.of.steps.WithLabelValues(r.migration, e.Phase).Observe(e.Seconds)
		if e.Role == engine.RoleBarrier {
			r.of.barriers.WithLabelValues(r.migration).Observe(e.Seconds)
		}
	}
}

// Sample adds what a probe met with.
func (r *RunMetrics) Sample(s journal.Sample) {
	if r == nil {
		return
	}
	name := s.Probe
	if !r.probes[name] {
		name = otherProbes
	}
	for result, n := range map[string]int64{
		"ok": s.Sent - s.Failed - s.Late, "late": s.Late, "failed": s.Failed, "not-measured": s.NotMeasured,
	} {
		r.of.requests.WithLabelValues(r.migration, name, result).Add(float64(max(0, n)))
	}
}

// Server answers scrapes.
type Server struct {
	Address net.Addr

	server *http.Server
	ended  chan error
}

// here has a host: this machine alone by default, since metrics are neither encrypted nor
// authenticated.
func here(address string) string {
	if _, err := strconv.ParseUint(address, 10, 16); err == nil {
		address = ":" + address
	}
	if port, ok := strings.CutPrefix(address, ":"); ok {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// Serve answers at /metrics of host:port, by default on 127.0.0.1, until the Server is stopped.
func (m *Metrics) Serve(ctx context.Context, address string) (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", here(address))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m.ServeOn(listener), nil
}

// ServeOn is Serve for one who listens already.
func (m *Metrics) ServeOn(listener net.Listener) *Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	s := &Server{
		Address: listener.Addr(), ended: make(chan error, 1),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute},
	}
	go func() { s.ended <- s.server.Serve(listener) }()
	return s
}

// Stop waits for scrapes in hand, until ctx ends, and returns the error of serving.
func (s *Server) Stop(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
