// Package connectivity has throw-away pods prove that pods of a node, or of a new range, reach what they have to and are kept from what a
// NetworkPolicy forbids. What runs inside of them is in internal/verify/connectivity/testpod.
package connectivity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

const (
	// PoolsAnnotation asks Calico's IPAM for an address of one of these pools.
	PoolsAnnotation = "cni.projectcalico.org/ipv4pools"
	// Label is on every pod of a trial; roleAnswer and roleCall are its values.
	Label      = "replumb.dev/canary"
	roleAnswer = "answer"
	roleCall   = "call"

	kubeletPort       = 10250
	callTime          = 45 * time.Second
	deadline          = 5 * time.Minute
	user        int64 = 65534
)

// Step has on every node a pod that answers and one that calls: pod to pod, to Services, to nodes and to whatever else is
// named; and past what a NetworkPolicy forbids. It is an engine.Step.
type Step struct {
	Cluster   *cluster.Cluster
	Migration string
	// Name and About are its ID and title.
	Name, About string
	// Image of replumb for the pods.
	Image string
	// Pools of Calico to ask for addresses of; none takes the addresses as they come.
	Pools []string
	// Within are the ranges that addresses must come from; any, if there are none. Home says so of single nodes.
	Within []netip.Prefix
	Home   map[string]netip.Prefix
	// Targets are further addresses, as host:port over TCP, that pods must reach.
	Targets []string
	// Only, if set, names the nodes that answer; one other one calls them too.
	Only []string
	// Unfenced says that nothing in the cluster may enforce NetworkPolicies.
	Unfenced bool
}

var (
	_ engine.Timed     = (*Step)(nil)
	_ engine.Waiter    = (*Step)(nil)
	_ engine.Abandoner = (*Step)(nil)
)

// ID implements engine.Step.
func (s *Step) ID() string { return s.Name }

// Title implements engine.Step.
func (s *Step) Title() string { return s.About }

// Deadline implements engine.Timed.
func (*Step) Deadline() time.Duration { return deadline }

// Waits implements engine.Waiter.
func (*Step) Waits() {}

