package bridge

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// byBridge indexes Services by the bridge that each would have, IPAddresses by the bridge that they
// are reserved for, and slices by their Service.
const byBridge = "bridge"

type view struct {
	follower *Follower
	// services are all, slices the hand-made ones, holds the reserved addresses.
	services, slices, holds *source

	mu      sync.Mutex
	missing int
	// kept are copies, by UID, that have an original which is not watched.
	kept map[types.UID]bool
	// synced is closed once everything was listed.
	synced chan struct{}
}

func newView(f *Follower) *view {
	s := &view{follower: f, missing: 3, synced: make(chan struct{}), kept: map[types.UID]bool{}}
	s.services = s.watch("services", &corev1.ServiceList{}, labels.Everything(), func(o client.Object) types.NamespacedName {
		return types.NamespacedName{Namespace: o.GetNamespace(), Name: Name(o.GetName(), o.GetUID())}
	})
	s.slices = s.watch("endpointslices", &discoveryv1.EndpointSliceList{}, handMade(), func(o client.Object) types.NamespacedName {
		return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName]}
	})
	held := labels.Set{v1alpha1.LabelRole: v1alpha1.RoleHold, networkingv1.LabelManagedBy: holder}
	if f.Migration != "" {
		held[v1alpha1.LabelMigration] = f.Migration
	}
	s.holds = s.watch(
		"ipaddresses",
		&networkingv1.IPAddressList{},
		labels.SelectorFromSet(held),
		func(o client.Object) types.NamespacedName {
			key, _ := HeldFor(o.(*networkingv1.IPAddress))
			return key
		},
	)
	return s
}

func (s *view) sources() []*source { return []*source{s.services, s.slices, s.holds} }

func handMade() labels.Selector {
	// The EndpointSlice controller's controllerName (k8s.io/kubernetes
	// pkg/controller/endpointslice).
	byController, err := labels.NewRequirement(discoveryv1.LabelManagedBy, selection.NotIn, []string{"endpointslice-controller.k8s.io"})
	if err != nil { // the requirement is a constant
		return labels.Everything()
	}
	return labels.NewSelector().Add(*byController)
}

type source struct {
	cache.Indexer
	view      *view
	reflector *cache.Reflector
	listed    sync.Once
}

func (s *view) watch(what string, empty client.ObjectList, of labels.Selector, about func(client.Object) types.NamespacedName) *source {
	src := &source{view: s, Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byBridge: func(o any) ([]string, error) {
		return []string{about(o.(client.Object)).String()}, nil
	}})}
	c := s.follower.Client
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		all := empty.DeepCopyObject().(client.ObjectList)
		err := c.List(ctx, all, &client.ListOptions{LabelSelector: of, Limit: o.Limit, Continue: o.Continue, Raw: &o})
		if err != nil {
			err = fmt.Errorf("listing %s: %w", what, err)
		}
		s.follower.watched(ctx, what, err)
		return all, err
	}
	follow := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := c.Watch(ctx, empty, &client.ListOptions{LabelSelector: of, Raw: &o})
		if err != nil {
			err = fmt.Errorf("watching %s: %w", what, err)
		}
		s.follower.watched(ctx, what, err)
		return w, err
	}
	src.reflector = cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: follow}, example(empty), src,
		// The usual pause, of a second and more, is longer than a bridge may be out of step.
		cache.ReflectorOptions{Backoff: &wait.Backoff{
			Duration: retryMin, Cap: headStart, Steps: 10, Factor: 2, Jitter: 0.5,
		}},
	)
	return src
}

func example(of client.ObjectList) client.Object {
	switch of.(type) {
	case *corev1.ServiceList:
		return &corev1.Service{}
	case *discoveryv1.EndpointSliceList:
		return &discoveryv1.EndpointSlice{}
	}
	return &networkingv1.IPAddress{}
}

func (s *source) Add(o any) error    { return s.changed(s.Indexer.Add(slim(o)), o) }
func (s *source) Update(o any) error { return s.changed(s.Indexer.Update(slim(o)), o) }
func (s *source) Delete(o any) error { return s.changed(s.Indexer.Delete(o), o) }

func (s *source) Replace(all []any, version string) error {
	before := s.List()
	for i := range all {
		all[i] = slim(all[i])
	}
	if err := s.changed(s.Indexer.Replace(all, version), slices.Concat(before, all)...); err != nil {
		return err
	}
	s.listed.Do(s.view.oneListed)
	return nil
}

