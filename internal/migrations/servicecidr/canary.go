package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// canaryStep moves a throw-away Service there and back before any other is touched: what the cluster's admission, its
// allocators or its kube-proxies refuse, they refuse to this one.
type canaryStep struct {
	steps *Steps
	// pool has the addresses of the range that is to be emptied.
	pool *cidr.Pool
}

var (
	_ engine.Previewer = (*canaryStep)(nil)
	_ engine.Abandoner = (*canaryStep)(nil)
)

func (*canaryStep) ID() string { return "canary" }

func (*canaryStep) Title() string { return "Move a throw-away Service there and back" }

// Deadline implements engine.Timed: it is several steps in one.
func (*canaryStep) Deadline() time.Duration { return 5 * time.Minute }

// State implements engine.Step: what an earlier canary proved may no longer hold.
func (*canaryStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *canaryStep) Do(ctx context.Context) error {
	if err := s.Abandon(ctx); err != nil { // one that a killed run left
		return err
	}
	svc, err := s.create(ctx)
	if err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	if err := s.move(ctx, svc); err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	return s.Abandon(ctx)
}

// move drives the steps of any other Service, one after the other.
func (s *canaryStep) move(ctx context.Context, svc *corev1.Service) error {
	e := &Entry{Service: svc, Position: Waiting}
	if err := s.aim(e); err != nil {
		return err
	}
	for _, step := range []engine.Step{
		s.steps.Bridge(e), s.steps.barriers.Step("the canary"), s.steps.Hop(e, engine.Forward), s.steps.Narrow(e, engine.Forward),
		s.steps.Bridge(e), s.steps.Hop(e, engine.Backward), s.steps.Narrow(e, engine.Backward),
	} {
		if err := engine.Drive(ctx, step); err != nil {
			return fmt.Errorf("%s: %w", step.Title(), err)
		}
	}
	return nil
}

func (s *canaryStep) aim(e *Entry) (err error) {
	if e.Old, err = netip.ParseAddr(e.Service.Spec.ClusterIP); err != nil {
		return err
	}
	e.New, err = s.steps.pool.Highest()
	return err
}

// create makes the Service in the range that is to be emptied. Its only endpoint leads nowhere.
func (s *canaryStep) create(ctx context.Context) (*corev1.Service, error) {
	for {
		own, err := s.pool.Highest()
		if err != nil {
			return nil, err
		}
		svc := s.build()
		svc.Spec.ClusterIP = own.String()
		err = s.steps.client.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil {
			return svc, s.endpoints(ctx, svc)
		}
		if !bridge.IsTaken(err) {
			return nil, bridge.NotReadyYet(err)
		}
	}
}

func (s *canaryStep) labels() map[string]string {
	return map[string]string{v1alpha1.LabelMigration: s.steps.migration, v1alpha1.LabelRole: v1alpha1.RoleCanary}
}

func (s *canaryStep) build() *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "canary-", Labels: s.labels(),
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}}},
	}
}

func (s *canaryStep) endpoints(ctx context.Context, svc *corev1.Service) error {
	ready, port, tcp := true, int32(9), corev1.ProtocolTCP
	labels, family := s.labels(), bridge.AddressType(svc)
	labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = svc.Name, "replumb.dev"
	return s.steps.client.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID}},
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{bridge.Documented(family)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
	}, client.FieldOwner(v1alpha1.FieldManager))
}

// Verify implements engine.Step: each step that took it there and back was proven by itself.
func (*canaryStep) Verify(context.Context) error { return nil }

// Abandon takes the canary away, its bridge and its reservations, also those of an earlier run.
func (s *canaryStep) Abandon(ctx context.Context) error {
	return removeCanaries(ctx, s.steps.client, s.steps.migration)
}

// Preview implements engine.Previewer. The canary's bridge, its reservations and its patches are those of any Service.
func (s *canaryStep) Preview() ([]engine.Change, error) {
	const name = v1alpha1.SystemNamespace + "/canary-…"
	return []engine.Change{
		{Verb: "create", Object: "Service " + name, Body: s.build()},
		{Verb: "create", Object: "EndpointSlice " + name},
		{Verb: "create", Object: "Service " + name + " (its bridge)"},
		{Verb: "create", Object: "IPAddress, which keeps the address that it leaves"},
		{Verb: "patch", Object: "Service " + name + " (its bridge)"},
		{Verb: "patch", Object: "Service " + name},
		{Verb: "delete", Object: "IPAddress, which kept that address"},
		{Verb: "delete", Object: "Service " + name + " (its bridge)"},
		{Verb: "delete", Object: "Service " + name},
	}, nil
}
