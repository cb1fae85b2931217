package bridge

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

func cart() *Bridge {
	return &Bridge{
		Migration: "m", Form: v1alpha1.BridgeLoadBalancer,
		Old: netip.MustParseAddr("10.96.3.7"), New: netip.MustParseAddr("172.24.3.7"),
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "cart-uid"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "cart"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}},
			},
		},
	}
}

// answers are where a bridge of any form answers.
func answers(svc *corev1.Service) string {
	all := svc.Spec.ExternalIPs
	for _, i := range svc.Status.LoadBalancer.Ingress {
		all = append(all, i.IP)
	}
	return strings.Join(all, " ")
}

func TestAnswers(t *testing.T) {
	want := map[Answers]string{Both: "10.96.3.7 172.24.3.7", OldOnly: "10.96.3.7", NewOnly: "172.24.3.7"}
	for _, form := range []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs} {
		for asked := range want {
			b := cart()
			b.Form, b.Answers = form, asked
			made := b.Build()
			if got := answers(made); got != want[asked] {
				t.Errorf("%s %d: answers at %s, want %s", form, asked, got, want[asked])
			}
			for other := range want {
				b.Answers = other
				field := map[v1alpha1.BridgeForm]string{
					v1alpha1.BridgeLoadBalancer: "status.loadBalancer.ingress", v1alpha1.BridgeExternalIPs: "externalIPs",
				}[form]
				var drift *DriftError
				is := errors.As(Difference(made, b.Build(), true), &drift)
				if is != (other != asked) || is && drift.Field != field {
					t.Errorf("%s: one that answers as %d is wanted as %d: %v", form, asked, other, drift)
				}
				if grows := strings.Contains(want[asked], want[other]); b.Grows(made) == grows {
					t.Errorf("%s: from %d to %d grows: %v", form, asked, other, b.Grows(made))
				}
			}
		}
	}
}

// TestSteering: annotations by which endpoints are chosen are the bridge's, too.
func TestSteering(t *testing.T) {
	b := cart()
	plain := b.Build()
	b.Service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto", "example.com/a": "b"}
	steered := b.Build()
	if steered.Annotations[corev1.AnnotationTopologyMode] != "Auto" || steered.Annotations["example.com/a"] != "" {
		t.Errorf("annotations %v", steered.Annotations)
	}
	for _, err := range []error{Difference(plain, steered, true), Difference(steered, plain, true)} {
		var drift *DriftError
		if !errors.As(err, &drift) || drift.Field != "annotations" {
			t.Errorf("got %v", err)
		}
	}
}
