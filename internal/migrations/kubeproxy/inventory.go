package kubeproxy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// Inventory is what a change of kube-proxy's mode goes by.
type Inventory struct {
	Spec   Spec
	Status v1alpha1.KubeProxyStatus
	Nodes  []corev1.Node
	// Own are the DaemonSets that run kube-proxy, without replumb's.
	Own []appsv1.DaemonSet
	// Second is replumb's DaemonSet; nil, if there is none.
	Second   *appsv1.DaemonSet
	Services []corev1.Service
	// Static are the containers of kube-proxy in pods that kubelets run by files, by node.
	Static map[string]*corev1.Container

	// At is where the own DaemonSet has its mode from, Config the ConfigMap that has it, and
	// Configured what it says. Problem is why that is not known.
	At         place
	Config     *corev1.ConfigMap
	Configured string
	Problem    error
}

// Load looks at the cluster.
func Load(ctx context.Context, c *cluster.Cluster, s Spec, st *v1alpha1.KubeProxyStatus) (*Inventory, error) {
	out := &Inventory{Spec: s}
	if st != nil {
		out.Status = *st
	}
	var err error
	if out.Nodes, err = cluster.List[corev1.Node](ctx, c, &corev1.NodeList{}); err != nil {
		return nil, err
	}
	if out.Services, err = cluster.List[corev1.Service](ctx, c, &corev1.ServiceList{}); err != nil {
		return nil, err
	}
	sets, err := cluster.List[appsv1.DaemonSet](ctx, c, &appsv1.DaemonSetList{})
	if err != nil {
		return nil, err
	}
	for _, ds := range inventory.ProxySets(sets) {
		out.add(ds)
	}
	if s.Program != nil {
		pods := &corev1.PodList{}
		if err := c.List(ctx, pods, client.InNamespace(metav1.NamespaceSystem)); err != nil {
			return nil, fmt.Errorf("listing pods of kube-proxy: %w", err)
		}
		out.addStatic(pods.Items)
	}
	return out, out.loadMode(ctx, c)
}

func (s *Inventory) add(ds appsv1.DaemonSet) {
	if ds.Labels[v1alpha1.LabelMigration] == s.Spec.Name {
		s.Second = &ds
	} else {
		s.Own = append(s.Own, ds)
	}
}

func (s *Inventory) loadMode(ctx context.Context, c client.Reader) error {
	own := s.own()
	if s.Spec.Program != nil { // no object of the cluster has it
		s.Configured = string(cmp.Or(s.Spec.Program.From, other(s.Spec.Mode)))
		return nil
	}
	if own == nil {
		return nil
	}
	s.At, s.Problem = placeOf(&own.Spec.Template.Spec)
	if s.Problem == nil && s.At.configMap != "" {
		return s.readConfig(ctx, c)
	}
	one := proxyIn(&own.Spec.Template.Spec)
	s.Configured, _ = flagOf(slices.Concat(one.Command, one.Args), modeFlag)
	return nil
}

// readConfig reads the mode from the own DaemonSet's ConfigMap.
func (s *Inventory) readConfig(ctx context.Context, c client.Reader) error {
	own := s.own()
	s.Config = &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: own.Namespace, Name: s.At.configMap}, s.Config)
	if apierrors.IsNotFound(err) {
		s.Config, s.Problem = nil, fmt.Errorf("ConfigMap %s/%s does not exist", own.Namespace, s.At.configMap)
		return nil
	}
	if err != nil {
		return fmt.Errorf("configmap %s/%s: %w", own.Namespace, s.At.configMap, err)
	}
	if s.Config.Data[s.At.key] == "" {
		s.Problem = fmt.Errorf("ConfigMap %s/%s has no key %s", own.Namespace, s.At.configMap, s.At.key)
		return nil
	}
	text := s.Config.Data[s.At.key]
	if s.Configured, s.Problem = configuredIn(text); s.Problem == nil {
		_, s.Problem = withMode(text, string(s.Spec.Mode)) // another form than YAML, or a mode further in
	}
	return nil
}

// own is the DaemonSet that runs kube-proxy; nil, if there is not exactly one.
func (s *Inventory) own() *appsv1.DaemonSet {
	if len(s.Own) != 1 {
		return nil
	}
	return &s.Own[0]
}

// known reports whether it is known how kube-proxy runs, without which there is no plan.
func (s *Inventory) known() bool {
	if s.Spec.Program != nil {
		return len(s.Own) == 0
	}
	return s.own() != nil && s.Problem == nil
}

