package servicecidr

import (
	"errors"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

func TestNetworksAreRanges(t *testing.T) {
	m := sample()
	m.Spec.ServiceCIDR.Networks = []string{"192.168.0.0/16", "192.168.1.1/16"}
	_, err := NewJob(Deps{}, m)
	var wrong *SpecError
	if !errors.As(err, &wrong) || wrong.Field != "spec.serviceCIDR.networks[1]" {
		t.Errorf("got %v", err)
	}
}

// TestNoRuleIsTwice also holds what is optional apart from what a write needs.
func TestNoRuleIsTwice(t *testing.T) {
	for _, role := range Roles() {
		seen := map[access.Right]bool{}
		for _, rule := range role.Rules {
			for _, r := range rule.Rights {
				if seen[r] {
					t.Errorf("%s: %s twice", role.Name, r)
				}
				seen[r] = true
				if rule.Optional && r.Verb != "list" && r.Verb != "get" && r.Resource != "events" &&
					r.Namespace != v1alpha1.JournalNamespace {
					t.Errorf("%s cannot be optional", r)
				}
			}
		}
	}
}
