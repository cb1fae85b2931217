package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/spec"
)

// Survey is what a migration finds.
type Survey struct {
	Spec Spec
	// Calico is its data, Workloads what runs and who owns it, Nodes the nodes.
	Calico    *calico.State
	Workloads *rollout.State
	Nodes     []corev1.Node
	// CriticalServices are those that the cluster itself cannot do without: its DNS, and those behind admission webhooks.
	CriticalServices []corev1.Service
	// Namespaces are the annotations of each.
	Namespaces map[string]map[string]string
	// Configs are, by namespace/name, the data of ConfigMaps that say how pods are connected.
	Configs map[string]map[string]string
	// Installations are what operators keep up.
	Installations []Installation
	// Unreservable says that this Calico knows no IPReservations, which came with v3.22.
	Unreservable bool
	// Moves are the pools, in the order of the targets.
	Moves []Move
	// Homes are the nodes, if it is their Nodes that carry the ranges of pods; none, if there are pools.
	Homes []Home
}

// Installation is what a Tigera operator keeps up (operator.tigera.io/v1, spec.calicoNetwork.ipPools).
type Installation struct {
	Name  string
	Pools []InstalledPool
}

// InstalledPool is a pool that an operator keeps up.
type InstalledPool struct {
	CIDR                  string `json:"cidr"`
	DisableNewAllocations bool   `json:"disableNewAllocations,omitempty"`
}

func (i *Installation) pool(cidr netip.Prefix) (InstalledPool, bool) {
	for _, p := range i.Pools {
		if have, err := netip.ParsePrefix(p.CIDR); err == nil && have == cidr {
			return p, true
		}
	}
	return InstalledPool{}, false
}

// Move is one pool that another one takes over from.
type Move struct {
	// From is the range that is emptied, Old its pool; nil, if there is none any more.
	From netip.Prefix
	Old  *calico.Pool
	// To is the target, New its pool; nil, if there is none yet.
	To  netip.Prefix
	New *calico.Pool
}

// Name of the target's pool. It stays when the migration is over, so it does not say who made it.
func (m *Move) Name() string {
	if m.New != nil {
		return m.New.Name
	}
	return "pods-" + strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(m.To.String())
}

// selector of the target's pool. One that is not there yet is made like the old one.
func (m *Move) selector() string {
	switch {
	case m.New != nil:
		return m.New.Spec.NodeSelector
	case m.Old != nil:
		return m.Old.Spec.NodeSelector
	}
	return ""
}

// selects reports whether nodes like this one get addresses of the target.
func (m *Move) selects(node *corev1.Node) (bool, error) {
	return calico.Selects(m.selector(), node.Labels)
}

// left is the pool that direction d leaves; nil, if there is none.
func (m *Move) left(d direction) *calico.Pool {
	if d == forth {
		return m.Old
	}
	return m.New
}

// disabledAt is when replumb disabled a pool, or found it disabled; zero, if it did neither.
func disabledAt(p *calico.Pool) time.Time {
	if p == nil || !p.Spec.Disabled {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, p.Object.GetAnnotations()[v1alpha1.AnnotationDisabledAt])
	if err != nil {
		return time.Time{}
	}
	return at
}

// Place says from which of the two ranges new pods get their addresses.
type Place string

// The places.
const (
	PlaceOld  Place = "old"
	PlaceBoth Place = "both"
	PlaceNew  Place = "new"
)

// Place of the move.
func (m *Move) Place() Place {
	gives := func(p *calico.Pool) bool { return p != nil && !p.Spec.Disabled }
	switch {
	case gives(m.Old) && gives(m.New):
		return PlaceBoth
	case gives(m.Old):
		return PlaceOld
	}
	return PlaceNew
}

// Look pairs the pools with the targets. It fails with a *spec.Error if that cannot be done.
func Look(s Spec, state *calico.State, workloads *rollout.State, nodes []corev1.Node) (*Survey, error) {
	from, err := resolve(s, state)
	if err != nil {
		return nil, err
	}
	s.From = from
	out := &Survey{Spec: s, Calico: state, Workloads: workloads, Nodes: nodes}
	for i, to := range s.To {
		out.Moves = append(out.Moves, Move{From: from[i], Old: poolAt(state, from[i]), To: to, New: poolAt(state, to)})
	}
	return out, nil
}

