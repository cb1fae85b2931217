//go:build apiserver && long

package servicecidr

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestBridgesHaveLabels: a policy that asks for a label refuses bridges, which is found before, and
// lets those with spec.serviceCIDR.bridgeLabels through. They keep the label when others take it
// off, and get one that is added later.
func TestBridgesHaveLabels(t *testing.T) {
	f := setup(t)
	cart := f.service("cart", at("10.96.3.7"), func(s *corev1.Service) { s.Labels = map[string]string{"team": "shop"} })
	f.refused(func(ctx context.Context) (*admission.Refusal, error) {
		return admission.Create(ctx, server, plainService("shop", "another", ""))
	}, func() {
		f.policy("teams", "has(object.metadata.labels) && 'team' in object.metadata.labels", rule("", "services", admissionv1.Create))
	})
	p, err := f.job.Examine(t.Context())
	f.must(err)
	if got := outcome(p, "RP1004"); got != findings.Fail {
		t.Errorf("control: RP1004 is %s for bridges without labels", got)
	}

	labelled := func(want map[string]string) {
		t.Helper()
		f.job.Migration.Spec.ServiceCIDR.BridgeLabels = want
		f.job.Spec, err = Validate(f.job.Migration)
		f.must(err)
		f.apply()
		have := f.get(bridge.Name(cart.Name, cart.UID))
		for key, value := range want {
			if have.Labels[key] != value {
				t.Errorf("the bridge has labels %v, want %v", have.Labels, want)
			}
		}
	}
	labelled(map[string]string{"team": "net"})
	if is := f.get("cart"); is.Spec.ClusterIP == cart.Spec.ClusterIP || is.Labels["team"] != "shop" {
		t.Errorf("the Service is at %s, with labels %v", is.Spec.ClusterIP, is.Labels)
	}
	have := f.get(bridge.Name(cart.Name, cart.UID))
	delete(have.Labels, "team")
	f.must(server.Update(t.Context(), have))
	labelled(map[string]string{"team": "net"})
	labelled(map[string]string{"team": "net", "cost": "none"})
	f.must(f.rollback())
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(have), &corev1.Service{}); err == nil {
		t.Error("the bridge is left")
	}
}
