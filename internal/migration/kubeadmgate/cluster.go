package kubeadmgate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// controlPlanes are the nodes whose kubelet runs an API server from a file, in the order of their
// names.
func controlPlanes(ctx context.Context, from client.Reader) (nodes []string, err error) {
	pods, err := controlplane.APIServer.Pods(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("listing the pods of API servers: %w", err)
	}
	for i := range pods {
		if controlplane.APIServer.IsStatic(&pods[i]) {
			nodes = append(nodes, pods[i].Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// runsWith is whether the API shows a program of a node ready, with its flags. Kubelets renew what
// it shows of static pods within two minutes.
func (g *Gates) runsWith(node string, c onnode.FlagChange) func(context.Context) error {
	return func(ctx context.Context) error {
		pods, err := controlplane.Component(c.Program).Pods(ctx, g.Cluster)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
		if at < 0 {
			return engine.NotYet("%s on node %s is not seen", c.Program, node)
		}
		command := slices.Concat(pods[at].Spec.Containers[0].Command, pods[at].Spec.Containers[0].Args)
		for name, want := range c.To {
			given := slices.ContainsFunc(command, func(arg string) bool { return strings.HasPrefix(arg, "--"+name+"=") })
			if !slices.Contains(command, "--"+name+"="+want) && (given || !c.AbsentIsRight) {
				return engine.NotYet("%s on node %s is not seen to run with --%s=%s (kubelets renew what the API shows of static pods within two minutes)",
					c.Program, node, name, want)
			}
		}
		return isReady(&pods[at])
	}
}

func isReady(p *corev1.Pod) error {
	if ready, _ := readiness.Pod(p); !ready {
		return engine.NotYet("pod %s on node %s is not ready", p.Name, p.Spec.NodeName)
	}
	return nil
}

// othersReady is whether a program is ready on all other nodes, so that one is left while this one
// restarts.
func (g *Gates) othersReady(node, program string) func(context.Context) error {
	return func(ctx context.Context) error {
		pods, err := controlplane.Component(program).Pods(ctx, g.Cluster)
		if err != nil {
			return err
		}
		for i := range pods {
			if pods[i].Spec.NodeName == node {
				continue
			}
			if err := isReady(&pods[i]); err != nil {
				return engine.NotYet("%w, and %s on %s is not restarted before it is", err, program, node)
			}
		}
		return nil
	}
}

// readyPods are those of a node that were ready before its kubelet was restarted.
type readyPods struct {
	client client.Client
	node   string
	before map[types.UID]bool
}

func (r *readyPods) list(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := r.client.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", r.node, err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != r.node }), nil
}

func (r *readyPods) remember(ctx context.Context) error {
	pods, err := r.list(ctx)
	r.before = map[types.UID]bool{}
	for i := range pods {
		if ready, _ := readiness.Pod(&pods[i]); ready {
			r.before[pods[i].UID] = true
		}
	}
	return err
}

// again passes over pods that were unready before, and those that are being deleted.
func (r *readyPods) again(ctx context.Context) error {
	node := &corev1.Node{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: r.node}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !inventory.NodeReady(node) {
		return engine.NotYet("node %s is not ready", r.node)
	}
	pods, err := r.list(ctx)
	for i := range pods {
		if r.before[pods[i].UID] && pods[i].DeletionTimestamp.IsZero() {
			if err := isReady(&pods[i]); err != nil {
				return err
			}
		}
	}
	return err
}
