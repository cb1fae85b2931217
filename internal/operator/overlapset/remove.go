package overlapset

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration/incluster"
)

// removeStep takes the Deployment away, and then what its replicas needed and kept.
type removeStep struct{ set *Set }

var _ engine.Previewer = (*removeStep)(nil)

func (*removeStep) ID() string { return "tidy/overlap" }

func (*removeStep) Title() string { return "Remove the overlap" }

func (s *removeStep) State(ctx context.Context) (engine.State, error) {
	left, err := s.left(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case len(left) == 0:
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *removeStep) Do(ctx context.Context) error {
	left, err := s.left(ctx)
	if err != nil {
		return err
	}
	for _, o := range left {
		if pod, is := o.(*corev1.Pod); is {
			return engine.NotYet("pod %s on node %s is still there", pod.Name, pod.Spec.NodeName)
		}
		uid := o.GetUID()
		err := s.set.Cluster.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing %s: %w", incluster.NameOf(o), err)
		}
	}
	return nil
}

// running are the pods that have not ended. The kubelet of a node that is not ready cannot say that one has: what runs there can do nothing
// without its account.
func (s *removeStep) running(ctx context.Context) ([]client.Object, error) {
	pods, err := s.set.pods(ctx)
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	ready, err := incluster.ReadyNodes(ctx, s.set.Cluster)
	if err != nil {
		return nil, err
	}
	var all []client.Object
	for i := range pods {
		if ready[pods[i].Spec.NodeName] {
			pods[i].SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
			all = append(all, &pods[i])
		}
	}
	return all, nil
}

// left is what is still there of this migration, in the order in which it goes.
func (s *removeStep) left(ctx context.Context) ([]client.Object, error) {
	kinds, err := s.set.kinds()
	if err != nil {
		return nil, err
	}
	var all []client.Object
	for i, o := range kinds {
		if i == 1 { // after the Deployment
			pods, err := s.running(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, pods...)
		}
		have := &unstructured.Unstructured{}
		have.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		err := s.set.Cluster.Get(ctx, client.ObjectKeyFromObject(o), have)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("%s: %w", incluster.NameOf(o), err)
		}
		if err == nil && have.GetLabels()[v1alpha1.LabelMigration] == s.set.Migration {
			all = append(all, have)
		}
	}
	leases, err := s.set.leases(ctx)
	if err != nil {
		return nil, err
	}
	for i := range leases {
		leases[i].SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
		all = append(all, &leases[i])
	}
	return all, nil
}

func (s *removeStep) Verify(ctx context.Context) error {
	left, err := s.left(ctx)
	if err == nil && len(left) > 0 {
		return engine.NotYet("%s is still there", incluster.NameOf(left[0]))
	}
	return err
}

func (s *removeStep) Preview() ([]engine.Change, error) {
	kinds, err := s.set.kinds()
	if err != nil {
		return nil, err
	}
	var changes []engine.Change
	for _, o := range kinds {
		changes = append(changes, engine.Change{Verb: "delete", Object: incluster.NameOf(o)})
	}
	return append(
		changes,
		engine.Change{Verb: "delete", Object: "Lease " + v1alpha1.SystemNamespace + "/" + Name + "… (of its replicas)"},
	), nil
}
