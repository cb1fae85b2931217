package services

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
)

// ByWorkload says which Services are before workloads.
type ByWorkload struct {
	policy        v1alpha1.LeaveFirstPolicy
	unfit         func(*rollout.Workload) string
	services, dns leaving.Index
}

// NewByWorkload looks at the Services once.
func NewByWorkload(s *Inventory, state *rollout.State) *ByWorkload {
	var all, dns []corev1.Service
	for _, e := range slices.Concat(s.Moves, s.Pins, s.Stays) {
		all = append(all, *e.Service)
		if s.DNS[e.Key()] {
			dns = append(dns, *e.Service)
		}
	}
	return &ByWorkload{
		policy: s.Spec.Refresh.LeaveFirst, unfit: state.Unfit(), services: leaving.NewIndex(all), dns: leaving.NewIndex(dns),
	}
}

// LeavesFirst reports whether the pods of a workload can and shall leave their Services before they
// end, since clients hear nothing of a lost datagram.
func (b *ByWorkload) LeavesFirst(w *rollout.Workload) bool {
	if b.policy == v1alpha1.LeaveFirstNone || b.unfit(w) != "" {
		return false
	}
	services := b.services.Selecting(w.Namespace, w.PodLabels)
	return leaving.UDP(services) || b.policy == v1alpha1.LeaveFirstAll && len(services) > 0
}

// ServesDNS reports whether a workload is behind cluster DNS.
func (b *ByWorkload) ServesDNS(w *rollout.Workload) bool {
	return len(b.dns.Selecting(w.Namespace, w.PodLabels)) > 0
}
