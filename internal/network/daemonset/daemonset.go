// Package daemonset keeps pods of DaemonSets off nodes for a while, and follows them from node to
// node.
package daemonset

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// RolloutTime is how long images may take to come to every node.
const RolloutTime = 15 * time.Minute

// podTime is how long one pod may take to start or end.
const podTime = 5 * time.Minute

// Name is a DaemonSet as kind and namespace/name.
func Name(ds *appsv1.DaemonSet) string { return "DaemonSet " + ds.Namespace + "/" + ds.Name }

// Find is the DaemonSet of that name; nil, if there is none.
func Find(ctx context.Context, c client.Reader, key client.ObjectKey) (*appsv1.DaemonSet, error) {
	ds := &appsv1.DaemonSet{}
	err := c.Get(ctx, key, ds)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("daemonset %s: %w", key, err)
	}
	return ds, nil
}

// KeepOff is a step that gives pods another affinity, and records on the DaemonSet which one they
// had before.
func KeepOff(c client.Client, set *appsv1.DaemonSet, id, about string, to func(was *corev1.Affinity) *corev1.Affinity) engine.Step {
	return affinityStep(c, set, id, about, func(ds *appsv1.DaemonSet) (func(), error) {
		if ds.Annotations[v1alpha1.AnnotationAffinity] != "" {
			return nil, nil
		}
		was, err := podnetwork.Remembered(ds.Spec.Template.Spec.Affinity)
		return func() {
			metav1.SetMetaDataAnnotation(&ds.ObjectMeta, v1alpha1.AnnotationAffinity, was)
			ds.Spec.Template.Spec.Affinity = to(ds.Spec.Template.Spec.Affinity)
		}, err
	})
}

// LetOn is a step that gives pods the affinity back that KeepOff has recorded.
func LetOn(c client.Client, set *appsv1.DaemonSet, id, about string) engine.Step {
	return affinityStep(c, set, id, about, func(ds *appsv1.DaemonSet) (func(), error) {
		text := ds.Annotations[v1alpha1.AnnotationAffinity]
		if text == "" {
			return nil, nil
		}
		was, err := podnetwork.Recall(text)
		return func() {
			delete(ds.Annotations, v1alpha1.AnnotationAffinity)
			ds.Spec.Template.Spec.Affinity = was
		}, err
	})
}

// affinityStep changes a DaemonSet by what change returns; nothing is to do where that is nil.
func affinityStep(c client.Client, set *appsv1.DaemonSet, id, about string, change func(*appsv1.DaemonSet) (func(), error)) engine.Step {
	key := client.ObjectKeyFromObject(set)
	read := func(ctx context.Context) (*appsv1.DaemonSet, error) {
		ds, err := Find(ctx, c, key)
		if err != nil || ds == nil {
			return ds, err
		}
		write, err := change(ds)
		if err == nil && write != nil {
			err = engine.NotYet("%s is not changed", Name(ds))
		}
		return ds, err
	}
	return &engine.Observed[*appsv1.DaemonSet]{
		Name: id + "/" + key.Namespace + "/" + key.Name, About: about, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, ds *appsv1.DaemonSet) error {
			write, err := change(ds)
			if err != nil || write == nil {
				return err
			}
			return patch(ctx, c, ds, write)
		},
		Changes: func() ([]engine.Change, error) {
			ds := set.DeepCopy()
			write, err := change(ds)
			if err != nil {
				return nil, err
			}
			if write != nil {
				write()
			}
			body := map[string]any{
				"metadata": map[string]any{
					"annotations": map[string]any{v1alpha1.AnnotationAffinity: ds.Annotations[v1alpha1.AnnotationAffinity]},
				},
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"affinity": ds.Spec.Template.Spec.Affinity}}},
			}
			return []engine.Change{{Verb: "patch", Object: Name(set), Body: body}}, nil
		},
	}
}

func patch(ctx context.Context, c client.Client, ds *appsv1.DaemonSet, change func()) error {
	was := ds.DeepCopy()
	change()
	p := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, ds, p, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("%s: %w", Name(ds), err)
	}
	return nil
}

// Updating reports whether a DaemonSet replaces pods by itself, and has not replaced all.
func Updating(ds *appsv1.DaemonSet) bool {
	return ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType &&
		ds.Status.UpdatedNumberScheduled < ds.Status.DesiredNumberScheduled
}

// Settled waits until the pods of a DaemonSet, which are replaced where its template changes, are
// ready wherever they are to be. what names them for people.
func Settled(c client.Reader, set *appsv1.DaemonSet, id, what string) engine.Step {
	key := client.ObjectKeyFromObject(set)
	return &engine.Wait{
		Name: id + "/" + key.Namespace + "/" + key.Name, About: "Wait until " + what + " is ready: " + Name(set), Limit: RolloutTime,
		Again: true,
		For: func(ctx context.Context) error {
			ds, err := Find(ctx, c, key)
			if err != nil || ds == nil {
				return err
			}
			switch st := &ds.Status; {
			case st.ObservedGeneration < ds.Generation:
				return engine.NotYet("%s has not been looked at yet", Name(ds))
			case st.NumberReady < st.DesiredNumberScheduled || Updating(ds):
				return engine.NotYet("%s is ready on %d of %d nodes", Name(ds), st.NumberReady, st.DesiredNumberScheduled)
			}
			return nil
		},
	}
}

// PodsOn are the pods of DaemonSets on a node, those that are ending too.
func PodsOn(ctx context.Context, c client.Reader, node string, sets ...appsv1.DaemonSet) ([]corev1.Pod, error) {
	all, err := Pods(ctx, c, sets...)
	return slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.Spec.NodeName != node }), err
}

// Pods are those of DaemonSets, those that are ending too.
func Pods(ctx context.Context, c client.Reader, sets ...appsv1.DaemonSet) ([]corev1.Pod, error) {
	var out []corev1.Pod
	for i := range sets {
		selector, err := metav1.LabelSelectorAsSelector(sets[i].Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Name(&sets[i]), err)
		}
		pods := &corev1.PodList{}
		err = c.List(ctx, pods, client.InNamespace(sets[i].Namespace), client.MatchingLabelsSelector{Selector: selector})
		if err != nil {
			return nil, fmt.Errorf("pods of %s: %w", Name(&sets[i]), err)
		}
		out = append(out, pods.Items...)
	}
	return out, nil
}

// Gone waits until no pod of these is on a node. what names them for people.
func Gone(c client.Reader, id, what, node string, sets ...appsv1.DaemonSet) engine.Step {
	return &engine.Wait{
		Name: id + "/" + node, About: "Wait until " + what + " has left node " + node, Limit: podTime,
		For: func(ctx context.Context) error {
			pods, err := PodsOn(ctx, c, node, sets...)
			if err == nil && len(pods) > 0 {
				return engine.NotYet("pod %s/%s is on node %s", pods[0].Namespace, pods[0].Name, node)
			}
			return err
		},
	}
}

// There waits until a pod of these is ready on a node.
func There(c client.Reader, id, what, node string, sets ...appsv1.DaemonSet) engine.Step {
	return &engine.Wait{
		Name: id + "/" + node, About: "Wait until " + what + " is ready on node " + node, Limit: podTime,
		For: func(ctx context.Context) error {
			pods, err := PodsOn(ctx, c, node, sets...)
			if err == nil &&
				!slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp.IsZero() && ready(&p) }) {
				return engine.NotYet("node %s has no pod of %s that is ready", node, what)
			}
			return err
		},
	}
}

func ready(p *corev1.Pod) bool {
	is, _ := readiness.Pod(p)
	return is
}
