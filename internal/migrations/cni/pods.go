package cni

import (
	"context"
	"fmt"
	"net/netip"
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
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// podsTime is how long all pods may take to end and come again.
const podsTime = 30 * time.Minute

// occupancy is which pods have a network, and which do not have it yet.
type occupancy struct {
	tools   Tools
	spec    Spec
	network v1alpha1.CNIName
}

// look reads pods and what the Migration remembers, as they are now.
func (a occupancy) look(ctx context.Context) (*Survey, error) {
	now := &Survey{Spec: a.spec}
	var err error
	if now.Status, err = a.tools.remembers(ctx, a.spec.Name); err != nil {
		return nil, err
	}
	return now, a.tools.occupants(ctx, now)
}

// dns reports whether a pod answers for the cluster's DNS, by the label that kubeadm and all its likes give.
func dns(p *corev1.Pod) bool {
	return p.Labels["k8s-app"] == "kube-dns" || p.Labels["k8s-app"] == "coredns"
}

// delete pods, with the time that they take to end.
func (a occupancy) delete(ctx context.Context, pods []corev1.Pod) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	for i := range pods {
		p := &pods[i]
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		eg.Go(func() error {
			err := a.tools.Cluster.Delete(ctx, p, client.Preconditions{UID: &p.UID})
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			return nil
		})
	}
	return eg.Wait()
}

// recreate recreates pods by deleting them: their owners make others. They are not evicted: a cluster without clients has none to
// spare, and a PodDisruptionBudget would count pods that cannot be ready. dns means only the pods of the cluster's DNS, else all
// others are meant.
func (a occupancy) recreate(forDNS bool) engine.Step {
	step := &engine.Write{Name: "pods/others", About: "Recreate all other pods", Limit: podsTime, As: engine.RoleMove}
	object := "every Pod that is not on the network of its node"
	if forDNS {
		step.Name, step.About, object = "pods/dns", "Recreate the pods of the cluster's DNS", "every Pod of the cluster's DNS"
	}
	stale := func(now *Survey) []corev1.Pod {
		return slices.DeleteFunc(now.stale(a.network), func(p corev1.Pod) bool { return dns(&p) != forDNS || bare(&p) })
	}
	step.Write = func(ctx context.Context) error {
		now, err := a.look(ctx)
		if err != nil {
			return err
		}
		if now.Status.Network != a.network {
			return a.notEverywhere()
		}
		return a.delete(ctx, stale(now))
	}
	step.Holds = func(ctx context.Context) error {
		now, err := a.look(ctx)
		if err != nil {
			return err
		}
		if left := stale(now); len(left) > 0 {
			return engine.NotYet("%s without %s still there, the first is %s/%s",
				english.Plural(len(left), "pod", ""), a.network, left[0].Namespace, left[0].Name)
		}
		if forDNS {
			return now.waits(dns)
		}
		return nil
	}
	// Which pods these are shows when they are recreated.
	step.Changes = func() ([]engine.Change, error) { return []engine.Change{{Verb: "delete", Object: object}}, nil }
	return step
}

func (a occupancy) notEverywhere() error {
	return fmt.Errorf("status.cni.network of migration %s is not %s: it is not known to be on every node", a.spec.Name, a.network)
}

// waits says which pod is not ready yet; nil, if all are that were when the migration began.
func (s *Survey) waits(of func(*corev1.Pod) bool) error {
	for i := range s.Pods {
		p := &s.Pods[i]
		if !concerned(p) || !of(p) || slices.Contains(s.Status.Unready, workloadOf(p)) || connectivity.Ready(p) {
			continue
		}
		return engine.NotYet("pod %s/%s is not ready: %s", p.Namespace, p.Name, connectivity.Why(p))
	}
	return nil
}

// barePod is what is seen of a pod without an owner; its Pod is nil while there is none.
type barePod struct {
	*corev1.Pod
	status v1alpha1.CNIStatus
}

// recreateBare recreates a pod without an owner as it was.
func (a occupancy) recreateBare(pod *corev1.Pod) engine.Step {
	name := pod.Namespace + "/" + pod.Name
	return &engine.Observed[barePod]{
		Name: "pods/" + name, About: "Recreate pod " + name + " as it was", Limit: 5 * time.Minute, As: engine.RoleMove,
		Look: func(ctx context.Context) (engine.State, barePod, error) {
			have, err := a.barePod(ctx, pod)
			switch {
			case err != nil:
				return engine.Unknown, have, err
			case have.Pod == nil || !after(have.Pod, have.status.Since):
				return engine.Pending, have, nil
			}
			return engine.Done, have, nil
		},
		Write: func(ctx context.Context, have barePod) error { return a.replaceBare(ctx, pod, have) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "Pod " + name}, {Verb: "create", Object: "Pod " + name}}, nil
		},
	}
}

func (a occupancy) barePod(ctx context.Context, pod *corev1.Pod) (have barePod, err error) {
	if have.status, err = a.tools.remembers(ctx, a.spec.Name); err != nil {
		return have, err
	}
	p := &corev1.Pod{}
	err = a.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(pod), p)
	if apierrors.IsNotFound(err) {
		return have, nil
	}
	if err != nil {
		return have, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	have.Pod = p
	return have, nil
}

// replaceBare deletes the pod without the network, and creates it again once that is gone.
func (a occupancy) replaceBare(ctx context.Context, pod *corev1.Pod, have barePod) error {
	if have.status.Network != a.network {
		return a.notEverywhere()
	}
	if have.Pod != nil {
		if err := a.delete(ctx, []corev1.Pod{*have.Pod}); err != nil {
			return err
		}
		return engine.NotYet("pod %s/%s is ending", have.Namespace, have.Name)
	}
	fresh := again(pod)
	if err := a.place(ctx, fresh); err != nil {
		return err
	}
	err := a.tools.Cluster.Create(ctx, fresh, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// place leaves the node of a pod to the scheduler if there is none of that name any more: nodes may have been replaced, and what is bound to
// one that is gone is taken for left over, and deleted.
func (a occupancy) place(ctx context.Context, pod *corev1.Pod) error {
	nodes, err := cluster.List[corev1.Node](ctx, a.tools.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName }) {
		pod.Spec.NodeName = ""
	}
	return nil
}

// again is a pod without what belongs to its past life. It stays on its node, where its volumes may be; what the API server has added to
// it for its ServiceAccount is added again.
func again(p *corev1.Pod) *corev1.Pod {
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
			containers[i].VolumeMounts = slices.DeleteFunc(
				containers[i].VolumeMounts,
				func(m corev1.VolumeMount) bool { return token(m.Name) },
			)
		}
	}
	return out
}

// awaitPods waits until every pod is ready that was, with an address of the network.
func awaitPods(of occupancy, ranges []netip.Prefix) engine.Step {
	return &engine.Wait{
		Name: "settled", About: "Wait until every pod is ready that was", Limit: podsTime,
		For: func(ctx context.Context) error {
			now, err := of.look(ctx)
			if err != nil {
				return err
			}
			for i := range now.Nodes {
				if !cluster.NodeReady(&now.Nodes[i]) {
					return engine.NotYet("node %s is not ready", now.Nodes[i].Name)
				}
			}
			if p := outOf(now.Pods, ranges); p != nil {
				return engine.NotYet("pod %s/%s has the address %s, which is not in %v", p.Namespace, p.Name, p.Status.PodIP, ranges)
			}
			return now.waits(func(*corev1.Pod) bool { return true })
		},
	}
}
