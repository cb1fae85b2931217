package spec

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestBridgeLabels: labels are those of Kubernetes, and neither replumb's own nor such that direct
// traffic.
func TestBridgeLabels(t *testing.T) {
	for name, tt := range map[string]struct {
		key, value string
		bad        bool
	}{
		"plain":            {"team", "network", false},
		"with a prefix":    {"app.kubernetes.io/part-of", "replumb", false},
		"empty":            {"team", "", false},
		"no key":           {"", "x", true},
		"no label":         {"team!", "x", true},
		"no value":         {"team", "net work", true},
		"replumb's":        {"replumb.dev/role", "bridge", true},
		"below replumb's":  {"x.replumb.dev/role", "bridge", true},
		"like replumb's":   {"notreplumb.dev/role", "bridge", false},
		"for kube-proxy":   {"service.kubernetes.io/service-proxy-name", "other", true},
		"for the mirrorer": {"endpointslice.kubernetes.io/skip-mirror", "true", true},
	} {
		got := validateBridgeLabels(&v1alpha1.ServiceCIDRSpec{BridgeLabels: map[string]string{tt.key: tt.value}})
		if (len(got) > 0) != tt.bad {
			t.Errorf("%s: %v", name, got)
		}
	}
	m := migration(&v1alpha1.MigrationSpec{})
	m.Spec.ServiceCIDR.BridgeLabels = map[string]string{"replumb.dev/role": "x"}
	Default(m)
	if !slices.ContainsFunc(fields(m), func(f string) bool { return f == "spec.serviceCIDR.bridgeLabels" }) {
		t.Error("Validate does not look at labels")
	}
}

func fields(m *v1alpha1.Migration) (all []string) {
	for _, e := range Validate(m, phases()) {
		all = append(all, e.Field)
	}
	return all
}