func slim(o any) any {
	o.(client.Object).SetManagedFields(nil)
	return o
}

func (s *source) changed(err error, objects ...any) error {
	if err != nil {
		return err
	}
	for _, o := range objects {
		for _, key := range s.view.about(o) {
			if s.view.isReserved(key) {
				s.view.follower.queue.Add(key)
			}
		}
	}
	return nil
}

func (s *view) about(o any) []types.NamespacedName {
	switch o := o.(type) {
	case *corev1.Service:
		return []types.NamespacedName{client.ObjectKeyFromObject(o), {Namespace: o.Namespace, Name: Name(o.Name, o.UID)}}
	case *networkingv1.IPAddress:
		key, _ := HeldFor(o)
		return []types.NamespacedName{key}
	case *discoveryv1.EndpointSlice:
		of := types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}
		all := []types.NamespacedName{of}
		if svc := s.service(of); svc != nil {
			all = append(all, types.NamespacedName{Namespace: svc.Namespace, Name: Name(svc.Name, svc.UID)})
		}
		return all
	}
	return nil
}

func (s *view) oneListed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missing--; s.missing == 0 {
		close(s.synced)
	}
}

func (s *view) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing == 0
}

func (s *view) reserved() []types.NamespacedName {
	var all []types.NamespacedName
	for _, o := range s.holds.List() {
		all = append(all, s.about(o)...)
	}
	return all
}

func (s *view) isReserved(key types.NamespacedName) bool { return len(s.holds.of(key)) > 0 }

func (s *source) of(key types.NamespacedName) []any {
	all, err := s.ByIndex(byBridge, key.String())
	if err != nil { // there is no such index
		return nil
	}
	return all
}

func (s *view) service(key types.NamespacedName) *corev1.Service {
	o, there, err := s.services.GetByKey(key.String())
	if err != nil || !there {
		return nil
	}
	return o.(*corev1.Service)
}

