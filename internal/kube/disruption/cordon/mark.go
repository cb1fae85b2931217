package cordon

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// NodeMark is a label or an annotation that a Node is to have, so that others go by it.
type NodeMark struct {
	// ID and About are those of the step that writes it.
	ID, About string
	Node      string
	// Key is an annotation's if Annotation is set, else a label's. An empty value takes it away.
	Annotation bool
	Key, Value string
	// Further, if set, takes other values for good: an earlier run may have written what comes
	// later.
	Further func(have string) bool
}

func (m NodeMark) of(n *corev1.Node) map[string]string {
	if m.Annotation {
		return n.Annotations
	}
	return n.Labels
}

func (m NodeMark) write(n *corev1.Node) {
	all := m.of(n)
	if m.Value == "" {
		delete(all, m.Key)
		return
	}
	if all == nil {
		all = map[string]string{}
	}
	all[m.Key] = m.Value
	if m.Annotation {
		n.Annotations = all
	} else {
		n.Labels = all
	}
}

// Step writes it. A Node that is gone needs none.
func (m NodeMark) Step(c client.Client) engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		n, err := Read(ctx, c, m.Node)
		if err != nil || n == nil {
			return n, err
		}
		if have := m.of(n)[m.Key]; have != m.Value && (m.Further == nil || !m.Further(have)) {
			return n, engine.NotYet("node %s has %s: %q", m.Node, m.Key, have)
		}
		return n, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: m.ID, About: m.About, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, n *corev1.Node) error { return Patch(ctx, c, n, m.write) },
		Changes: func() ([]engine.Change, error) {
			var shown any = m.Value
			if m.Value == "" {
				shown = nil
			}
			field := "labels"
			if m.Annotation {
				field = "annotations"
			}
			body := map[string]any{"metadata": map[string]any{field: map[string]any{m.Key: shown}}}
			return []engine.Change{{Verb: "patch", Object: "Node " + m.Node, Body: body}}, nil
		},
	}
}
