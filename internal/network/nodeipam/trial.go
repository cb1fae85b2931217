package nodeipam

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// ttlAnnotation is written on each new Node by the TTL controller of every controller manager
// (k8s.io/kubernetes pkg/controller/ttl/ttl_controller.go): one has seen this Node.
const ttlAnnotation = "node.alpha.kubernetes.io/ttl"

// notAvailable is an allocator's event for an exhausted range (AllocateOrOccupyCIDR in
// pkg/controller/nodeipam/ipam/range_allocator.go).
const notAvailable = "CIDRNotAvailable"

// Trial finds out whether controller managers give Nodes ranges, by a Node without a machine that
// exists until the answer is known.
type Trial struct {
	Client    client.Client
	Migration string
}

// Outcome is what became of the Node of a trial.
type Outcome struct {
	// PodCIDRs are the ranges it was given.
	PodCIDRs []string
	// Seen says that a controller manager has looked at it.
	Seen bool
	// Exhausted says that an allocator would have given it a range, and had none.
	Exhausted bool
}

// IsTrial reports whether a Node is one of a trial.
func IsTrial(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelTrial] == "true" }

func (t Trial) name() string { return "replumb-canary-" + t.Migration }

// Begin makes the Node, in place of an earlier run's, which may have its range from long ago.
func (t Trial) Begin(ctx context.Context) error {
	if err := t.End(ctx); err != nil {
		return err
	}
	// No labels for DaemonSets, no capacity, and taints: pods that tolerate everything find no
	// room. Without a providerID no load balancer targets it.
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: t.name(), Labels: map[string]string{
			v1alpha1.LabelMigration: t.Migration, v1alpha1.LabelRole: v1alpha1.RoleCanary, v1alpha1.LabelTrial: "true",
			corev1.LabelNodeExcludeBalancers: "true",
		}},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{
			{Key: v1alpha1.TaintMoving, Value: t.Migration, Effect: corev1.TaintEffectNoExecute},
			{Key: v1alpha1.TaintMoving, Value: t.Migration, Effect: corev1.TaintEffectNoSchedule},
		}},
	}
	if err := t.Client.Create(ctx, node, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("canary node %s: %w", t.name(), err)
	}
	return nil
}

// Outcome says what became of it; nil, if it is not there.
func (t Trial) Outcome(ctx context.Context) (*Outcome, error) {
	node := &corev1.Node{}
	err := t.Client.Get(ctx, client.ObjectKey{Name: t.name()}, node)
	if apierrors.IsNotFound(err) || err == nil && !node.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("canary node %s: %w", t.name(), err)
	}
	events := &corev1.EventList{}
	err = t.Client.List(ctx, events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{
		"involvedObject.name": t.name(), "reason": notAvailable,
	})
	if err != nil {
		return nil, fmt.Errorf("events of canary node %s: %w", t.name(), err)
	}
	out := &Outcome{PodCIDRs: PodCIDRs(node)}
	_, out.Seen = node.Annotations[ttlAnnotation]
	for i := range events.Items {
		at := events.Items[i].LastTimestamp.Time
		out.Exhausted = out.Exhausted || !at.Before(node.CreationTimestamp.Add(-time.Second))
	}
	return out, nil
}

func (t Trial) End(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: t.name()}}
	if err := client.IgnoreNotFound(t.Client.Delete(ctx, node)); err != nil {
		return fmt.Errorf("canary node %s: %w", t.name(), err)
	}
	return nil
}

// Manager is what the command line of a controller manager says, as far as it can be seen.
type Manager struct {
	// Pod it runs in, as a static pod.
	Pod string
	// Allocates says whether it gives Nodes ranges, ClusterCIDR of what.
	Allocates   bool
	ClusterCIDR string
}

// Managers reads command lines of static controller manager pods in kube-system, as of kubeadm and
// kOps. One that is not ready may run with another manifest and is left out.
func Managers(pods []corev1.Pod) []Manager {
	var all []Manager
	for i := range pods {
		p := &pods[i]
		if ready, _ := readiness.Pod(p); !ready || !controlplane.ControllerManager.Is(p) {
			continue
		}
		m := Manager{Pod: p.Namespace + "/" + p.Name}
		for _, c := range p.Spec.Containers {
			for _, word := range append(append([]string(nil), c.Command...), c.Args...) {
				if v, ok := strings.CutPrefix(word, "--allocate-node-cidrs"); ok {
					m.Allocates = v == "" || v == "=true"
				}
				if v, ok := strings.CutPrefix(word, "--cluster-cidr="); ok {
					m.ClusterCIDR = v
				}
			}
		}
		all = append(all, m)
	}
	return all
}
