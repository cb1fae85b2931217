// Package cordon keeps pods away from a node while a migration works on it, and restores it
// afterwards.
package cordon

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Node is one that pods are kept away from.
type Node struct {
	Client    client.Client
	Migration string
	Name      string
	// Watched says that agents are on nodes: the one that others call leaves with the pods.
	Watched bool
}

// Taint keeps pods of DaemonSets away from a node, which pass over spec.unschedulable.
func Taint(migration string) corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintMoving, Value: migration, Effect: corev1.TaintEffectNoSchedule}
}

// Closed reports whether replumb keeps pods away from a node.
func Closed(n *corev1.Node) bool {
	return n.Annotations[v1alpha1.AnnotationCordoned] != "" || slices.ContainsFunc(n.Spec.Taints, moving)
}

func moving(t corev1.Taint) bool {
	return t.Key == v1alpha1.TaintMoving && t.Effect == corev1.TaintEffectNoSchedule
}

// Clear takes off a Node what Close has put there. A Node that others had cordoned stays so.
func Clear(n *corev1.Node) {
	if n.Annotations[v1alpha1.AnnotationCordoned] != "" {
		delete(n.Annotations, v1alpha1.AnnotationCordoned)
		n.Spec.Unschedulable = false
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, moving)
	delete(n.Labels, v1alpha1.LabelAgents)
	delete(n.Labels, v1alpha1.LabelAgentsBefore)
}

// Read is a Node as it is now; nil, if it is gone.
func Read(ctx context.Context, c client.Reader, name string) (*corev1.Node, error) {
	found := &corev1.Node{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, found)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	return found, nil
}

// Patch changes a Node that was read. It carries the version, since taints are a list.
func Patch(ctx context.Context, c client.Writer, n *corev1.Node, change func(*corev1.Node)) error {
	was := n.DeepCopy()
	change(n)
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, n, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

// Close makes the step that keeps new pods away: spec.unschedulable for most, a taint for those of
// DaemonSets, a label for agents, which tolerate everything. A Node that is gone is done with.
func (n Node) Close() engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		found, err := Read(ctx, n.Client, n.Name)
		if err != nil || found == nil {
			return nil, err
		}
		if !found.Spec.Unschedulable || !slices.ContainsFunc(found.Spec.Taints, moving) ||
			n.Watched && found.Labels[v1alpha1.LabelAgents] == "" {
			return found, engine.NotYet("node %s takes new pods", n.Name)
		}
		return found, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: "cordon/" + n.Name, About: "Keep new pods away from node " + n.Name,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Node) error { return Patch(ctx, n.Client, found, n.mark) },
		Changes: func() ([]engine.Change, error) {
			body := map[string]any{"spec": map[string]any{"unschedulable": true, "taints": []corev1.Taint{Taint(n.Migration)}}}
			if n.Watched {
				body["metadata"] = map[string]any{"labels": map[string]string{v1alpha1.LabelAgents: v1alpha1.HostAgent}}
			}
			return []engine.Change{{Verb: "patch", Object: "Node " + n.Name, Body: body}}, nil
		},
	}
}

func (n Node) mark(found *corev1.Node) {
	if !found.Spec.Unschedulable {
		metav1.SetMetaDataAnnotation(&found.ObjectMeta, v1alpha1.AnnotationCordoned, n.Migration)
		found.Spec.Unschedulable = true
	}
	if !slices.ContainsFunc(found.Spec.Taints, moving) {
		found.Spec.Taints = append(found.Spec.Taints, Taint(n.Migration))
	}
	if n.Watched && found.Labels[v1alpha1.LabelAgents] == "" {
		metav1.SetMetaDataLabel(&found.ObjectMeta, v1alpha1.LabelAgents, v1alpha1.HostAgent)
	}
}

// Open makes the step that lets pods onto a node again, unless others had cordoned it before.
func (n Node) Open() engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		found, err := Read(ctx, n.Client, n.Name)
		if err != nil || found == nil {
			return nil, err
		}
		if Closed(found) {
			return found, engine.NotYet("node %s takes no pods", n.Name)
		}
		return found, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: "uncordon/" + n.Name, About: "Let pods onto node " + n.Name + " again",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Node) error { return Patch(ctx, n.Client, found, Clear) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "patch", Object: "Node " + n.Name, Body: map[string]any{"spec": map[string]any{
				"unschedulable": "as before", "taints": "without " + v1alpha1.TaintMoving,
			}}}}, nil
		},
	}
}
