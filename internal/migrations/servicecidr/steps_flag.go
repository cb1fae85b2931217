package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

const annotationNoted = v1alpha1.AnnotationNoted

// givesOut proves that addresses of a range are given out, by a throw-away Service that is given one. API servers of different flags rewrite
// the bitmap in turns, and refuse what is asked of that of another; from when all agree on, each repairs it when it starts, and every three
// minutes (doRunOnce in k8s.io/kubernetes pkg/registry/core/service/ipallocator/controller/repair.go). It is one for all of them.
type givesOut struct {
	client    client.Client
	migration string
	want      netip.Prefix
}

// repaired is how long it may take: a repair comes after three minutes at the latest.
const repaired = 4 * time.Minute

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
		// Whatever it is, it may pass: an API server that has just started, or the guard that has kept an address.
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

// settle has reserved addresses be kept by the API servers that have come into their range: from then on no Service is given one.
type settle struct {
	client client.Client
	survey *Survey
	in     netip.Prefix
}

func (s settle) step() engine.Step {
	return &engine.Observed[[]networkingv1.IPAddress]{
		Name:  "reserve/" + s.in.String(),
		About: fmt.Sprintf("Have API servers keep the addresses in %s that are reserved", s.in),
		As:    engine.RoleOwn,
		Look:  s.look,
		Write: s.write,
		Proof: func(ctx context.Context) error {
			left, err := s.noted(ctx)
			if err == nil && len(left) > 0 {
				return engine.NotYet("address %s is only noted", left[0].Name)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			var changes []engine.Change
			for _, o := range s.survey.unreserved(s.in) {
				changes = append(changes, engine.Change{Verb: "update", Object: "IPAddress " + o.Address.String() + " (reserved)"})
			}
			if len(changes) == 0 { // what is reserved meanwhile
				changes = append(
					changes,
					engine.Change{Verb: "update", Object: "IPAddress, if one in " + s.in.String() + " is reserved by then"},
				)
			}
			return changes, nil
		},
	}
}

// noted are the reservations of the migration that are no more than notes.
func (s settle) noted(ctx context.Context) (left []networkingv1.IPAddress, err error) {
	all := &networkingv1.IPAddressList{}
	err = s.client.List(ctx, all, client.MatchingLabels{v1alpha1.LabelMigration: s.survey.Spec.Name, v1alpha1.LabelRole: v1alpha1.RoleHold})
	if err != nil {
		return nil, fmt.Errorf("listing held addresses: %w", err)
	}
	for i := range all.Items {
		if isNoted(&all.Items[i], s.in) {
			left = append(left, all.Items[i])
		}
	}
	return left, nil
}

func (s settle) look(ctx context.Context) (engine.State, []networkingv1.IPAddress, error) {
	left, err := s.noted(ctx)
	switch {
	case err != nil:
		return engine.Unknown, nil, err
	case len(left) == 0:
		return engine.Done, nil, nil
	}
	return engine.Pending, left, nil
}

func (s settle) write(ctx context.Context, left []networkingv1.IPAddress) error {
	var taken []error
	for i := range left {
		ip := &left[i]
		err := s.client.Update(ctx, ip, client.FieldOwner(v1alpha1.FieldManager))
		switch {
		case apierrors.IsAlreadyExists(err):
			if err := s.yield(ctx, ip); err != nil {
				taken = append(taken, err)
			}
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("address %s: %w", ip.Name, err)
		}
	}
	return errors.Join(taken...)
}

// yield gives a reservation up whose Service has the address, and says who else has it.
func (s settle) yield(ctx context.Context, ip *networkingv1.IPAddress) error {
	a, err := netip.ParseAddr(ip.Name)
	if err != nil {
		return err
	}
	services := &corev1.ServiceList{}
	if err := s.client.List(ctx, services, client.MatchingFields{"spec.clusterIP": ip.Name}); err != nil {
		return fmt.Errorf("services at %s: %w", ip.Name, err)
	}
	if len(services.Items) > 0 { // there is one at most
		svc, owner := &services.Items[0], client.ObjectKeyFromObject(&services.Items[0])
		if mine, _ := bridge.HeldFor(ip); bridgeKey(svc) != mine {
			return &bridge.TakenError{Address: a, By: "services " + owner.String()}
		}
		return client.IgnoreNotFound(s.client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID}))
	}
	// One that was given back: a repair releases it.
	return engine.NotYet("address %s is taken, and no Service has it", ip.Name)
}
