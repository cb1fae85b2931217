package lossguard

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// watchedNodes are the nodes there are, and since when each of their agents is due to report.
type watchedNodes struct {
	mu    sync.Mutex
	nodes []corev1.Node
	since map[Agent]time.Time
	// expecting is true from when agents have to be there.
	expecting bool
}

func (w *watchedNodes) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.expecting = nil, false
}

func (w *watchedNodes) set(nodes []corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = nodes
}

// all are the nodes of the latest look, which are never changed.
func (w *watchedNodes) all() []corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes
}

func (w *watchedNodes) expect(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expecting = is
}

func (w *watchedNodes) expected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.expecting
}

// pardon begins to count silence again.
func (w *watchedNodes) pardon(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for agent := range w.since {
		w.since[agent] = now
	}
}

// silent is the first agent of a ready node that has been silent for longer than patience.
func (w *watchedNodes) silent(t *Tally, now time.Time, patience time.Duration) (a Agent, quiet time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.since
	w.since = map[Agent]time.Time{} // an agent that is not expected has all its time once it is
	for i := range w.nodes {
		n := &w.nodes[i]
		if !inventory.NodeReady(n) || !w.expecting {
			continue
		}
		for _, o := range agentset.Origins(n) {
			a := Agent{n.Name, o}
			since, known := was[a]
			if !known {
				since = now
			}
			w.since[a] = since
			if quiet := t.Silence(a, since, now); quiet > patience {
				return a, quiet
			}
		}
	}
	return a, 0
}

// due are the agents whose losses count: of ready nodes that are not drained.
func (w *watchedNodes) due() []Agent {
	var all []Agent
	for _, n := range w.all() {
		if !inventory.NodeReady(&n) || agentset.Apart(&n) {
			continue
		}
		for _, o := range agentset.Origins(&n) {
			all = append(all, Agent{n.Name, o})
		}
	}
	slices.SortFunc(all, func(a, b Agent) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(string(a.Origin), string(b.Origin)))
	})
	return all
}

func (w *watchedNodes) ready() []string {
	var names []string
	for _, a := range w.due() {
		if !slices.Contains(names, a.Node) {
			names = append(names, a.Node)
		}
	}
	return names
}

// staying are the networks that a node is to have agents in; there says whether it is there.
func (w *watchedNodes) staying(node string) (origins []v1alpha1.ProbeOrigin, there bool) {
	for _, n := range w.all() {
		if n.Name == node {
			return agentset.Origins(&n), true
		}
	}
	return nil, false
}

// status is what there is to write down of them; nil as long as there are no agents.
func (w *watchedNodes) status(t *Tally) *v1alpha1.ProofStatus {
	if !w.expected() && len(t.agents) == 0 {
		return nil
	}
	st := &v1alpha1.ProofStatus{
		Sent: t.Sent, Failed: t.Failed, Late: t.Late, NotMeasured: t.NotMeasured, Losses: slices.Clone(t.Losses),
	}
	for _, n := range w.all() {
		switch {
		case agentset.Apart(&n):
			st.Silent = append(st.Silent, n.Name+": its pods are leaving it, and what is lost there does not count")
		case len(agentset.Origins(&n)) == 0:
			st.Silent = append(st.Silent, n.Name+": no agent can run there")
		case !inventory.NodeReady(&n):
			st.Silent = append(st.Silent, n.Name+": the node is not ready")
		case len(t.strangersOf(n.Name)) > 0:
			st.Silent = append(st.Silent, n.Name+": "+t.strange(t.strangersOf(n.Name)[0]))
		case t.reports[n.Name] == nil:
			st.Silent = append(st.Silent, n.Name+": no report")
		case t.unmeasured(n.Name) != "":
			st.Silent = append(st.Silent, n.Name+": "+t.unmeasured(n.Name))
		default:
			st.Nodes++
		}
	}
	st.Silent = append(st.Silent, t.leavers()...)
	st.Silent = st.Silent[:min(len(st.Silent), 64)]
	return st
}
