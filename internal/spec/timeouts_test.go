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
	want := fmt.Sprintf("Default: %s of a hook or a look-up of tiers, %s of every other.", hook, strings.TrimSuffix(action.String(), "0s"))
	if !strings.Contains(string(types), want) {
		t.Errorf("calls_types.go does not say %q", want)
	}
}
