package podcidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// tunnelsLabel says which addresses of tunnels a DaemonSet keeps, heldOld or heldNew.
const (
	tunnelsLabel     = "replumb.dev/tunnels"
	heldOld, heldNew = "old", "new"
)

// holdDeadline is how long the image may take to come to every node.
const holdDeadline = 5 * time.Minute

// holds reports whether tunnels have old addresses to be kept.
func (p *Planner) holds() bool { return p.Survey.holds() }

func (s *Survey) holds() bool { return s.Spec.Tunnels == v1alpha1.TunnelsHold && s.overlaid() }

// overlaid reports whether pods of different nodes reach each other through tunnels.
func (s *Survey) overlaid() bool {
	return slices.ContainsFunc(s.Moves, func(m Move) bool {
		return m.Old != nil && m.Old.Overlay() != "" || m.New != nil && m.New.Overlay() != ""
	})
}

// hold keeps the addresses that tunnels have before direction d changes them.
func (p *Planner) hold(d direction) []engine.Group {
	if !p.holds() || p.Survey.closed(d) {
		return nil
	}
	step := &holdStep{tools: p.Tools, migration: p.spec().Name, image: p.image(), which: heldOld, ranges: p.spec().From}
	if d == back {
		if !p.Survey.Switched() { // then no tunnel has moved
			return nil
		}
		step.which, step.ranges = heldNew, p.spec().To
		return inOrder(step)
	}
	return inOrder(&reserveStep{
		tools: p.Tools, migration: p.spec().Name, ranges: p.spec().From, now: tunnelsAs(p.Survey.Nodes, p.spec().From),
	}, step)
}

func (p *Planner) letGo() []engine.Step {
	if !p.holds() {
		return nil
	}
	return []engine.Step{&letGoStep{tools: p.Tools, migration: p.spec().Name}}
}

func (p *Planner) unreserve() []engine.Step {
	if !p.holds() {
		return nil
	}
	return []engine.Step{&unreserveStep{tools: p.Tools, migration: p.spec().Name}}
}

// holdStep runs a DaemonSet that keeps the addresses of tunnels on their nodes.
type holdStep struct {
	tools     Tools
	migration string
	image     string
	which     string
	ranges    []netip.Prefix
}

func (s *holdStep) ID() string { return "hold/" + s.which }
func (s *holdStep) Title() string {
	return fmt.Sprintf("Keep the addresses of tunnels in %v on their nodes", s.ranges)
}
func (*holdStep) Deadline() time.Duration { return holdDeadline }

func (s *holdStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *holdStep) Do(ctx context.Context) error {
	err := s.tools.Cluster.Create(ctx, s.build(), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("daemonset %s: %w", s.name(), err)
	}
	return nil
}

// Verify implements engine.Step: on every node that is ready a pod has to be ready, which it is once it has the address.
func (s *holdStep) Verify(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := s.tools.Cluster.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	pods := &corev1.PodList{}
	if err := s.tools.Cluster.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), s.labels()); err != nil {
		return fmt.Errorf("listing pods of %s: %w", s.name(), err)
	}
	on := map[string]*corev1.Pod{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp.IsZero() {
			on[p.Spec.NodeName] = p
		}
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		switch pod := on[n.Name]; {
		case !cluster.NodeReady(n):
		case pod == nil:
			return engine.NotYet("node %s has no pod of DaemonSet %s/%s", n.Name, v1alpha1.SystemNamespace, s.name())
		case !connectivity.Ready(pod):
			return engine.NotYet("pod %s on node %s is not ready: %s", pod.Name, n.Name, connectivity.Why(pod))
		}
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *holdStep) Preview() ([]engine.Change, error) {
	d := s.build()
	return []engine.Change{{Verb: "create", Object: "DaemonSet " + d.Namespace + "/" + d.Name, Body: d}}, nil
}

func (s *holdStep) name() string { return s.migration + "-" + s.which + "-tunnels" }

func (s *holdStep) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: s.migration, tunnelsLabel: s.which}
}

// build makes a DaemonSet whose pods are ready when their node has the addresses, and take them off when they end.
func (s *holdStep) build() *appsv1.DaemonSet {
	container := func(name string) corev1.Container {
		args := []string{"tunnels", name}
		for _, r := range s.ranges {
			args = append(args, r.String())
		}
		return corev1.Container{
			Name: name, Image: s.image, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				RunAsUser: ptr.To[int64](0), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				Capabilities: &corev1.Capabilities{
					Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}, // for addresses, and nothing else
				},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: s.name(), Labels: s.labels()},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: s.labels()},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: s.labels()},
				Spec: corev1.PodSpec{
					HostNetwork: true, PriorityClassName: "system-node-critical",
					AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
					Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					InitContainers: []corev1.Container{container("hold")},
					Containers:     []corev1.Container{container("keep")},
				},
			},
		},
	}
}

// letGoStep removes what keeps the addresses of tunnels. Connections that still have one end.
type letGoStep struct {
	tools     Tools
	migration string
}

func (*letGoStep) ID() string    { return "let-go" }
func (*letGoStep) Title() string { return "Take old addresses of tunnels off their nodes" }

func (s *letGoStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *letGoStep) Do(ctx context.Context) error {
	for _, which := range []string{heldOld, heldNew} {
		d := (&holdStep{migration: s.migration, which: which}).build()
		err := s.tools.Cluster.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("daemonset %s: %w", d.Name, err)
		}
	}
	return nil
}

// Preview implements engine.Previewer. There is one for the new addresses as well on the way back.
func (s *letGoStep) Preview() ([]engine.Change, error) {
	name := (&holdStep{migration: s.migration, which: heldOld}).name()
	return []engine.Change{{Verb: "delete", Object: "DaemonSet " + v1alpha1.SystemNamespace + "/" + name}}, nil
}

func (s *letGoStep) Verify(ctx context.Context) error {
	ours := []client.ListOption{
		client.InNamespace(
			v1alpha1.SystemNamespace,
		),
		client.HasLabels{tunnelsLabel},
		client.MatchingLabels{v1alpha1.LabelMigration: s.migration},
	}
	sets := &appsv1.DaemonSetList{}
	if err := s.tools.Cluster.List(ctx, sets, ours...); err != nil {
		return fmt.Errorf("listing daemonsets: %w", err)
	}
	if len(sets.Items) > 0 {
		return engine.NotYet("daemonset %s is still there", sets.Items[0].Name)
	}
	pods := &corev1.PodList{}
	if err := s.tools.Cluster.List(ctx, pods, ours...); err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	if len(pods.Items) > 0 {
		return engine.NotYet("pod %s on node %s is still there", pods.Items[0].Name, pods.Items[0].Spec.NodeName)
	}
	return nil
}
