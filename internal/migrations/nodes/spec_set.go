package nodes

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// Set is a v1alpha1.NodeSet that has been read.
type Set struct {
	// CIDRs are the ranges of the network.
	CIDRs []netip.Prefix

	selector    labels.Selector
	providerIDs []string
}

// newSet reads a set. What is wrong with its selector no rule of the schema can say.
func newSet(path string, s *v1alpha1.NodeSet) (set Set, bad field.ErrorList) {
	set = Set{providerIDs: s.ProviderIDs, CIDRs: spec.Prefixes(s.CIDRs)}
	if s.Selector == nil {
		return set, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Selector)
	switch {
	case err != nil:
		bad = append(bad, spec.Wrong(path+".selector", err.Error(), "write matchLabels, or matchExpressions"))
	case selector.Empty():
		bad = append(bad, spec.Wrong(path+".selector", "chooses every node", "name a label, or leave it out"))
	}
	set.selector = selector
	return set, bad
}

// Has reports whether a node is meant.
func (s Set) Has(n *corev1.Node) bool {
	if s.selector == nil && len(s.providerIDs) == 0 {
		return s.isInside(n)
	}
	return (s.selector == nil || s.selector.Matches(labels.Set(n.Labels))) &&
		(len(s.providerIDs) == 0 || slices.Contains(s.providerIDs, n.Spec.ProviderID))
}

// WrongNetwork says what is wrong with a node that is meant and is not in the network; nothing, if it is.
func (s Set) WrongNetwork(n *corev1.Node) string {
	if len(s.CIDRs) == 0 || s.isInside(n) {
		return ""
	}
	return fmt.Sprintf("node %s has the addresses %v, none of which is in %v", n.Name, addresses(n), s.CIDRs)
}

// isInside reports whether a node has an internal address in the ranges.
func (s Set) isInside(n *corev1.Node) bool {
	return slices.ContainsFunc(addresses(n), func(a netip.Addr) bool {
		return slices.ContainsFunc(s.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// addresses are the internal ones of a node.
func addresses(n *corev1.Node) []netip.Addr {
	var all []netip.Addr
	for _, a := range n.Status.Addresses {
		if parsed, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			all = append(all, parsed.Unmap())
		}
	}
	return all
}