func (s *view) slicesOf(key types.NamespacedName) []discoveryv1.EndpointSlice {
	var all []discoveryv1.EndpointSlice
	for _, o := range s.slices.of(key) {
		all = append(all, *o.(*discoveryv1.EndpointSlice))
	}
	slices.SortFunc(all, func(a, b discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// due is the write that brings a bridge in step.
type due struct {
	view            *view
	bridge, service *corev1.Service
	// same says that the spec of the bridge is as it should be.
	same   bool
	copies copying
	// own, in the place of all that, is the reservation of the address that the Service has lost,
	// or its bridge, if there is one.
	own *networkingv1.IPAddress
	// unclear, in the place of all that, says why it is not known which Service this is about.
	unclear error
}

// standing is the Service that a bridge of this name stands in for; nil, if there is none. The end
// of the name has few digits: of several Services it is the one for which addresses are reserved.
func (s *view) standing(key types.NamespacedName) (*corev1.Service, error) {
	all := s.services.of(key)
	if len(all) > 1 {
		all = slices.DeleteFunc(all, func(o any) bool { return !s.holdsFor(key, o.(*corev1.Service)) })
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0].(*corev1.Service), nil
	}
	var names []string
	for _, o := range all {
		names = append(names, client.ObjectKeyFromObject(o.(*corev1.Service)).String())
	}
	slices.Sort(names)
	return nil, &fault.Hinted{
		Err:  fmt.Errorf("bridge %s is that of several Services: %s", key, strings.Join(names, ", ")),
		Hint: "delete all but one of them, or make them again: their names and UIDs lead to the same name",
	}
}

func (s *view) holdsFor(key types.NamespacedName, svc *corev1.Service) bool {
	return slices.ContainsFunc(s.holds.of(key), func(o any) bool {
		ip := o.(*networkingv1.IPAddress)
		uid := ip.Annotations[v1alpha1.AnnotationServiceUID]
		return ip.Spec.ParentRef.Name == svc.Name && (uid == "" || uid == string(svc.UID))
	})
}

// look is nil for a bridge that is in step or not to be followed.
func (s *view) look(key types.NamespacedName) *due {
	b := s.service(key)
	svc, err := s.standing(key)
	switch {
	case err != nil:
		return &due{view: s, unclear: err}
	case svc == nil:
		return nil
	}
	if lost := s.lookAtOwn(key, svc); lost != nil {
		return lost
	}
	if b == nil || !Made(b) && !Named(b, svc.UID) || !b.DeletionTimestamp.IsZero() || !s.isReserved(key) || !svc.DeletionTimestamp.IsZero() {
		return nil
	}
	return s.lookAtTraffic(key, b, svc)
}

// lookAtTraffic is nil if a bridge leads where its Service does, and has its addresses.
func (s *view) lookAtTraffic(key types.NamespacedName, b, svc *corev1.Service) *due {
	d := &due{view: s, bridge: b, service: svc}
	// Between the patches of a hop the Service is not what it was, and will be again.
	d.same = svc.Spec.Type == corev1.ServiceTypeExternalName || sameTraffic(&b.Spec, &svc.Spec)
	if copies := s.slicesOf(key); d.same {
		var originals []discoveryv1.EndpointSlice
		if len(b.Spec.Selector) == 0 {
			originals = s.slicesOf(client.ObjectKeyFromObject(svc))
		}
		d.copies = copyingOf(originals, copies, b)
		d.copies.remove = slices.DeleteFunc(d.copies.remove, s.isKept)
	}
	if d.same && d.copies.empty() {
		return s.lookAtBridge(key, b, svc)
	}
	return d
}

func (s *view) isKept(copied discoveryv1.EndpointSlice) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[copied.UID]
}

func (s *view) keep(copied discoveryv1.EndpointSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[copied.UID] = true
}

func sameTraffic(bridge, service *corev1.ServiceSpec) bool {
	want := bridge.DeepCopy()
	want.Ports = ports(bridge.Ports)
	have := want.DeepCopy()
	followSpec(want, service)
	return equality.Semantic.DeepEqual(have, want)
}

func followSpec(bridge, service *corev1.ServiceSpec) {
	bridge.Selector, bridge.Ports = service.Selector, ports(service.Ports)
	bridge.SessionAffinity, bridge.SessionAffinityConfig = service.SessionAffinity, service.SessionAffinityConfig
	bridge.PublishNotReadyAddresses, bridge.TrafficDistribution = service.PublishNotReadyAddresses, service.TrafficDistribution
}

func (d *due) write(ctx context.Context, c client.Client) error {
	if d.unclear != nil {
		return d.unclear
	}
	if d.own != nil {
		return d.view.putBack(ctx, c, d)
	}
	if !d.same {
		want := d.bridge.DeepCopy()
		followSpec(&want.Spec, &d.service.Spec)
		patch := client.MergeFromWithOptions(d.bridge.DeepCopy(), client.MergeFromWithOptimisticLock{})
		if err := c.Patch(ctx, want, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("bridge %s/%s: %w", d.bridge.Namespace, d.bridge.Name, err)
		}
	}
	if len(d.copies.create) > 0 {
		// A bridge may be removed unseen; its copies would stay without it.
		if err := c.Get(ctx, client.ObjectKeyFromObject(d.bridge), &corev1.Service{}); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if len(d.copies.remove) > 0 {
		if err := d.sift(ctx, c); err != nil {
			return err
		}
	}
	return d.copies.write(ctx, c)
}

// sift keeps copies that are needed: those of slices by a controller, which are not watched since
// most are such, and those of a Service that has got a selector, until a controller has made
// others.
func (d *due) sift(ctx context.Context, c client.Client) error {
	of := client.ObjectKeyFromObject(d.service)
	if len(d.service.Spec.Selector) > 0 {
		of = client.ObjectKeyFromObject(d.bridge)
	}
	have, err := slicesOf(ctx, c, of)
	if err != nil {
		return err
	}
	if len(d.service.Spec.Selector) > 0 {
		if !slices.ContainsFunc(have, func(s discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelManagedBy] != managedBy }) {
			return engine.NotYet("bridge %s has no endpoints of its own yet", of)
		}
		return nil
	}
	d.copies.remove = slices.DeleteFunc(d.copies.remove, func(copied discoveryv1.EndpointSlice) bool {
		needed := slices.ContainsFunc(have, func(o discoveryv1.EndpointSlice) bool {
			return copyName(d.bridge.Name, o.Name) == copied.Name && o.AddressType == copied.AddressType
		})
		if needed {
			d.view.keep(copied)
		}
		return needed
	})
	return nil
}

func (s *view) apiServers() []string {
	var all []string
	for _, slice := range s.slicesOf(types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}) {
		for _, port := range slice.Ports {
			for _, e := range slice.Endpoints {
				for _, a := range e.Addresses {
					if port.Port != nil {
						all = append(all, net.JoinHostPort(a, strconv.Itoa(int(*port.Port))))
					}
				}
			}
		}
	}
	return all
}
