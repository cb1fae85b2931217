// Package connectivity proves with throw-away pods that pods of a node, or of a new range, reach
// what they must, and nothing that a NetworkPolicy forbids. Their program is in
// connectivity/testpod.
package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

const (
	roleCall = "call"
	callTime = 45 * time.Second
	deadline = 5 * time.Minute
)

// Step runs a pod that answers and one that calls on every node: pod to pod, to Services, to nodes,
// to named targets, and past what a NetworkPolicy forbids.
type Step struct {
	Cluster   *cluster.Cluster
	Migration string
	// Name and About are its ID and title.
	Name, About string
	Image       pull.Image
	// Pools of Calico to ask for addresses of; none takes the addresses as they come.
	Pools []string
	// Within are the ranges that addresses must come from; any, if there are none. WithinOn says so
	// of single nodes.
	Within   []netip.Prefix
	WithinOn map[string][]netip.Prefix
	// Targets are further addresses, as host:port over TCP, that pods must reach.
	Targets []string
	// Only, if set, names the nodes that answer; one other one calls them too, of Others if that is
	// set.
	Only, Others []string
	// Unfenced says that nothing in the cluster may enforce NetworkPolicies, except on the nodes of
	// FencedOn.
	Unfenced bool
	FencedOn []string
	// Anyone says that callers may be seen with the address of a node: see Pods.
	Anyone bool
}

var (
	_ engine.Timed     = (*Step)(nil)
	_ engine.Waiter    = (*Step)(nil)
	_ engine.Abandoner = (*Step)(nil)
)

func (s *Step) ID() string { return s.Name }

func (s *Step) Title() string { return s.About }

func (*Step) Deadline() time.Duration { return deadline }

func (*Step) Waits() {}

func (*Step) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *Step) Do(ctx context.Context) error {
	if err := s.Abandon(ctx); err != nil {
		return err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	var on []string
	for i := range nodes {
		if s.answers(nodes[i].Name) {
			on = append(on, nodes[i].Name)
		}
	}
	return s.pods().Serve(ctx, roleCall, on)
}

func (s *Step) pods() *Pods {
	return &Pods{Client: s.Cluster, Migration: s.Migration, Image: s.Image, Pools: s.Pools, Anyone: s.Anyone}
}

// Verify starts the calling pods as soon as all pods answer.
func (s *Step) Verify(ctx context.Context) error {
	answering, err := s.pods().Find(ctx, RoleAnswer)
	if err != nil {
		return err
	}
	var addresses []netip.Addr
	for i := range answering {
		a, err := s.address(&answering[i])
		var stray *strayError
		if errors.As(err, &stray) { // its pod network has not heard of the range yet; a pod keeps what it was given
			return cmp.Or(s.Do(ctx), engine.NotYet("%w", err))
		}
		if err != nil {
			return err
		}
		addresses = append(addresses, a)
	}
	calling, err := s.pods().Find(ctx, roleCall)
	if err != nil {
		return err
	}
	if len(calling) < len(answering) {
		return s.call(ctx, answering, addresses)
	}
	for i := range calling {
		if err := outcome(&calling[i]); err != nil {
			return err
		}
	}
	return s.Abandon(ctx)
}

type strayError struct{ text string }

func (e *strayError) Error() string { return e.text }

func (s *Step) address(pod *corev1.Pod) (netip.Addr, error) {
	a, err := Address(pod)
	if err != nil {
		return a, err
	}
	if home := s.WithinOn[pod.Spec.NodeName]; len(home) > 0 && !within(home, a) {
		return netip.Addr{}, &strayError{
			fmt.Sprintf("node %s gave a new pod the address %s, which is not in %v", pod.Spec.NodeName, a, home),
		}
	}
	if len(s.WithinOn) == 0 && len(s.Within) > 0 && !within(s.Within, a) {
		return netip.Addr{}, fmt.Errorf("node %s gave a new pod the address %s, which is not in %v: something pins its pool",
			pod.Spec.NodeName, a, s.Within)
	}
	return a, nil
}

func (s *Step) call(ctx context.Context, answering []corev1.Pod, addresses []netip.Addr) error {
	reach, err := s.targets(ctx)
	if err != nil {
		return err
	}
	var refuse []string
	for i, a := range addresses {
		reach = append(reach, netip.AddrPortFrom(a, testpod.OpenPort).String())
		if !s.Unfenced || slices.Contains(s.FencedOn, answering[i].Spec.NodeName) {
			refuse = append(refuse, netip.AddrPortFrom(a, testpod.ClosedPort).String())
		}
	}
	from, err := s.callers(ctx, answering)
	if err != nil {
		return err
	}
	for _, node := range from {
		err := s.pods().Start(ctx, roleCall, node, "call", "--timeout="+callTime.String(),
			"--reach="+strings.Join(reach, ","), "--refused="+strings.Join(refuse, ","))
		if err != nil {
			return err
		}
	}
	return engine.NotYet("canaries are calling each other")
}

func (s *Step) answers(node string) bool { return s.Only == nil || slices.Contains(s.Only, node) }

// callers are the nodes that answer and, if those are not all, one of the others.
func (s *Step) callers(ctx context.Context, answering []corev1.Pod) ([]string, error) {
	var from []string
	for i := range answering {
		from = append(from, answering[i].Spec.NodeName)
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool {
		return !s.answers(n.Name) && (s.Others == nil || slices.Contains(s.Others, n.Name))
	})
	if i >= 0 {
		from = append(from, nodes[i].Name)
	}
	return from, nil
}

func (s *Step) targets(ctx context.Context) ([]string, error) {
	targets := slices.Clone(s.Targets)
	for _, key := range []client.ObjectKey{
		{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, {Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
	} {
		all, err := Endpoints(ctx, s.Cluster, key)
		if err != nil {
			return nil, err
		}
		targets = append(targets, all...)
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		for _, a := range nodes[i].Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				targets = append(targets, net.JoinHostPort(a.Address, strconv.Itoa(KubeletPort)))
			}
		}
	}
	return targets, nil
}

func outcome(pod *corev1.Pod) error {
	text, failed, err := Said(pod)
	if err == nil && failed {
		return fmt.Errorf("a pod tried out on node %s: %s", pod.Spec.NodeName, text)
	}
	return err
}

func (s *Step) Abandon(ctx context.Context) error {
	return s.pods().Remove(ctx)
}

// nodes are those on which a pod can be expected to start.
func (s *Step) nodes(ctx context.Context) ([]corev1.Node, error) {
	all := &corev1.NodeList{}
	if err := s.Cluster.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	all.Items = slices.DeleteFunc(all.Items, func(n corev1.Node) bool { return !inventory.NodeReady(&n) })
	return all.Items, nil
}

// Ready reports whether a pod is.
func Ready(pod *corev1.Pod) bool {
	ready, _ := readiness.Pod(pod)
	return ready
}

// Why says what a pod waits for, or how far it has come.
func Why(pod *corev1.Pod) string {
	if why := readiness.Blocked(pod); why != "" {
		return why
	}
	return string(pod.Status.Phase)
}

func within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
