package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Ingress controllers act on a change at once after a quiet time, and on later ones when an
// interval is over: Traefik 2 s (providersThrottleDuration in
// pkg/provider/aggregator/aggregator.go), ingress-nginx 0.3 times a second (sync-rate-limit,
// pkg/util/queue).
const (
	// Together bounds the Services of one interval; a slow API server leaves some to the next.
	Together = 16
	// begun is how long controllers get to see a change and to act on it.
	begun = 300 * time.Millisecond
	// leaveWithin has Services arrive before Traefik's interval is over.
	leaveWithin = 1200 * time.Millisecond
	// rest is two intervals of ingress-nginx, or three of Traefik, without a change.
	rest = 6800 * time.Millisecond
	// patience is how many intervals may go by in which no Service leaves.
	patience = 3
)

// Throttle has Services hop within an interval of ingress controllers, which see no state in
// between. An EndpointSlice per Service with a terminating endpoint begins it: Traefik makes a
// server without requests of it ("fenced"), ingress-nginx and kube-proxy pass it over. Other
// changes of routes may still end an interval between two patches.
type Throttle struct {
	Client    client.Client
	Migration string

	mu sync.Mutex
	// opened is when the change was made, latest when something last was that controllers see.
	opened, latest time.Time
	// arrived are Services that hopped in the interval; futile counts intervals in a row without
	// any.
	arrived, futile int
}

// Routed is a Service of ingress controllers, with the address of its bridge.
type Routed struct {
	Service *corev1.Service
	Old     netip.Addr
}

// Begin returns early in an interval, and begins one for all that hop together if there is none.
func (t *Throttle) Begin(ctx context.Context, all ...Routed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open() {
		return nil
	}
	if err := t.rest(ctx); err != nil {
		return err
	}
	if t.futile++; t.arrived > 0 {
		t.futile = 0
	}
	t.arrived, t.opened = 0, time.Now()
	if err := t.change(ctx, all); err != nil {
		return err
	}
	t.latest = time.Now()
	return pass(ctx, begun)
}

func (t *Throttle) change(ctx context.Context, all []Routed) error {
	eg, ctx := errgroup.WithContext(ctx)
	for _, r := range all {
		eg.Go(func() error {
			err := t.Client.Create(ctx, r.nudge(t.Migration), client.FieldOwner(v1alpha1.FieldManager))
			if client.IgnoreAlreadyExists(err) != nil {
				return fmt.Errorf("having ingress controllers wait for service %s/%s: %w", r.Service.Namespace, r.Service.Name, err)
			}
			return nil
		})
	}
	return eg.Wait()
}

// Open returns nil while a Service may leave its address. It gives up on an API server that is too
// slow for any to leave in time.
func (t *Throttle) Open() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open() && t.futile < patience {
		return engine.NotYet("the interval of ingress controllers is nearly over; the Service leaves in the next")
	}
	return nil
}

func (t *Throttle) open() bool { return !t.opened.IsZero() && time.Since(t.opened) < leaveWithin }

// Rest lets controllers come to rest, so that Begin has not to.
func (t *Throttle) Rest(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rest(ctx)
}

func (t *Throttle) rest(ctx context.Context) error {
	if err := t.end(ctx); err != nil {
		return err
	}
	return pass(ctx, max(0, rest-time.Since(t.latest)))
}

func (t *Throttle) Arrived() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arrived++
	t.latest = time.Now()
}

// End removes what began an interval; in it, controllers see both as one.
func (t *Throttle) End(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end(ctx)
}

func (t *Throttle) end(ctx context.Context) error {
	left, err := t.left(ctx)
	if err != nil {
		return err
	}
	for i := range left {
		if err := client.IgnoreNotFound(t.Client.Delete(ctx, &left[i])); err != nil {
			return fmt.Errorf("removing EndpointSlice %s/%s: %w", left[i].Namespace, left[i].Name, err)
		}
		t.latest = time.Now()
	}
	t.opened = time.Time{}
	return nil
}

// Ended returns nil if nothing is left of an interval.
func (t *Throttle) Ended(ctx context.Context) error {
	left, err := t.left(ctx)
	if err == nil && len(left) > 0 {
		err = engine.NotYet("EndpointSlice %s/%s is left", left[0].Namespace, left[0].Name)
	}
	return err
}

func (t *Throttle) left(ctx context.Context) ([]discoveryv1.EndpointSlice, error) {
	all := &discoveryv1.EndpointSliceList{}
	ours := client.MatchingLabels{v1alpha1.LabelMigration: t.Migration, v1alpha1.LabelRole: v1alpha1.RoleNudge}
	if err := t.Client.List(ctx, all, ours); err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	return all.Items, nil
}

// nudge is an EndpointSlice with a terminating endpoint, at an address that answers.
func (r Routed) nudge(migration string) *discoveryv1.EndpointSlice {
	svc := r.Service
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: NudgeOf(svc),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: managedBy,
				v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleNudge,
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{r.Old.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)},
		}},
	}
	if r.Old.Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port, AppProtocol: p.AppProtocol})
	}
	return s
}

// NudgeOf is the name of the EndpointSlice that begins an interval for a Service.
func NudgeOf(svc *corev1.Service) string { return Name(svc.Name, svc.UID) + "-nudge" }
