//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/crash"
)

// ingress leads requests to a Service.
func (f *fixture) ingress(service string) {
	f.Helper()
	f.temporary(&networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: service},
		Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}},
		}},
	})
}

// nudges are the EndpointSlices that ingress controllers are given to see.
func (f *fixture) nudges() []discoveryv1.EndpointSlice {
	f.Helper()
	all := &discoveryv1.EndpointSliceList{}
	f.must(server.List(f.Context(), all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleNudge}))
	return all.Items
}

// TestIngressControllersAreThrottled: they are given another endpoint to see right before a Service
// that they lead to hops, in either direction, and nothing of that is left. Of a Service that they
// do not lead to they see nothing more.
func TestIngressControllersAreThrottled(t *testing.T) {
	f := setup(t)
	cart := f.service("cart", at("10.96.3.7"))
	plain := f.service("plain", at("10.96.3.8"))
	f.ingress("cart")
	r := &requests{WithWatch: f.job.Deps.Cluster.WithWatch}
	watched := *f.job.Deps.Cluster
	watched.WithWatch = r
	f.through(&watched, func() {
		f.apply()
		f.must(f.rollback())
	})
	for _, way := range []string{"hop/", "return/"} {
		made := r.made[way+"shop/cart"]
		nudge, leaves := slices.Index(made, "create "+bridge.NudgeOf(cart)), slices.Index(made, "patch cart")
		if nudge < 0 || leaves < nudge {
			t.Errorf("%s: %v", way, made)
		}
		if made := r.made[way+"shop/plain"]; slices.Contains(made, "create "+bridge.NudgeOf(plain)) {
			t.Errorf("%s: %v", way, made)
		}
	}
	if left := f.nudges(); len(left) > 0 {
		t.Errorf("left are %s and %d more", left[0].Name, len(left)-1)
	}
}

// immortal has the process killed when it takes an EndpointSlice away.
type immortal struct{ client.WithWatch }

func (c *immortal) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if _, is := o.(*discoveryv1.EndpointSlice); is && o.GetLabels()[v1alpha1.LabelRole] == v1alpha1.RoleNudge {
		return crash.ErrKilled
	}
	return c.WithWatch.Delete(ctx, o, opts...)
}

// TestThrottleOfAKilledRunEnds: what a run that was killed has left for ingress controllers to see,
// the next takes away.
func TestThrottleOfAKilledRunEnds(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.ingress("cart")
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &immortal{WithWatch: server.WithWatch}
	var err error
	f.through(&cut, func() { _, err = f.job.Apply(t.Context(), f.runner) })
	if !errors.Is(err, crash.ErrKilled) || len(f.nudges()) != 1 {
		t.Fatalf("%v, and %d are left", err, len(f.nudges()))
	}
	f.again()
	f.apply()
	if left := f.nudges(); len(left) > 0 {
		t.Errorf("%s is left", left[0].Name)
	}
}

// TestAPIServersFindTheBridge: between its patches a Service that API servers call leads to its old
// address, at which its bridge answers, and any other to the name of its bridge.
func TestAPIServersFindTheBridge(t *testing.T) {
	f := setup(t)
	f.service("hook", at("10.96.3.7"))
	cart := f.service("cart", at("10.96.3.8"))
	none, open := admissionv1.SideEffectClassNone, admissionv1.Ignore
	f.temporary(&admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "judge"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "judge.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &open,
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "shop", Name: "hook"}},
			Rules:        []admissionv1.RuleWithOperations{rule("batch", "cronjobs", admissionv1.Create)},
		}},
	})
	w, err := server.Watch(t.Context(), &corev1.ServiceList{}, client.InNamespace("shop"))
	f.must(err)
	hosts := make(chan map[string][]string)
	go func() {
		all := map[string][]string{}
		for e := range w.ResultChan() {
			if svc, is := e.Object.(*corev1.Service); is && svc.Spec.ExternalName != "" {
				all[svc.Name] = append(all[svc.Name], svc.Spec.ExternalName)
			}
		}
		hosts <- all
	}()
	f.apply()
	f.must(f.rollback())
	w.Stop()
	seen := <-hosts
	if want := []string{"10.96.3.7", "10.96.3.7"}; !slices.Equal(seen["hook"], want) {
		t.Errorf("hook leads to %v, want %v", seen["hook"], want)
	}
	host := services.BridgeHost(cart, "cluster.local")
	if want := []string{host, host}; !slices.Equal(seen["cart"], want) {
		t.Errorf("cart leads to %v, want %v", seen["cart"], want)
	}
}
