package hop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Canary moves a throw-away Service there and back first, and so meets the refusals of admission,
// allocators and kube-proxies before any other does.
type Canary struct {
	Steps *Steps
	// Pool has the addresses of the range that is to be emptied.
	Pool *cidr.Allocator
	Way  Way
}

// Way is how Services move, and where their other address answers meanwhile.
type Way struct {
	Strategy v1alpha1.Strategy
	Overlap  v1alpha1.OverlapForm
}

var (
	_ engine.Previewer = (*Canary)(nil)
	_ engine.Abandoner = (*Canary)(nil)
)

func (s *Canary) ID() string {
	id, e := "canary", s.entry(nil)
	if !e.Hops() {
		id += "/etcd"
	}
	if e.Hops() && !e.KeepsItself() {
		return id
	}
	return id + "/" + strings.ToLower(string(s.Way.Overlap))
}

func (s *Canary) Title() string {
	const move = "Move a throw-away Service there and back"
	switch e := s.entry(nil); {
	case e.KeepsItself() && e.Hops():
		return move + ", which keeps its old address itself, as " + formText(s.Way.Overlap)
	case e.KeepsItself():
		return move + " in etcd, which keeps its old address itself, as " + formText(s.Way.Overlap)
	case !e.Hops():
		return move + " in etcd"
	}
	return move
}

func (s *Canary) entry(svc *corev1.Service) *services.Entry {
	return &services.Entry{
		Service: svc, Position: services.Waiting, Strategy: s.Way.Strategy, Overlap: services.OverlapChoice{Form: s.Way.Overlap},
	}
}

// Deadline: it is several steps in one.
func (*Canary) Deadline() time.Duration { return 5 * time.Minute }

// State: what an earlier canary proved may no longer hold.
func (*Canary) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *Canary) Do(ctx context.Context) error {
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

func (s *Canary) move(ctx context.Context, svc *corev1.Service) error {
	old, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		return err
	}
	target, err := s.Steps.Pool.Highest()
	if err != nil {
		return err
	}
	e := s.entry(svc)
	e.Old, e.New = old, target
	there := []engine.Step{s.Steps.Bridge(e), s.Steps.Barriers.Step("the canary"), s.Steps.Hop(e, engine.Forward)}
	back := []engine.Step{s.Steps.Bridge(e), s.Steps.Hop(e, engine.Backward)}
	if !e.Exchanges() {
		there, back = append(there, s.Steps.Narrow(e, engine.Forward)), append(back, s.Steps.Narrow(e, engine.Backward))
	}
	for _, step := range append(there, back...) {
		if err := engine.Drive(ctx, step); err != nil {
			return fmt.Errorf("%s: %w", step.Title(), err)
		}
		if by := s.Steps.Tracker.Of(e).stranded; by != "" {
			return &fault.Hinted{
				Err: fmt.Errorf("service %s %s", e.Key(), by),
				Hint: "no other Service has left its address. Exempt namespace " + v1alpha1.SystemNamespace + " from what refuses that, " +
					"and Services that move as well; then run the same command again",
			}
		}
	}
	return nil
}

// create makes the Service in the range to empty. Its only endpoint leads nowhere.
func (s *Canary) create(ctx context.Context) (*corev1.Service, error) {
	for {
		own, err := s.Pool.Highest()
		if err != nil {
			return nil, err
		}
		svc := s.build()
		svc.Spec.ClusterIP = own.String()
		err = s.Steps.Client.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil {
			return svc, s.endpoints(ctx, svc)
		}
		if !bridge.IsTaken(err) {
			return nil, bridge.NotReadyYet(err)
		}
	}
}

// CanaryLike are a canary and its bridge, as far as admission can tell, for a trial.
func (s *Steps) CanaryLike() []client.Object {
	canary := (&Canary{Steps: s}).build()
	beside := (&bridge.Bridge{Migration: s.Migration, Service: canary, Form: s.Form, Labels: s.Labels, Answers: bridge.Neither}).Build()
	return []client.Object{canary, beside}
}

// Written writes a throw-away Service, and reads it where API servers keep it. How others are kept
// tells nothing of the next write: encryption that was turned on since is found by writing alone.
func (s *Canary) Written() engine.Step {
	const name = v1alpha1.SystemNamespace + "/canary-…"
	return &engine.Write{
		Name: "stored", About: "Write a throw-away Service, and read it in etcd", As: engine.RoleOwn, Limit: time.Minute,
		Write: func(ctx context.Context) error {
			if err := s.Abandon(ctx); err != nil {
				return err
			}
			svc, err := s.create(ctx)
			if err == nil {
				err = s.readable(ctx, svc)
			}
			return errors.Join(err, s.Abandon(context.WithoutCancel(ctx)))
		},
		Changes: engine.Shows(
			engine.Change{Verb: "create", Object: "Service " + name, Body: s.build()},
			engine.Change{Verb: "create", Object: "EndpointSlice " + name},
			engine.Change{Verb: "delete", Object: "Service " + name},
			engine.Change{Verb: "delete", Object: "IPAddress, if a canary of an earlier run kept one"},
		),
	}
}

func (s *Canary) readable(ctx context.Context, svc *corev1.Service) error {
	refused, err := s.Steps.Store.Check(ctx, []*corev1.Service{svc})
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(svc)
	if why := refused[key]; why != nil {
		return fmt.Errorf("service %s, written a moment ago: %w", key, why)
	}
	return nil
}

func (s *Canary) labels() map[string]string {
	return map[string]string{v1alpha1.LabelMigration: s.Steps.Migration, v1alpha1.LabelRole: v1alpha1.RoleCanary}
}

func (s *Canary) build() *corev1.Service {
	labels := s.labels()
	for key, value := range s.Steps.Labels {
		labels[key] = value
	}
	svc := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "canary-", Labels: labels,
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}}},
	}
	if s.Way.Strategy == v1alpha1.StrategyOfEtcd {
		svc.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyEtcd}
	}
	return svc
}

func (s *Canary) endpoints(ctx context.Context, svc *corev1.Service) error {
	ready, port, tcp := true, int32(9), corev1.ProtocolTCP
	labels, family := s.labels(), bridge.AddressType(svc)
	labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = svc.Name, "replumb.dev"
	return s.Steps.Client.Create(ctx, &discoveryv1.EndpointSlice{
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

// Verify: each step that took it there and back was proven by itself.
func (*Canary) Verify(context.Context) error { return nil }

// Abandon takes the canary away, also one of an earlier run.
func (s *Canary) Abandon(ctx context.Context) error {
	return removeCanaries(ctx, s.Steps.Client, s.Steps.Migration)
}

// Preview shows the canary's bridge, reservations and patches as those of any Service.
func (s *Canary) Preview() ([]engine.Change, error) {
	const name = v1alpha1.SystemNamespace + "/canary-…"
	if s.entry(nil).Exchanges() {
		return []engine.Change{
			{Verb: "create", Object: "Service " + name, Body: s.build()},
			{Verb: "create", Object: "EndpointSlice " + name},
			{Verb: "create", Object: "IPAddress, which keeps the address that it goes to"},
			{Verb: "patch", Object: "Service " + name},
			{Verb: "put", Object: "etcd: Service " + name + ", and both IPAddresses"},
			{Verb: "delete", Object: "Service " + name},
			{Verb: "delete", Object: "IPAddress, which kept that address"},
		}, nil
	}
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