// resolve finds the ranges to be emptied: those that the Migration names, or else every pool that pods get addresses from.
func resolve(s Spec, state *calico.State) ([]netip.Prefix, error) {
	if len(s.From) > 0 {
		return s.From, nil
	}
	var found []netip.Prefix
	for i := range state.Pools {
		p := &state.Pools[i]
		if p.CIDR.Addr().Is4() && p.ForPods() && !p.Spec.Disabled && !slices.Contains(s.To, p.CIDR) {
			found = append(found, p.CIDR)
		}
	}
	if len(found) != len(s.To) {
		return nil, &spec.Error{
			Field:   root + ".from",
			Problem: fmt.Sprintf("is empty, and there are %d enabled pools %v for %d targets", len(found), found, len(s.To)),
			Hint:    "name in from the range of the pool that each target takes over from",
		}
	}
	return found, nil
}

func poolAt(state *calico.State, cidr netip.Prefix) *calico.Pool {
	for i := range state.Pools {
		if state.Pools[i].CIDR == cidr {
			return &state.Pools[i]
		}
	}
	return nil
}

// within reports whether an address lies in one of the ranges.
func within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// PodsIn are the pods with an address in one of the ranges.
func (s *Survey) PodsIn(all []netip.Prefix) []*corev1.Pod {
	var in []*corev1.Pod
	for i := range s.Workloads.Pods {
		pod := &s.Workloads.Pods[i]
		if slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return within(all, a) }) {
			in = append(in, pod)
		}
	}
	return in
}

// guards reports whether a PodDisruptionBudget, as namespace/name, covers a pod that has to be restarted.
func (s *Survey) guards(budget string) bool {
	for i := range s.Workloads.Budgets {
		b := &s.Workloads.Budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || b.Namespace+"/"+b.Name != budget {
			continue
		}
		return slices.ContainsFunc(s.PodsIn(s.Spec.From), func(p *corev1.Pod) bool {
			return p.Namespace == b.Namespace && selector.Matches(labels.Set(p.Labels))
		})
	}
	return true // it came after the pods were read
}

// TunnelsIn are the nodes whose tunnel has an address in one of the ranges.
func (s *Survey) TunnelsIn(all []netip.Prefix) []string {
	var in []string
	for i := range s.Nodes {
		for _, a := range calico.TunnelAddresses(&s.Nodes[i]) {
			if within(all, a) {
				in = append(in, s.Nodes[i].Name)
				break
			}
		}
	}
	return in
}

// Counts of pods, for the status.
func (s *Survey) Counts() v1alpha1.Counts {
	count := func(in []netip.Prefix) int { return len(slices.DeleteFunc(s.PodsIn(in), isAgent)) }
	old, arrived := count(s.Spec.From), count(s.Spec.To)
	return v1alpha1.Counts{Total: old + arrived, Moved: arrived}
}

// changes say which pods are to be restarted: those with an address in what direction d leaves.
func (s *Survey) changes(d direction, now time.Time) rollout.Changes {
	c := rollout.Changes{Addresses: s.Spec.From, AddressesUntil: now, Slack: slack}
	if d == back {
		c.Addresses = s.Spec.To
	}
	var closed []time.Time
	for i := range s.Moves {
		if pool := s.Moves[i].left(d); pool != nil {
			closed = append(closed, disabledAt(pool))
		}
	}
	if len(closed) > 0 && !slices.ContainsFunc(closed, time.Time.IsZero) {
		c.AddressesUntil = slices.MaxFunc(closed, time.Time.Compare)
	}
	return c
}

// Switched reports whether the old pools give no address any more.
func (s *Survey) Switched() bool {
	if s.OnNodes() {
		return !s.away(forth)
	}
	return s.closed(forth)
}

// closed reports whether no pool gives addresses that direction d leaves.
func (s *Survey) closed(d direction) bool {
	return len(s.Moves) > 0 && !slices.ContainsFunc(s.Moves, func(m Move) bool { return m.left(d) != nil && !m.left(d).Spec.Disabled })
}

// Holds names what still has an address of the old ranges.
func (s *Survey) Holds() []string {
	var all []string
	for _, r := range s.Workloads.Left(s.changes(forth, time.Now())) {
		all = append(all, fmt.Sprintf("pod %s on node %s (%s)", r.Pod, r.Node, r.Reason))
	}
	for _, node := range s.TunnelsIn(s.Spec.From) {
		all = append(all, "the tunnel of node "+node)
	}
	return all
}
