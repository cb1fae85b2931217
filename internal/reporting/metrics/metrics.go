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

// State is what the run of this process does.
type State string

// The states, of which one holds at a time. Idle is before the first event, and in a process that only keeps bridges.
const (
	Idle        State = "idle"
	Running     State = "running"
	Done        State = "done"
	Failed      State = "failed"
	Interrupted State = "interrupted"
)

func states() []State { return []State{Idle, Running, Done, Failed, Interrupted} }

// Metrics are those of one process.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	barriers prometheus.Histogram
	steps    *prometheus.HistogramVec
	run      *prometheus.GaugeVec
	// probes are the names that there can be, with the origin of requests.
	probes map[string]bool
}

// otherProbes is the name for all probes that are not known.
const otherProbes = "other"

// Counts asks for the Services of what the process works on. It is asked with every scrape; while it fails, there are no counts.
type Counts func(context.Context) (v1alpha1.Counts, error)

// New makes metrics.
func New(counts Counts) *Metrics {
	long := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "replumb_probe_requests_total", Help: "Requests of probes, over all nodes, by result: ok or failed.",
		}, []string{"probe", "result"}),
		barriers: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "replumb_barrier_wait_seconds", Help: "How long it took until every node was proven to know a batch.", Buckets: long,
		}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "replumb_step_duration_seconds", Help: "How long steps took that did something, by the phase they are of.", Buckets: long,
		}, []string{"phase"}),
		run: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "replumb_run_state", Help: "1 for the state that the run is in, 0 for every other.",
		}, []string{"state"}),
	}
	m.registry.MustRegister(m.requests, m.barriers, m.steps, m.run, &services{
		counts: counts,
		desc:   prometheus.NewDesc("replumb_services", "Services by where they stand in the migration.", []string{"state"}, nil),
	})
	m.state(Idle)
	for _, name := range v1alpha1.OwnProbes() {
		m.know(name)
	}
	return m
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

// Probes are those of the Migration, beside the agents' own. It is called before the first Sample: any other is counted as "other", since
// names come from reports of nodes, and each would be a time series for good.
func (m *Metrics) Probes(all []v1alpha1.ProbeSpec) {
	for i := range all {
		m.know(all[i].Name)
	}
}

func (m *Metrics) know(name string) {
	if m.probes == nil {
		m.probes = map[string]bool{}
	}
	for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		m.probes[strings.ToLower(string(origin))+"/"+name] = true // as in reports: see orders.full in internal/verify/agent
	}
}

func (m *Metrics) state(now State) {
	for _, s := range states() {
		value := 0.0
		if s == now {
			value = 1
		}
		m.run.WithLabelValues(string(s)).Set(value)
	}
}

// Event is a sink of events.
func (m *Metrics) Event(e engine.Event) {
	switch e.Kind {
	case engine.RunStarted:
		m.state(Running)
	case engine.RunDone:
		m.state(Done)
	case engine.RunFailed:
		m.state(Failed)
	case engine.RunInterrupted:
		m.state(Interrupted)
	case engine.StepDone:
		m.steps.WithLabelValues(e.Phase).Observe(e.Seconds)
		if e.Role == engine.RoleBarrier {
			m.barriers.Observe(e.Seconds)
		}
	}
}

// Sample adds what a probe met with.
func (m *Metrics) Sample(s journal.Sample) {
	name := s.Probe
	if !m.probes[name] {
		name = otherProbes
	}
	m.requests.WithLabelValues(name, "ok").Add(float64(max(0, s.Sent-s.Failed)))
	m.requests.WithLabelValues(name, "failed").Add(float64(max(0, s.Failed)))
}

// Server answers scrapes.
type Server struct {
	// Address that it listens on, with the port that it got.
	Address net.Addr

	server *http.Server
	ended  chan error
}

// here is an address with a host: this machine alone, if only a port was given. Metrics are neither encrypted nor authenticated.
func here(address string) string {
	if _, err := strconv.ParseUint(address, 10, 16); err == nil {
		address = ":" + address
	}
	if port, ok := strings.CutPrefix(address, ":"); ok {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// Serve listens on host:port, without a host on 127.0.0.1, and answers at /metrics, until the Server is stopped.
func (m *Metrics) Serve(ctx context.Context, address string) (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", here(address))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	s := &Server{
		Address: listener.Addr(), ended: make(chan error, 1),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute},
	}
	go func() { s.ended <- s.server.Serve(listener) }()
	return s, nil
}

// Stop lets scrapes in hand end, until ctx does at the longest, and returns what went wrong since Serve.
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

// services asks for the counts at each scrape.
type services struct {
	counts Counts
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s *services) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

// askLimit is how long a scrape waits for counts.
const askLimit = 2 * time.Second

// Collect implements prometheus.Collector.
func (s *services) Collect(out chan<- prometheus.Metric) {
	if s.counts == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	c, err := s.counts(ctx)
	if err != nil {
		return // no number is better than an old one
	}
	for state, n := range map[string]int{
		"waiting": max(0, c.Total-c.Moved), "moved": c.Moved, "bridged": c.Bridged, "pinned": c.Pinned, "stays": c.Stays,
	} {
		out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), state)
	}
}
