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

// anew makes pods anew that do not have a network.
type anew struct {
	tools   Tools
	spec    Spec
	network v1alpha1.CNIName
}

// look reads pods and what the Migration remembers, as they are now.
func (a *anew) look(ctx context.Context) (*Survey, error) {
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
func (a *anew) delete(ctx context.Context, pods []corev1.Pod) error {
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

// anewStep makes pods anew by deleting them: whoever owns them makes others. Nobody is evicted: a cluster that serves nobody has none to
// spare, and a PodDisruptionBudget would count pods that cannot be ready.
type anewStep struct {
	anew
	// dns says that only the pods of the cluster's DNS are meant, else all others.
	dns bool
}

func (s *anewStep) ID() string {
	if s.dns {
		return "pods/dns"
	}
	return "pods/others"
}

func (s *anewStep) Title() string {
	if s.dns {
		return "Make the pods of the cluster's DNS anew"
	}
	return "Make all other pods anew"
}

func (*anewStep) Deadline() time.Duration                           { return podsTime }
func (s *anewStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *anewStep) stale(now *Survey) []corev1.Pod {
	return slices.DeleteFunc(now.stale(s.network), func(p corev1.Pod) bool { return dns(&p) != s.dns || bare(&p) })
}

func (s *anewStep) Do(ctx context.Context) error {
	now, err := s.look(ctx)
	if err != nil {
		return err
	}
	if now.Status.Network != s.network {
		return fmt.Errorf("the migration does not say that %s is on every node", s.network)
	}
	return s.delete(ctx, s.stale(now))
}

func (s *anewStep) Verify(ctx context.Context) error {
	now, err := s.look(ctx)
	if err != nil {
		return err
	}
	if stale := s.stale(now); len(stale) > 0 {
		return engine.NotYet("%s without %s still there, the first is %s/%s",
			english.Plural(len(stale), "pod", ""), s.network, stale[0].Namespace, stale[0].Name)
	}
	if s.dns {
		return now.waits(dns)
	}
	return nil
}

// Preview implements engine.Previewer. Which pods these are shows when they are.
func (s *anewStep) Preview() ([]engine.Change, error) {
	object := "every Pod that is not on the network of its node"
	if s.dns {
		object = "every Pod of the cluster's DNS"
	}
	return []engine.Change{{Verb: "delete", Object: object}}, nil
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

// bareStep makes a pod anew that nobody owns.
type bareStep struct {
	anew
	pod *corev1.Pod
}

func (s *bareStep) ID() string { return "pods/" + s.pod.Namespace + "/" + s.pod.Name }
func (s *bareStep) Title() string {
	return "Make pod " + s.pod.Namespace + "/" + s.pod.Name + " anew as it was"
}
func (*bareStep) Deadline() time.Duration                           { return 5 * time.Minute }
func (s *bareStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *bareStep) now(ctx context.Context) (*corev1.Pod, v1alpha1.CNIStatus, error) {
	st, err := s.tools.remembers(ctx, s.spec.Name)
	if err != nil {
		return nil, st, err
	}
	p := &corev1.Pod{}
	err = s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(s.pod), p)
	if apierrors.IsNotFound(err) {
		return nil, st, nil
	}
	if err != nil {
		return nil, st, fmt.Errorf("pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err)
	}
	return p, st, nil
}

func (s *bareStep) Do(ctx context.Context) error {
	have, st, err := s.now(ctx)
	if err != nil {
		return err
	}
	if st.Network != s.network {
		return fmt.Errorf("the migration does not say that %s is on every node", s.network)
	}
	if have != nil && !after(have, st.Since) {
		if err := s.delete(ctx, []corev1.Pod{*have}); err != nil {
			return err
		}
		return engine.NotYet("pod %s/%s is ending", have.Namespace, have.Name)
	}
	if have != nil {
		return nil
	}
	if err := s.tools.Cluster.Create(
		ctx,
		again(s.pod),
		client.FieldOwner(v1alpha1.FieldManager),
	); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err)
	}
	return nil
}

func (s *bareStep) Verify(ctx context.Context) error {
	have, st, err := s.now(ctx)
	if err == nil && (have == nil || !after(have, st.Since)) {
		return engine.NotYet("pod %s/%s is not there anew", s.pod.Namespace, s.pod.Name)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *bareStep) Preview() ([]engine.Change, error) {
	name := "Pod " + s.pod.Namespace + "/" + s.pod.Name
	return []engine.Change{{Verb: "delete", Object: name}, {Verb: "create", Object: name}}, nil
}

// again is a pod without what belongs to its past life. It stays on its node, where its volumes may be; what the API server has added to
// it for its ServiceAccount is added anew.
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

// settledStep waits until every pod is ready that was, with an address of the network.
type settledStep struct {
	tools   Tools
	spec    Spec
	network v1alpha1.CNIName
	ranges  []netip.Prefix
}

var _ engine.Waiter = (*settledStep)(nil)

func (*settledStep) ID() string                                        { return "settled" }
func (*settledStep) Title() string                                     { return "Wait until every pod is ready that was" }
func (*settledStep) Waits()                                            {}
func (*settledStep) Deadline() time.Duration                           { return podsTime }
func (s *settledStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*settledStep) Do(context.Context) error                          { return nil }

func (s *settledStep) Verify(ctx context.Context) error {
	now, err := (&anew{tools: s.tools, spec: s.spec, network: s.network}).look(ctx)
	if err != nil {
		return err
	}
	for i := range now.Nodes {
		if !cluster.NodeReady(&now.Nodes[i]) {
			return engine.NotYet("node %s is not ready", now.Nodes[i].Name)
		}
	}
	if p := astray(now.Pods, s.ranges); p != nil {
		return engine.NotYet("pod %s/%s has the address %s, which is not in %v", p.Namespace, p.Name, p.Status.PodIP, s.ranges)
	}
	return now.waits(func(*corev1.Pod) bool { return true })
}