// State implements engine.Step: what pods that ran earlier proved says nothing of now.
func (*Step) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do makes the pods that answer.
func (s *Step) Do(ctx context.Context) error {
	if err := s.Abandon(ctx); err != nil {
		return err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	if err := s.create(ctx, s.policy()); err != nil {
		return err
	}
	for i := range nodes {
		if !s.answers(nodes[i].Name) {
			continue
		}
		listen := func(port int) string { return ":" + strconv.Itoa(port) }
		args := []string{"canary", "answer", listen(testpod.OpenPort), listen(testpod.ClosedPort)}
		if err := s.create(ctx, s.pod(roleAnswer, nodes[i].Name, args)); err != nil {
			return err
		}
	}
	return nil
}

// Verify implements engine.Step: as soon as all pods answer, it sends those that call.
func (s *Step) Verify(ctx context.Context) error {
	answering, err := s.pods(ctx, roleAnswer)
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
	calling, err := s.pods(ctx, roleCall)
	if err != nil {
		return err
	}
	if len(calling) < len(answering) {
		return s.call(ctx, answering, addresses)
	}
	for i := range calling {
		if err := s.outcome(&calling[i]); err != nil {
			return err
		}
	}
	return s.Abandon(ctx)
}

// strayError says that a node gave an address that is not of its range.
type strayError struct{ text string }

func (e *strayError) Error() string { return e.text }

// address of a pod that answers.
func (s *Step) address(pod *corev1.Pod) (netip.Addr, error) {
	if !Ready(pod) {
		return netip.Addr{}, engine.NotYet("canary %s on node %s is not ready: %s", pod.Name, pod.Spec.NodeName, Why(pod))
	}
	all := calico.PodAddresses(pod)
	if len(all) == 0 {
		return netip.Addr{}, engine.NotYet("canary %s on node %s has no address", pod.Name, pod.Spec.NodeName)
	}
	if home, ok := s.Home[pod.Spec.NodeName]; ok && !home.Contains(all[0]) {
		return netip.Addr{}, &strayError{fmt.Sprintf("node %s gave a new pod the address %s, which is not in its range %s",
			pod.Spec.NodeName, all[0], home)}
	}
	if len(s.Home) == 0 && len(s.Within) > 0 && !within(s.Within, all[0]) {
		return netip.Addr{}, fmt.Errorf("node %s gave a new pod the address %s, which is not in %v: something pins its pool",
			pod.Spec.NodeName, all[0], s.Within)
	}
	return all[0], nil
}

func (s *Step) call(ctx context.Context, answering []corev1.Pod, addresses []netip.Addr) error {
	reach, err := s.targets(ctx)
	if err != nil {
		return err
	}
	var refuse []string
	for _, a := range addresses {
		reach = append(reach, netip.AddrPortFrom(a, testpod.OpenPort).String())
		if !s.Unfenced {
			refuse = append(refuse, netip.AddrPortFrom(a, testpod.ClosedPort).String())
		}
	}
	args := []string{
		"canary", "call", "--timeout=" + callTime.String(), "--reach=" + strings.Join(reach, ","), "--refused=" + strings.Join(refuse, ","),
	}
	from, err := s.callers(ctx, answering)
	if err != nil {
		return err
	}
	for _, node := range from {
		if err := s.create(ctx, s.pod(roleCall, node, args)); err != nil {
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
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return !s.answers(n.Name) })
	if i >= 0 {
		from = append(from, nodes[i].Name)
	}
	return from, nil
}

// targets are Services, kubelets, and what the Migration names.
func (s *Step) targets(ctx context.Context) ([]string, error) {
	targets := slices.Clone(s.Targets)
	for _, key := range []client.ObjectKey{
		{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, {Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
	} {
		svc := &corev1.Service{}
		err := s.Cluster.Get(ctx, key, svc)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", key, err)
		}
		for _, p := range svc.Spec.Ports {
			if p.Protocol == corev1.ProtocolTCP {
				targets = append(targets, net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		for _, a := range nodes[i].Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				targets = append(targets, net.JoinHostPort(a.Address, strconv.Itoa(kubeletPort)))
			}
		}
	}
	return targets, nil
}

// outcome of a pod that calls.
func (s *Step) outcome(pod *corev1.Pod) error {
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return nil
	case corev1.PodFailed:
		message := pod.Status.Message
		for _, c := range pod.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil {
				message = strings.TrimSpace(t.Message)
			}
		}
		return fmt.Errorf("a pod tried out on node %s: %s", pod.Spec.NodeName, message)
	}
	return engine.NotYet("canary %s on node %s is calling: %s", pod.Name, pod.Spec.NodeName, Why(pod))
}

// Abandon implements engine.Abandoner.
func (s *Step) Abandon(ctx context.Context) error {
	return Remove(ctx, s.Cluster, s.Migration)
}

// Remove ends the pods of all trials of a migration.
func Remove(ctx context.Context, c client.Client, migration string) error {
	ours := []client.DeleteAllOfOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.HasLabels{Label},
		client.MatchingLabels{v1alpha1.LabelMigration: migration},
		client.GracePeriodSeconds(1),
	}
	for _, o := range []client.Object{&corev1.Pod{}, &networkingv1.NetworkPolicy{}} {
		if err := c.DeleteAllOf(ctx, o, ours...); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing canaries: %w", err)
		}
	}
	return nil
}

func (s *Step) pods(ctx context.Context, role string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	err := s.Cluster.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), s.labels(role))
	if err != nil {
		return nil, fmt.Errorf("looking for canaries: %w", err)
	}
	all.Items = slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() })
	return all.Items, nil
}

func (s *Step) labels(role string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: s.Migration, Label: role}
}

// nodes are those on which a pod can be expected to start.
func (s *Step) nodes(ctx context.Context) ([]corev1.Node, error) {
	all := &corev1.NodeList{}
	if err := s.Cluster.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	all.Items = slices.DeleteFunc(all.Items, func(n corev1.Node) bool { return !cluster.NodeReady(&n) })
	return all.Items, nil
}

// create makes an object. One that an earlier try left, and that is still ending, is waited for.
func (s *Step) create(ctx context.Context, o client.Object) error {
	err := s.Cluster.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s of an earlier run is still ending", o.GetName())
	}
	if err != nil {
		return fmt.Errorf("canary %s: %w", o.GetName(), err)
	}
	return nil
}

func (s *Step) meta(name, role string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: name + "-", Labels: s.labels(role)}
}

// policy lets those that call reach one of the ports of those that answer, and no other.
func (s *Step) policy() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: s.meta("canary", roleAnswer),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: s.labels(roleAnswer)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: s.labels(roleCall)}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(testpod.OpenPort))}},
			}},
		},
	}
}

func (s *Step) pod(role, node string, args []string) *corev1.Pod {
	m := s.meta("canary-"+role, role)
	if len(s.Pools) > 0 {
		body, _ := json.Marshal(s.Pools) // strings always do
		m.Annotations = map[string]string{PoolsAnnotation: string(body)}
	}
	restart := corev1.RestartPolicyNever
	if role == roleAnswer {
		restart = corev1.RestartPolicyAlways
	}
	return &corev1.Pod{
		ObjectMeta: m,
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: restart, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "canary", Image: s.Image, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: ptr.To(user), RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
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
