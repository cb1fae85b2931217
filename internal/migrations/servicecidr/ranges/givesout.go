package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// givesOut proves by a throw-away Service that addresses of a range are given out. API servers of
// different flags overwrite each other's bitmap until each repairs it, at its start and every three
// minutes (doRunOnce in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator/controller/repair.go).
type givesOut struct {
	client    client.Client
	migration string
	want      netip.Prefix
}

func (g givesOut) step() engine.Step {
	return &engine.Observed[struct{}]{
		Name:  "gives/" + g.want.String(),
		About: fmt.Sprintf("Verify that Services are given addresses in %s", g.want),
		Limit: repaired,
		As:    engine.RoleOwn,
		Look:  func(context.Context) (engine.State, struct{}, error) { return engine.Pending, struct{}{}, nil },
		Write: func(ctx context.Context, _ struct{}) error { return g.try(ctx) },
		Proof: func(context.Context) error { return nil },
		Changes: func() ([]engine.Change, error) {
			const name = "Service " + v1alpha1.SystemNamespace + "/given-…"
			return []engine.Change{
				{Verb: "create", Object: name, Body: g.build()},
				{Verb: "delete", Object: name},
				{Verb: "delete", Object: "EndpointSlice " + v1alpha1.SystemNamespace + "/… (that an interrupted run left)"},
			}, nil
		},
	}
}

func (g givesOut) build() *corev1.Service {
	family := corev1.IPv4Protocol
	if g.want.Addr().Is6() {
		family = corev1.IPv6Protocol
	}
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "given-",
			Labels: map[string]string{v1alpha1.LabelMigration: g.migration, v1alpha1.LabelRole: v1alpha1.RoleNudge},
		},
		Spec: corev1.ServiceSpec{
			IPFamilies: []corev1.IPFamily{family},
			Ports:      []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func (g givesOut) try(ctx context.Context) error {
	if err := bridge.RemoveThrowaways(ctx, g.client, g.migration); err != nil { // that a killed run left
		return err
	}
	svc := g.build()
	if err := g.client.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		// Any refusal may pass: of an API server that has just started, or of the guard.
		return engine.NotYet("no Service can be given an address in %s yet: %w", g.want, err)
	}
	if err := g.client.Delete(ctx, svc, client.Preconditions{UID: &svc.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	a, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil || !g.want.Contains(a) {
		return engine.NotYet("a Service was given %s, which is not in %s: an API server still has another --service-cluster-ip-range",
			svc.Spec.ClusterIP, g.want)
	}
	return nil
}

// repaired covers the three minutes after which a repair comes at the latest.
const repaired = 4 * time.Minute
