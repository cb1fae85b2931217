package lossguard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// look sees to it that every ready node is heard of, and writes down what there is.
func (w *Watch) look(ctx context.Context, cancel context.CancelCauseFunc) {
	_ = wait.PollUntilContextCancel(ctx, lookEvery, true, func(ctx context.Context) (bool, error) {
		if w.list(ctx) != nil {
			w.pardon()
			return false, nil //nolint:nilerr // an API server that is away keeps agents from reporting, too
		}
		if a, quiet := w.silent(); quiet > 0 && !w.Lenient {
			cancel(&agentset.SilentError{Missing: []agentset.Silent{w.why(ctx, a)}, For: quiet})
		}
		w.mu.Lock()
		due := w.now().Sub(w.wrote) >= writeEvery
		w.mu.Unlock()
		if due {
			w.write(ctx)
		}
		return false, nil
	})
}

// list looks which nodes there are, and which of them are set apart.
func (w *Watch) list(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := w.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes, w.listed = nodes.Items, true
	for i := range w.nodes {
		w.tally.Excuse(w.nodes[i].Name, agentset.Apart(&w.nodes[i]))
	}
	return nil
}

// pardon begins to count silence anew.
func (w *Watch) pardon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for agent := range w.since {
		w.since[agent] = w.now()
	}
}

// silent is the first agent of a ready node that has not reported for too long, and for how long; no time, if there is none.
func (w *Watch) silent() (a Agent, quiet time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, was := w.now(), w.since
	w.since = map[Agent]time.Time{} // an agent that is not expected has all its time once it is
	for i := range w.nodes {
		n := &w.nodes[i]
		if !cluster.NodeReady(n) || !w.expecting {
			continue
		}
		for _, o := range agentset.Origins(n) {
			a := Agent{n.Name, o}
			since, known := was[a]
			if !known {
				since = now
			}
			w.since[a] = since
			if quiet := w.tally.Silence(a, since, now); quiet > w.Patience {
				return a, quiet
			}
		}
	}
	return a, 0
}

// Ask says who finds out why an agent is silent.
func (w *Watch) Ask(why func(ctx context.Context, node string, origin v1alpha1.ProbeOrigin) agentset.Silent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reason = why
}

func (w *Watch) why(ctx context.Context, a Agent) agentset.Silent {
	w.mu.Lock()
	reason := w.reason
	w.mu.Unlock()
	if reason == nil {
		return agentset.Silent{Node: a.Node, Origin: a.Origin, Reason: "nobody knows why"}
	}
	return reason(ctx, a.Node, a.Origin)
}

// write brings status.proof up to date. It is a courtesy: a write that fails is made up for by the next.
func (w *Watch) write(ctx context.Context) {
	if w.Status == nil {
		return
	}
	w.mu.Lock()
	proof := w.state()
	w.wrote = w.now()
	w.mu.Unlock()
	if proof == nil {
		return
	}
	_ = w.Status(ctx, func(st *v1alpha1.MigrationStatus) { st.Proof = proof })
}

// state is what there is to write down; nil as long as there are no agents. The caller holds the lock.
func (w *Watch) state() *v1alpha1.ProofStatus {
	if !w.expecting && len(w.tally.agents) == 0 {
		return nil
	}
	st := &v1alpha1.ProofStatus{Sent: w.tally.Sent, Failed: w.tally.Failed, Losses: slices.Clone(w.tally.Losses)}
	for i := range w.nodes {
		n := &w.nodes[i]
		switch {
		case agentset.Apart(n):
			st.Silent = append(st.Silent, n.Name+": its pods are leaving it, and what is lost there does not count")
		case len(agentset.Origins(n)) == 0:
			st.Silent = append(st.Silent, n.Name+": no agent can run there")
		case !cluster.NodeReady(n):
			st.Silent = append(st.Silent, n.Name+": the node is not ready")
		case w.tally.reports[n.Name] == nil:
			st.Silent = append(st.Silent, n.Name+": no report")
		default:
			st.Nodes++
		}
	}
	st.Silent = st.Silent[:min(len(st.Silent), 64)]
	return st
}

// due are the agents whose losses are to count: those of nodes that are ready, and that no pods leave.
func (w *Watch) due() []Agent {
	var all []Agent
	for i := range w.nodes {
		n := &w.nodes[i]
		if !cluster.NodeReady(n) || agentset.Apart(n) {
			continue
		}
		for _, o := range agentset.Origins(n) {
			all = append(all, Agent{n.Name, o})
		}
	}
	slices.SortFunc(all, func(a, b Agent) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(string(a.Origin), string(b.Origin)))
	})
	return all
}

// ready names the nodes that have those.
func (w *Watch) ready() []string {
	var names []string
	for _, a := range w.due() {
		if !slices.Contains(names, a.Node) {
			names = append(names, a.Node)
		}
	}
	return names
}

// staying are the networks that a node is to have agents in; there says whether it is there.
func (w *Watch) staying(node string) (origins []v1alpha1.ProbeOrigin, there bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.nodes {
		if w.nodes[i].Name == node {
			return agentset.Origins(&w.nodes[i]), true
		}
	}
	return nil, false
}
