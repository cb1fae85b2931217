package drained

import (
	"net/netip"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// result is the outcome of the only finding; empty, if there is none.
func result(all []findings.Result) string {
	if len(all) == 0 {
		return ""
	}
	return string(all[0].Outcome)
}

// TestHooksDoNotSilenceWebhooks: the operator's word for the webhook by its name does.
func TestHooksDoNotSilenceWebhooks(t *testing.T) {
	s := &switchover.Inventory{Webhooks: []switchover.Webhook{{
		Config: "ValidatingWebhookConfiguration guard", Name: "all.example.com", Service: "guard/guard",
		Rules: []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{Resources: []string{"pods"}}}},
	}}}
	s.Spec.Common.Hooks = []v1alpha1.Hook{{Name: "report", When: v1alpha1.BeforePhase, Of: []string{switchover.PhaseRemove}}}
	if got := result(checkWebhooks(Strategy{s})); got != "fail" {
		t.Errorf("with a hook it is %q", got)
	}
	s.Spec.Vouch.Webhooks = []string{"other.example.com"}
	if got := result(checkWebhooks(Strategy{s})); got != "fail" {
		t.Errorf("with a word for another it is %q", got)
	}
	s.Spec.Vouch.Webhooks = []string{"all.example.com"}
	if got := result(checkWebhooks(Strategy{s})); got != "" {
		t.Errorf("vouched for it is %q", got)
	}
}

// TestIgnoredProvesNothing: an address that is left out may be a balancer's, with its clients
// behind it.
func TestIgnoredProvesNothing(t *testing.T) {
	s := &switchover.Inventory{Spec: switchover.Spec{Quiet: true, Ignore: []netip.Prefix{netip.MustParsePrefix("172.30.0.50/32")}}}
	if got := result(checkIgnored(Strategy{s})); got != "unknown" {
		t.Errorf("it is %q", got)
	}
	s.Spec.VouchQuiet = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}
	if got := result(checkIgnored(Strategy{s})); got != "" {
		t.Errorf("vouched for it is %q", got)
	}
}
