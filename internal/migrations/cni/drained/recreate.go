package drained

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// recreation gives pods the network that is on every node by now.
type recreation struct {
	deps    switchover.Deps
	spec    switchover.Spec
	network v1alpha1.CNIName
}

// isDNS reports whether a pod answers for the cluster's DNS, by the label that kubeadm and all its
// likes give.
func isDNS(p *corev1.Pod) bool {
	return p.Labels["k8s-app"] == "kube-dns" || p.Labels["k8s-app"] == "coredns"
}

func (r recreation) delete(ctx context.Context, pods []corev1.Pod) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(manifests.Parallel)
	for i := range pods {
		p := &pods[i]
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		eg.Go(func() error {
			err := r.deps.Cluster.Delete(ctx, p, client.Preconditions{UID: &p.UID})
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			return nil
		})
	}
	return eg.Wait()
}

func (r recreation) dns() engine.Step {
	return r.owned("pods/dns", "Recreate the pods of the cluster's DNS", "every Pod of the cluster's DNS", isDNS,
		func(now *switchover.Inventory) error { return now.AwaitReady(isDNS) })
}

func (r recreation) others() engine.Step {
	return r.owned("pods/others", "Recreate all other pods", "every Pod that is not on the network of its node",
		func(p *corev1.Pod) bool { return !isDNS(p) }, func(*switchover.Inventory) error { return nil })
}

// owned recreates pods by deleting them: their owners make others. They are not evicted: a cluster
// without clients has none to spare, and a PodDisruptionBudget would count pods that cannot be
// ready.
func (r recreation) owned(
	id, about, shown string, concerns func(*corev1.Pod) bool, then func(*switchover.Inventory) error,
) engine.Step {
	stale := func(now *switchover.Inventory) []corev1.Pod {
		return slices.DeleteFunc(New(now).Stale(r.network), func(p corev1.Pod) bool { return !concerns(&p) || switchover.Bare(&p) })
	}
	return &engine.Write{
		Name: id, About: about, Limit: switchover.PodsTime, As: engine.RoleMove,
		Write: func(ctx context.Context) error {
			now, err := r.deps.Occupants(ctx, r.spec)
			if err != nil {
				return err
			}
			if now.Status.Network != r.network {
				return r.notEverywhere()
			}
			return r.delete(ctx, stale(now))
		},
		Holds: func(ctx context.Context) error {
			now, err := r.deps.Occupants(ctx, r.spec)
			if err != nil {
				return err
			}
			if left := stale(now); len(left) > 0 {
				return engine.NotYet("%s without %s still there, the first is %s/%s",
					english.Plural(len(left), "pod", ""), r.network, left[0].Namespace, left[0].Name)
			}
			return then(now)
		},
		// Which pods these are shows when they are recreated.
		Changes: func() ([]engine.Change, error) { return []engine.Change{{Verb: "delete", Object: shown}}, nil },
	}
}

func (r recreation) notEverywhere() error {
	return fmt.Errorf("status.cni.network of migration %s is not %s: it is not known to be on every node", r.spec.Name, r.network)
}

type barePod struct {
	*corev1.Pod
	status v1alpha1.CNIStatus
}

func (r recreation) bare(pod *corev1.Pod) engine.Step {
	name := pod.Namespace + "/" + pod.Name
	return &engine.Observed[barePod]{
		Name: "pods/" + name, About: "Recreate pod " + name + " as it was", Limit: 5 * time.Minute, As: engine.RoleMove,
		Look: func(ctx context.Context) (engine.State, barePod, error) {
			have, err := r.read(ctx, pod)
			switch {
			case err != nil:
				return engine.Unknown, have, err
			case have.Pod == nil || !switchover.MadeSince(have.Pod, have.status.Since):
				return engine.Pending, have, nil
			}
			return engine.Done, have, nil
		},
		Write: func(ctx context.Context, have barePod) error { return r.replace(ctx, pod, have) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "Pod " + name}, {Verb: "create", Object: "Pod " + name}}, nil
		},
	}
}

func (r recreation) read(ctx context.Context, pod *corev1.Pod) (have barePod, err error) {
	if have.status, err = r.deps.Status(ctx, r.spec.Name); err != nil {
		return have, err
	}
	p := &corev1.Pod{}
	err = r.deps.Cluster.Get(ctx, client.ObjectKeyFromObject(pod), p)
	if apierrors.IsNotFound(err) {
		return have, nil
	}
	if err != nil {
		return have, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	have.Pod = p
	return have, nil
}

// replace deletes the pod without the network, and creates it again once that is gone.
func (r recreation) replace(ctx context.Context, pod *corev1.Pod, have barePod) error {
	if have.status.Network != r.network {
		return r.notEverywhere()
	}
	if have.Pod != nil {
		if err := r.delete(ctx, []corev1.Pod{*have.Pod}); err != nil {
			return err
		}
		return engine.NotYet("pod %s/%s is ending", have.Namespace, have.Name)
	}
	fresh := recreated(pod)
	if err := r.unbind(ctx, fresh); err != nil {
		return err
	}
	err := r.deps.Cluster.Create(ctx, fresh, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// unbind leaves the node of a pod to the scheduler if there is none of that name any more: a pod
// that is bound to a node that is gone is deleted as left over.
func (r recreation) unbind(ctx context.Context, pod *corev1.Pod) error {
	nodes, err := cluster.List[corev1.Node](ctx, r.deps.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName }) {
		pod.Spec.NodeName = ""
	}
	return nil
}

// recreated is a pod without what belongs to its past life. It stays on its node, where its volumes
// may be; the API server adds what it had added for its ServiceAccount.
func recreated(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Annotations: map[string]string{}, Finalizers: p.Finalizers,
		},
		Spec: *p.Spec.DeepCopy(),
	}
	for k, v := range p.Annotations {
		if !strings.HasPrefix(k, "cni.projectcalico.org/") { // its former address, among others
			out.Annotations[k] = v
		}
	}
	token := func(name string) bool { return strings.HasPrefix(name, "kube-api-access-") }
	out.Spec.Volumes = slices.DeleteFunc(out.Spec.Volumes, func(v corev1.Volume) bool { return token(v.Name) })
	for _, containers := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return token(m.Name) })
		}
	}
	return out
}
