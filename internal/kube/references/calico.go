package references

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FindCalico lists references in nets and notNets of a Calico policy (EntityRule in
// github.com/projectcalico/api pkg/apis/projectcalico/v3/networkpolicy.go), unless those of one
// rule make up for each other.
func (s *Scanner) FindCalico(o *unstructured.Unstructured) []Reference {
	w := &walk{scanner: s}
	w.object("Calico "+o.GetKind(), o)
	for _, side := range []string{"ingress", "egress"} {
		rules, _, _ := unstructured.NestedSlice(o.Object, "spec", side)
		for i := range rules {
			rule, _ := rules[i].(map[string]any)
			for _, end := range []string{"source", "destination"} {
				for _, field := range []string{"nets", "notNets"} {
					nets, _, _ := unstructured.NestedStringSlice(rule, end, field)
					w.nets(fmt.Sprintf("spec.%s[%d].%s.%s", side, i, end, field), nets)
				}
			}
		}
	}
	return w.found
}

func (w *walk) nets(field string, nets []string) {
	var together netipx.IPSetBuilder
	for _, text := range nets {
		if p, err := netip.ParsePrefix(text); err == nil {
			together.AddPrefix(p)
		}
	}
	set, err := together.IPSet()
	if err != nil || w.even(set) {
		return
	}
	for _, text := range slices.Compact(slices.Sorted(slices.Values(nets))) {
		if p, err := netip.ParsePrefix(text); err == nil && w.scanner.fromSet.OverlapsPrefix(p) {
			w.add(field, text)
		}
	}
}
