package lossguard

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// leaveWithin is how long a cordoned node may take to leave the cluster after its first loss: for
// so long that loss waits, since a machine that is shut down loses what its own agents ask.
const leaveWithin = 2 * time.Minute

// heldLosses are those of a node that may be leaving the cluster.
type heldLosses struct {
	since  time.Time
	failed int64
	losses []v1alpha1.Loss
}

// cordonedByOthers reports whether a node may be leaving the cluster. A node that replumb has
// cordoned comes back, or its agents leave it first: a loss there stops the run at once.
func cordonedByOthers(n *corev1.Node) bool {
	moving := func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintMoving }
	return n.Spec.Unschedulable && n.Annotations[v1alpha1.AnnotationCordoned] == "" && !slices.ContainsFunc(n.Spec.Taints, moving)
}

// Cordon says which nodes there are, and which of them others have cordoned. Losses on cordoned
// nodes are held until Settle.
func (t *Tally) Cordon(nodes map[string]bool) { t.cordoned = nodes }

// hold takes back what was counted for a cordoned node since failed requests were as many as given.
func (t *Tally) hold(node string, losses []v1alpha1.Loss, failed int64, at time.Time) {
	h := t.held[node]
	if h == nil {
		h = &heldLosses{since: at}
		t.held[node] = h
	}
	h.failed += t.Failed - failed
	h.losses = append(h.losses, losses...)
	h.losses = h.losses[max(0, len(h.losses)-maxLosses):]
	t.Failed = failed
}

// Settle counts and returns the losses of nodes that stay: they are no longer cordoned, or still
// there after leaveWithin. Those of nodes that have left the cluster are not counted.
func (t *Tally) Settle(now time.Time) (counted []v1alpha1.Loss) {
	for node, h := range t.held {
		cordoned, there := t.cordoned[node]
		switch {
		case !there:
			t.left[node] += h.failed
		case cordoned && now.Sub(h.since) < leaveWithin:
			continue
		default:
			t.Failed += h.failed
			counted = append(counted, h.losses...)
		}
		delete(t.held, node)
	}
	slices.SortFunc(counted, func(a, b v1alpha1.Loss) int { return a.Start.Compare(b.Start.Time) })
	for _, l := range counted {
		t.remember(l)
	}
	return counted
}

// leavers says of each node that has left, or may be leaving, what it lost.
func (t *Tally) leavers() []string {
	var all []string
	for node, failed := range t.left {
		all = append(all, fmt.Sprintf("%s: it was cordoned and has left the cluster, and %d requests that it lost meanwhile do not count", node, failed))
	}
	for node, h := range t.held {
		all = append(all, fmt.Sprintf("%s: it is cordoned and lost %d requests, which count unless it leaves the cluster", node, h.failed))
	}
	slices.Sort(all)
	return all
}
