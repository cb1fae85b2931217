package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

const askLimit = 2 * time.Second

// recorded reads the status of Migrations at each scrape: it is true whichever process runs them.
type recorded struct {
	look                       Look
	objects, conditions, since *prometheus.Desc
}

func newRecorded(look Look) *recorded {
	return &recorded{
		look: look,
		objects: prometheus.NewDesc("replumb_objects",
			"What the migration moves, by where it stands: Services (type serviceCIDR), pods (podCIDR, cni), nodes (nodes, kubeProxy) or DNS names (mirror).",
			[]string{"migration", "type", "state"}, nil),
		conditions: prometheus.NewDesc("replumb_migration_condition",
			"1 if the condition of the Migration is true, such as Ready, Stalled or GateWaiting, else 0.",
			[]string{"migration", "type", "condition"}, nil),
		since: prometheus.NewDesc("replumb_migration_condition_since_seconds",
			"When the condition of the Migration last changed, in seconds since 1970.",
			[]string{"migration", "type", "condition"}, nil),
	}
}

func (r *recorded) Describe(out chan<- *prometheus.Desc) {
	out <- r.objects
	out <- r.conditions
	out <- r.since
}

func (r *recorded) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	all, err := r.look(ctx)
	if err != nil {
		return // no number is better than an old one
	}
	for i := range all {
		r.collect(&all[i], out)
	}
}

func (r *recorded) collect(m *v1alpha1.Migration, out chan<- prometheus.Metric) {
	c := m.Status.Counts
	for state, n := range map[string]int{
		"waiting": max(0, c.Total-c.Moved), "moved": c.Moved, "bridged": c.Bridged, "pinned": c.Pinned, "stays": c.Stays,
	} {
		out <- prometheus.MustNewConstMetric(r.objects, prometheus.GaugeValue, float64(n), m.Name, m.Spec.Type(), state)
	}
	for _, c := range m.Status.Conditions {
		holds := 0.0
		if c.Status == metav1.ConditionTrue {
			holds = 1
		}
		labels := []string{m.Name, m.Spec.Type(), c.Type}
		out <- prometheus.MustNewConstMetric(r.conditions, prometheus.GaugeValue, holds, labels...)
		out <- prometheus.MustNewConstMetric(r.since, prometheus.GaugeValue, float64(c.LastTransitionTime.Unix()), labels...)
	}
}
