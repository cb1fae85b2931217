package rehearsal

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/spec"
)

// gateWait is how long the rehearsal waits at a gate that it has answered.
const gateWait = 5 * time.Minute

// Settings are a Migration as it is rehearsed, and what of it is not.
type Settings struct {
	// Given is what check and plan of the snapshot get: the Migration without what calls others.
	Given *v1alpha1.Migration
	// Rehearsed is what is applied.
	Rehearsed *v1alpha1.Migration
	// LeftOut says what of the Migration the rehearsal leaves out, a line each.
	LeftOut []string
	// Settle is how long the Migration waits after each batch, Pauses how long after its tiers in all, and Drain before it takes addresses away.
	Settle, Pauses, Drain time.Duration
}

// refusal of what cannot be rehearsed.
func refusal(hint, problem string, args ...any) error {
	return &usage{fault.Hinted{Err: fmt.Errorf(problem, args...), Hint: hint}}
}

// usage is a Migration, or a snapshot, that a rehearsal cannot be of.
type usage struct{ fault.Hinted }

func (*usage) ExitCode() int { return fault.ExitUsage }

// Tame takes from a Migration what would reach beyond the rehearsal, or only let time pass. etcd is a client URL of the rehearsal's own; none of
// the real one is left in what it returns.
func Tame(m *v1alpha1.Migration, etcd string) (*Settings, error) {
	if kind := m.Spec.Type(); kind != "serviceCIDR" {
		if kind == "" {
			return nil, refusal("replumb explain says what a Migration is made of", "the Migration names no job")
		}
		return nil, refusal(
			"rehearse it in a lab with real nodes: replumb-lab up. replumb check and plan --from FILE answer for it from the snapshot",
			"spec.%s cannot be rehearsed without nodes: its pods have to get addresses, and its nodes to carry packets", kind,
		)
	}
	whole := m.DeepCopy()
	spec.Default(whole)
	s := &Settings{Settle: duration(whole.Spec.Batch.Settle), Drain: duration(whole.Spec.ServiceCIDR.Drain)}
	for i := range whole.Spec.Tiers {
		s.Pauses += duration(whole.Spec.Tiers[i].Pause)
	}
	s.Given = m.DeepCopy()
	s.Given.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"}
	s.reachNoOne(etcd)
	s.Rehearsed = s.Given.DeepCopy()
	s.waitForNothing()
	s.useNoNodes()
	return s, nil
}

func duration(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}

func (s *Settings) leave(was bool, format string, args ...any) {
	if was {
		s.LeftOut = append(s.LeftOut, fmt.Sprintf(format, args...))
	}
}

// reachNoOne takes away all programs, URLs and stores of the Migration.
func (s *Settings) reachNoOne(etcd string) {
	m := &s.Given.Spec
	s.leave(len(m.Hooks) > 0, "hooks: none was called")
	s.leave(len(m.Notify) > 0, "notify: no one was told")
	s.leave(m.TierLookup != nil, "tierLookup: it was not asked; Services that no rule names are in the default tier")
	s.leave(m.ServiceCIDR.Actions != nil, "actions of gates: none was called; the rehearsal answered the gates itself")
	m.Hooks, m.Notify, m.TierLookup, m.ServiceCIDR.Actions = nil, nil, nil, nil
	if m.ServiceCIDR.Etcd != nil {
		s.leave(true, "etcd: the rehearsal's own was written to, without credentials")
		m.ServiceCIDR.Etcd = &v1alpha1.StoreSpec{Endpoints: []string{etcd}}
	}
}

// waitForNothing leaves out what only lets time pass.
func (s *Settings) waitForNothing() {
	m := &s.Rehearsed.Spec
	s.leave(len(m.Windows) > 0, "windows: batches began at any time")
	s.leave(s.Settle > 0, "batch.settle: no wait of %s after each batch", s.Settle)
	s.leave(s.Pauses > 0, "pauses of tiers: no wait of %s in all", s.Pauses)
	m.Windows, m.Batch.Settle = nil, &metav1.Duration{}
	for i := range m.Tiers {
		m.Tiers[i].Pause = nil
	}
	m.Paused, m.Desired = false, ""
	s.leave(s.Drain > 0, "drain: no wait of %s before addresses were taken away", s.Drain)
	m.ServiceCIDR.Drain = &metav1.Duration{}
	m.ServiceCIDR.GateWait = &metav1.Duration{Duration: gateWait}
}

// useNoNodes leaves out what takes nodes that run pods.
func (s *Settings) useNoNodes() {
	m := &s.Rehearsed.Spec
	s.leave(m.Proof.Agents != v1alpha1.AgentsDisabled, "agents, probes and loss budget: no pod of replumb ran")
	m.Proof = v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}
	job := m.ServiceCIDR
	s.leave(job.Follower != v1alpha1.FollowerDisabled, "follower: nothing kept bridges in step but the run itself")
	job.Follower = v1alpha1.FollowerDisabled
	if job.Barrier.Mode == v1alpha1.BarrierAgent {
		job.Barrier.Mode = v1alpha1.BarrierHealthCheck
	}
	s.leave(job.Refresh.Mode != v1alpha1.RefreshReport, "restarts: planned from the snapshot, and none was made")
	job.Refresh.Mode = v1alpha1.RefreshReport
	s.leave(len(job.APIServers) > 0, "apiServers: the rehearsal has one of its own")
	job.APIServers = nil
}

// targets are the ranges that Services go to.
func targets(m *v1alpha1.Migration) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range m.Spec.ServiceCIDR.To {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, refusal("write a range such as 172.24.0.0/16", "spec.serviceCIDR.to: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}
