package nodes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migrations/nodes/placement"
)

// Room returns the pods of old nodes that find no place on the new ones that take pods.
func (s *Inventory) Room() []placement.Misfit {
	var pods []*corev1.Pod
	for _, l := range s.OldNodes() {
		pods = append(pods, l.Pods...)
	}
	return placement.Place(pods, s.ReadyNewNodes(), s.Pods)
}

// uneven are the references in policies to one network alone, by CIDR or by the addresses of nodes.
func (s *Inventory) uneven() []references.Reference {
	from, to := s.Spec.Old.CIDRs, s.Spec.New.CIDRs
	if len(from) == 0 {
		for _, n := range s.OldNodes() {
			if n.Node != nil {
				from = append(from, singles(n.Node)...)
			}
		}
	}
	if len(to) == 0 {
		for _, n := range s.NewNodes() {
			to = append(to, singles(n)...)
		}
	}
	scanner, err := references.New(from, to, nil)
	if err != nil || len(to) == 0 {
		return nil
	}
	var all []references.Reference
	for i := range s.Policies {
		all = append(all, scanner.Find(&s.Policies[i])...)
	}
	for _, o := range s.CalicoPolicies {
		all = append(all, scanner.FindCalico(o)...)
	}
	return slices.DeleteFunc(all, func(r references.Reference) bool { return r.Covered })
}

func singles(n *corev1.Node) (out []netip.Prefix) {
	for _, a := range addresses(n) {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func (s *Inventory) complete() bool { return len(s.NewNodes()) >= s.Wanted() }

// bounded is a pod whose volume keeps it where it is.
type bounded struct {
	pod *corev1.Pod
	// why it cannot be on any new node. Open says that this is not known before they are there.
	why  string
	open bool
}

// stuck are the pods of old nodes that a volume keeps, or may keep, from new ones, unless forced.
func (s *Inventory) stuck() []bounded {
	var out []bounded
	for _, l := range s.OldNodes() {
		for _, p := range l.Pods {
			if slices.Contains(s.Spec.Force, client.ObjectKeyFromObject(p)) {
				continue
			}
			for i := range p.Spec.Volumes {
				if why, open := s.bound(p, &p.Spec.Volumes[i]); why != "" {
					out = append(out, bounded{p, why, open})
				}
			}
		}
	}
	return out
}

// bound says why a volume cannot be on any new node. It is open while their labels are not known.
func (s *Inventory) bound(p *corev1.Pod, v *corev1.Volume) (why string, open bool) {
	if v.PersistentVolumeClaim == nil {
		return "", false
	}
	claim := s.Claims[types.NamespacedName{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}]
	if claim == nil {
		return "", false
	}
	volume := s.Volumes[claim.Spec.VolumeName]
	switch {
	case volume == nil:
		return "", false
	case volume.Spec.Local != nil || volume.Spec.HostPath != nil:
		return fmt.Sprintf("volume %s of claim %s is on the node itself", volume.Name, claim.Name), false
	case volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil:
		return "", false
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Sprintf("volume %s of claim %s: %v", volume.Name, claim.Name, err), false
	}
	if slices.ContainsFunc(s.NewNodes(), selector.Match) {
		return "", false
	}
	if s.complete() || s.Spec.New.excludes(volume.Spec.NodeAffinity.Required) {
		return fmt.Sprintf("volume %s of claim %s can be on no new node", volume.Name, claim.Name), false
	}
	return fmt.Sprintf(
		"volume %s of claim %s can be only where %s, and whether a new node will be there is not known",
		volume.Name,
		claim.Name,
		places(volume.Spec.NodeAffinity.Required),
	), true
}

// places are the labels that a volume asks for, in words.
func places(required *corev1.NodeSelector) string {
	var out []string
	for _, term := range required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			out = append(out,
				strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, strings.ToLower(string(e.Operator)), strings.Join(e.Values, ", "))))
		}
	}
	return strings.Join(out, " or ")
}

// excludes reports whether no node of a set can have a volume, by its selector.
func (s NodeSet) excludes(required *corev1.NodeSelector) bool {
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			wanted := s.values(e.Key)
			return e.Operator == corev1.NodeSelectorOpIn && len(wanted) > 0 &&
				!slices.ContainsFunc(wanted, func(v string) bool { return slices.Contains(e.Values, v) })
		})
	})
}

// values are those that the selector of a set wants a label to have; none, if it does not say.
func (s NodeSet) values(key string) []string {
	if s.selector == nil {
		return nil
	}
	all, _ := s.selector.Requirements()
	for i := range all {
		of := all[i].Operator()
		if all[i].Key() == key && (of == selection.In || of == selection.Equals || of == selection.DoubleEquals) {
			return all[i].Values().UnsortedList()
		}
	}
	return nil
}
