package cni

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
)

// nodeMark is a label or an annotation that a Node is to have, so that others go by it.
type nodeMark struct {
	// id and about are those of the step that writes it.
	id, about string
	node      string
	// key is an annotation's if annotation is set, else a label's. An empty value takes it away.
	annotation bool
	key, value string
	// further, if set, takes other values for good: an earlier run may have written what comes later.
	further func(have string) bool
}

// of are the labels or the annotations of a Node.
func (m nodeMark) of(n *corev1.Node) map[string]string {
	if m.annotation {
		return n.Annotations
	}
	return n.Labels
}

// write gives a Node the mark, or takes it away.
func (m nodeMark) write(n *corev1.Node) {
	all := m.of(n)
	if m.value == "" {
		delete(all, m.key)
		return
	}
	if all == nil {
		all = map[string]string{}
	}
	all[m.key] = m.value
	if m.annotation {
		n.Annotations = all
	} else {
		n.Labels = all
	}
}

// step writes it. A Node that is gone needs none.
func (m nodeMark) step(c client.Client) engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		n, err := cordon.Read(ctx, c, m.node)
		if err != nil || n == nil {
			return n, err
		}
		if have := m.of(n)[m.key]; have != m.value && (m.further == nil || !m.further(have)) {
			return n, engine.NotYet("node %s has %s: %q", m.node, m.key, have)
		}
		return n, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: m.id, About: m.about, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, n *corev1.Node) error { return cordon.Patch(ctx, c, n, m.write) },
		Changes: func() ([]engine.Change, error) {
			var shown any = m.value
			if m.value == "" {
				shown = nil
			}
			field := "labels"
			if m.annotation {
				field = "annotations"
			}
			body := map[string]any{"metadata": map[string]any{field: map[string]any{m.key: shown}}}
			return []engine.Change{{Verb: "patch", Object: "Node " + m.node, Body: body}}, nil
		},
	}
}
