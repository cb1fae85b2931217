package lossguard

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// labelControlPlane marks control planes. NodeRestriction keeps kubelets from setting it
// (k8s.io/kubernetes plugin/pkg/admission/noderestriction/admission.go).
const labelControlPlane = "node-role.kubernetes.io/control-plane"

// Witnesses are the ready nodes with an agent, and what it saw of API servers in this run.
func (p *Agents) Witnesses() []apiserver.ObservingNode {
	if p == nil || p.Watch == nil {
		return nil
	}
	// It looks every few reports; one of these may be late.
	return p.Watch.witnesses(2*apiserver.LookEvery*p.Interval + time.Minute/2)
}

// witnesses is the same, with how old a look may be.
func (w *Watch) witnesses(limit time.Duration) (all []apiserver.ObservingNode) {
	nodes, now := w.nodes.all(), w.now()
	w.seen().read(func(t *Tally) {
		for i := range nodes {
			if n := &nodes[i]; inventory.NodeReady(n) && slices.Contains(agentset.Origins(n), v1alpha1.FromHost) {
				all = append(all, t.witness(n, now, limit))
			}
		}
	})
	return all
}

// witness adds the age of an observation by the node's clock to that of the report by ours.
func (t *Tally) witness(n *corev1.Node, now time.Time, limit time.Duration) apiserver.ObservingNode {
	_, control := n.Labels[labelControlPlane]
	w := apiserver.ObservingNode{Node: n.Name, ControlPlane: control}
	host := Agent{n.Name, v1alpha1.FromHost}
	report, spoke := t.reports[n.Name], -1
	if report != nil {
		spoke = slices.IndexFunc(report.Status.Agents, func(a v1alpha1.AgentReport) bool { return a.Origin == v1alpha1.FromHost })
	}
	if spoke < 0 {
		if w.Silent = t.strange(host); w.Silent == "" {
			w.Silent = "its agent has not reported"
		}
		return w
	}
	by := report.Status.Agents[spoke]
	s := t.agents[speaker{host, by.Instance}]
	if s == nil || !s.heard.After(s.began) { // what was there when it was first looked for may be of any time
		w.Silent = "its agent has not reported in this run yet"
		return w
	}
	if quiet := now.Sub(s.heard); quiet > limit {
		w.Silent = fmt.Sprintf("its agent has not reported for %s", quiet.Round(time.Second))
		return w
	}
	for _, saw := range report.Status.APIServers {
		if age := now.Sub(s.heard) + max(0, by.ReportedAt.Sub(saw.SeenAt.Time)); age <= limit {
			w.Saw = append(w.Saw, saw)
		}
	}
	return w
}
