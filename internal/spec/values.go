package spec

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Prefixes are ranges that the schema has seen. Others are left out: Validate says so.
func Prefixes(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

// Names are of the form namespace/name, which the schema has seen.
func Names(texts []string) []types.NamespacedName {
	var all []types.NamespacedName
	for _, text := range texts {
		namespace, name, _ := strings.Cut(text, "/")
		all = append(all, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return all
}