// mode is the one of the cluster's own DaemonSet, secondMode that of replumb's; empty without it.
// Of programs they are the mode before and the one that is wanted.
func (s *Inventory) mode() v1alpha1.KubeProxyMode { return modeOf(s.Configured) }

func (s *Inventory) secondMode() v1alpha1.KubeProxyMode {
	if s.Spec.Program != nil {
		return s.Spec.Mode
	}
	if s.Second == nil || s.own() == nil {
		return ""
	}
	return v1alpha1.KubeProxyMode(strings.TrimPrefix(s.Second.Name, s.own().Name+"-"))
}

// from is the mode that kube-proxy had before the migration.
func (s *Inventory) from() v1alpha1.KubeProxyMode {
	if s.Status.From != "" && (s.Spec.Program == nil || s.Spec.Program.From == "") { // it may have been named since
		return s.Status.From
	}
	return s.mode()
}

// toward is the mode that a direction leads to, and configures what its configuration says then.
func (s *Inventory) toward(d engine.Direction) (mode v1alpha1.KubeProxyMode, configures string) {
	if d == engine.Forward {
		return s.Spec.Mode, string(s.Spec.Mode)
	}
	return s.from(), s.Status.Configured
}

// affinity is the one that the own DaemonSet had before replumb changed it.
func (s *Inventory) affinity() (*corev1.Affinity, error) {
	own := s.own()
	if text := own.Annotations[v1alpha1.AnnotationAffinity]; text != "" {
		return podnetwork.Recall(text)
	}
	return own.Spec.Template.Spec.Affinity, nil
}

// concerned are the nodes that kube-proxy runs on, those that were named to go first before others.
func (s *Inventory) concerned() []*corev1.Node {
	like := programs()
	if own := s.own(); own != nil {
		was, err := s.affinity()
		if err != nil {
			return nil
		}
		like = corev1.PodSpec{NodeSelector: own.Spec.Template.Spec.NodeSelector, Affinity: was}
	}
	wanted := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: like})
	var out []*corev1.Node
	for i := range s.Nodes {
		if ok, err := wanted.Match(&s.Nodes[i]); err == nil && ok {
			out = append(out, &s.Nodes[i])
		}
	}
	rank := func(n *corev1.Node) int {
		if i := slices.Index(s.Spec.First, n.Name); i >= 0 {
			return i
		}
		return len(s.Spec.First)
	}
	slices.SortFunc(out, func(a, b *corev1.Node) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// names are those of the nodes that a condition holds for.
func (s *Inventory) names(holds func(mark string) bool) (out []string) {
	for _, n := range s.concerned() {
		if holds(n.Labels[v1alpha1.LabelKubeProxyMode]) {
			out = append(out, n.Name)
		}
	}
	return out
}

// serving is the mode of the kube-proxy whose rules count on a node.
func (s *Inventory) serving(n *corev1.Node) v1alpha1.KubeProxyMode {
	if mark := n.Labels[v1alpha1.LabelKubeProxyMode]; mark == v1alpha1.ModeLeaving || mark == v1alpha1.ModeSwitched {
		return s.secondMode()
	}
	return s.mode()
}

// counts are nodes, and how many have the mode that is wanted.
func (s *Inventory) counts() (c v1alpha1.Counts) {
	if !s.known() {
		return c
	}
	for _, n := range s.concerned() {
		c.Total++
		if s.serving(n) == s.Spec.Mode {
			c.Moved++
		}
	}
	return c
}

// left says what apply has not done yet; empty, if it is through.
func (s *Inventory) left() string {
	switch {
	case !s.known():
		return notKnown
	case s.Spec.Program != nil:
		if left := s.names(notSwitched); len(left) > 0 {
			return fmt.Sprintf("node %s does not have mode %s", left[0], s.Spec.Mode)
		}
		return ""
	case s.mode() != s.Spec.Mode:
		return fmt.Sprintf("kube-proxy is configured for mode %s", s.mode())
	case s.Second != nil || s.own().Annotations[v1alpha1.AnnotationAffinity] != "" || len(s.names(marked)) > 0:
		return "nodes are not given back to " + daemonset.Name(s.own())
	}
	return ""
}

func marked(mark string) bool { return mark != "" }

func notSwitched(mark string) bool { return mark != v1alpha1.ModeSwitched }
