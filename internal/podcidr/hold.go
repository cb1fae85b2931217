package podcidr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/calico"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
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
	return inOrder(&reserveStep{tools: p.Tools, migration: p.spec().Name, ranges: p.spec().From}, step)
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
		case !ready(pod):
			return engine.NotYet("pod %s on node %s is not ready: %s", pod.Name, n.Name, why(pod))
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

// reserveStep keeps Calico from giving to pods what nodes go on having, should the old pools be enabled again.
type reserveStep struct {
	tools     Tools
	migration string
	ranges    []netip.Prefix
}

func reservation(migration string) *unstructured.Unstructured {
	return calico.Empty("IPReservation", "replumb-"+migration)
}

func (*reserveStep) ID() string { return "hold/reserve" }
func (s *reserveStep) Title() string {
	return fmt.Sprintf("Reserve the addresses of tunnels in %v", s.ranges)
}

func (s *reserveStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *reserveStep) Do(ctx context.Context) error {
	have, wanted, err := s.look(ctx)
	if err != nil {
		return err
	}
	u := reservation(s.migration)
	u.SetLabels(map[string]string{v1alpha1.LabelMigration: s.migration})
	if err := unstructured.SetNestedStringSlice(u.Object, wanted, "spec", "reservedCIDRs"); err != nil {
		return err
	}
	if have == nil {
		err = s.tools.Cluster.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		var body []byte
		if body, err = json.Marshal(map[string]any{"spec": u.Object["spec"]}); err != nil {
			return err
		}
		err = s.tools.Cluster.Patch(ctx, have, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	return nil
}

// look returns the reservation, nil if there is none, and what it has to list.
func (s *reserveStep) look(ctx context.Context) (have *unstructured.Unstructured, wanted []string, err error) {
	nodes := &corev1.NodeList{}
	if err := s.tools.Cluster.List(ctx, nodes); err != nil {
		return nil, nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, a := range calico.TunnelAddresses(&nodes.Items[i]) {
			if within(s.ranges, a) {
				wanted = append(wanted, netip.PrefixFrom(a, a.BitLen()).String())
			}
		}
	}
	have = reservation(s.migration)
	switch err := s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(have), have); {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return nil, nil, fmt.Errorf("ipreservation %s: %w", reservation(s.migration).GetName(), err)
	default:
		already, _, err := unstructured.NestedStringSlice(have.Object, "spec", "reservedCIDRs")
		if err != nil {
			return nil, nil, fmt.Errorf("ipreservation %s: %w", have.GetName(), err)
		}
		wanted = append(wanted, already...)
	}
	slices.Sort(wanted)
	return have, slices.Compact(wanted), nil
}

func (s *reserveStep) Verify(ctx context.Context) error {
	have, wanted, err := s.look(ctx)
	if err != nil {
		return err
	}
	if have == nil {
		return engine.NotYet("ipreservation %s does not exist", reservation(s.migration).GetName())
	}
	listed, _, err := unstructured.NestedStringSlice(have.Object, "spec", "reservedCIDRs")
	if err != nil {
		return fmt.Errorf("ipreservation %s: %w", have.GetName(), err)
	}
	missing := slices.DeleteFunc(wanted, func(text string) bool { return slices.Contains(listed, text) })
	if len(missing) > 0 {
		return engine.NotYet("ipreservation %s does not list %s", have.GetName(), strings.Join(missing, ", "))
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *reserveStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "IPReservation " + reservation(s.migration).GetName()}}, nil
}

// unreserveStep removes the reservation.
type unreserveStep struct {
	tools     Tools
	migration string
}

func (*unreserveStep) ID() string    { return "unreserve" }
func (*unreserveStep) Title() string { return "Give up the reservation of tunnels' addresses" }

func (s *unreserveStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *unreserveStep) Do(ctx context.Context) error {
	if err := s.tools.Cluster.Delete(ctx, reservation(s.migration)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("ipreservation %s: %w", reservation(s.migration).GetName(), err)
	}
	return nil
}

func (s *unreserveStep) Verify(ctx context.Context) error {
	u := reservation(s.migration)
	err := s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(u), u)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	return engine.NotYet("ipreservation %s is still there", u.GetName())
}
