package spec

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestTimeoutsAreAsDescribed: kubectl explain tells the defaults of calls that the code fills in.
// The schema has one type for all of them.
func TestTimeoutsAreAsDescribed(t *testing.T) {
	m, err := Parse([]byte(`
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: m}
spec:
  serviceCIDR: {to: [172.24.0.0/16], actions: {certificates: {exec: {command: [issue]}}}}
  tierLookup: {exec: {command: [tiers]}}
  hooks: [{name: h, when: BeforePhase, exec: {command: [hook]}}]
`))
	if err != nil {
		t.Fatal(err)
	}
	Default(m)
	hook, action := m.Spec.Hooks[0].Timeout.Duration, m.Spec.ServiceCIDR.Actions.Certificates.Timeout.Duration
	if m.Spec.TierLookup.Timeout.Duration != hook {
		t.Errorf("a look-up has %s, and a hook %s", m.Spec.TierLookup.Timeout.Duration, hook)
	}
	types, err := os.ReadFile("../../api/v1alpha1/calls_types.go")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("Hooks and the look-up of tiers: %s by default, 10m at most. All others: %s by default, 6h at most.",
		hook, strings.TrimSuffix(action.String(), "0s"))
	if !strings.Contains(string(types), want) {
		t.Errorf("calls_types.go does not say %q", want)
	}
}

// TestTimeoutsAreBounded: the limits are those that the same sentence names.
func TestTimeoutsAreBounded(t *testing.T) {
	const (
		hook   = "hooks: [{name: h, when: BeforePhase, exec: {command: [hook]}, timeout: %s}]"
		lookup = "tierLookup: {exec: {command: [tiers]}, timeout: %s}"
		notify = "notify: [{url: 'https://a', timeout: %s}]"
		action = "serviceCIDR: {to: [172.24.0.0/16], actions: {certificates: {exec: {command: [issue]}, timeout: %s}}}"
	)
	for _, tt := range []struct{ field, longest, longer string }{
		{hook, "10m", "11m"}, {lookup, "10m", "11m"}, {notify, "10m", "11m"}, {action, "6h", "6h1m"},
	} {
		for limit, fits := range map[string]bool{tt.longest: true, tt.longer: false} {
			body := fmt.Sprintf(tt.field, limit)
			if !strings.HasPrefix(body, "serviceCIDR") {
				body += ", serviceCIDR: {to: [172.24.0.0/16]}"
			}
			_, err := Read(Source{Name: "m.yaml", Body: []byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {" + body + "}\n")})
			if (err == nil) != fits {
				t.Errorf("%s: %v", body, err)
			}
		}
	}
}
