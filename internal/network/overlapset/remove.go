package overlapset

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
)

// remove deletes the Deployment, and then what its replicas needed and kept.
func (s *Set) remove() engine.Step {
	step := workload.Removal(s.Cluster, "tidy/overlap", "Remove the overlap", s.left)
	step.Changes = func() ([]engine.Change, error) {
		kinds, err := s.kinds()
		leases := "Lease " + v1alpha1.SystemNamespace + "/" + Name + "… (of its replicas)"
		return append(workload.Deleted(kinds), engine.Change{Verb: "delete", Object: leases}), err
	}
	return step
}

// running are the pods on nodes that are ready. The kubelet of another node cannot say that a pod
// has ended; the pod can do nothing without its account.
func (s *Set) running(ctx context.Context) ([]client.Object, error) {
	pods, err := s.pods(ctx)
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	ready, err := workload.ReadyNodes(ctx, s.Cluster)
	var all []client.Object
	for i := range pods {
		if ready[pods[i].Spec.NodeName] {
			pods[i].SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
			all = append(all, &pods[i])
		}
	}
	return all, err
}

// left are the objects of this migration that still exist, in the order in which they go: pods
// after the Deployment, and leases at the end.
func (s *Set) left(ctx context.Context) ([]client.Object, error) {
	kinds, err := s.kinds()
	if err != nil {
		return nil, err
	}
	var all []client.Object
	for i := range kinds {
		if i == 1 {
			pods, err := s.running(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, pods...)
		}
		have, err := workload.Left(ctx, s.Cluster, kinds[i:i+1])
		if err != nil {
			return nil, err
		}
		if len(have) > 0 && have[0].GetLabels()[v1alpha1.LabelMigration] == s.Migration {
			all = append(all, have...)
		}
	}
	leases, err := s.leases(ctx)
	for i := range leases {
		leases[i].SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
		all = append(all, &leases[i])
	}
	return all, err
}
