package spec

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/spec/window"
)

func validateWindows(windows []v1alpha1.Window) (all field.ErrorList) {
	for i, w := range windows {
		var bad *window.Error
		if errors.As(window.Check(w), &bad) && bad.Field == "timeZone" {
			all = append(all, Wrong(fmt.Sprintf("spec.windows[%d].%s", i, bad.Field), bad.Problem, bad.Hint))
		}
	}
	return all
}

// validateHooks looks up phases, which depend on the kind.
func validateHooks(m *v1alpha1.MigrationSpec, phases []string) (all field.ErrorList) {
	for i, h := range m.Hooks {
		known, what := tier.Names(m), "tier"
		if h.When == v1alpha1.BeforePhase || h.When == v1alpha1.AfterPhase {
			known, what = phases, "phase"
		}
		for j, of := range h.Of {
			if !slices.Contains(known, of) {
				field := fmt.Sprintf("spec.hooks[%d].of[%d]", i, j)
				all = append(all, Wrongf(field, "use one of "+strings.Join(known, ", "), "there is no %s %q", what, of))
			}
		}
	}
	return all
}

const mostRequests = 1000

// validateProbes refuses probes of the nodes themselves, which have local services such as cloud
// metadata, and rates that would be a nuisance. Agents enforce the same.
func validateProbes(p *v1alpha1.ProofSpec) (all field.ErrorList) {
	sum := 0
	for i := range p.Probes {
		probe, path := &p.Probes[i], fmt.Sprintf("spec.proof.probes[%d]", i)
		sum += cmp.Or(probe.Rate, p.Rate)
		host := probe.Address
		if u, err := url.Parse(host); probe.Kind == v1alpha1.RequestHTTP && err == nil {
			host = u.Host
		}
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
		near := err == nil &&
			(addr.Unmap().IsLoopback() || addr.Unmap().IsLinkLocalUnicast() || addr.IsMulticast() || addr.Unmap().IsUnspecified())
		if near || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
			all = append(
				all,
				Wrong(path+".address", "is an address of the node itself, or of its link alone", "name what clients of the cluster use"),
			)
		}
	}
	if sum > mostRequests {
		all = append(all, Wrongf("spec.proof.probes", "lower spec.proof.probes[].rate",
			"send %d requests a second together from every node, and at most %d are sent", sum, mostRequests))
	}
	return all
}

// validateTiers reads selectors, and refuses a Service in two tiers, which may be too many for a
// schema rule.
func validateTiers(m *v1alpha1.MigrationSpec) (all field.ErrorList) {
	owner := map[string]string{}
	for i, t := range m.Tiers {
		path := fmt.Sprintf("spec.tiers[%d]", i)
		if _, err := metav1.LabelSelectorAsSelector(t.Selector); err != nil {
			all = append(all, Wrong(path+".selector", err.Error(), "write it as in a Deployment: matchLabels, matchExpressions"))
		}
		for j, key := range t.Services {
			at := fmt.Sprintf("%s.services[%d]", path, j)
			if first, ok := owner[key]; ok {
				all = append(all, Wrongf(at, "name a Service once", "%s is also %s", key, first))
			}
			owner[key] = at
		}
	}
	return all
}
