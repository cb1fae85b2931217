package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

// world is a cluster in which all is as it should be.
type world struct {
	Want
	Snapshot
	next int // address
}

// newWorld has users at work before and during a migration, and plays the API server, its controllers and replumb.
func newWorld(t *testing.T, stage Stage) *world {
	t.Helper()
	g := model.New(5)
	work := func(n int) {
		for range n {
			g.Done(g.Next())
		}
	}
	work(300)
	w := &world{Want: Want{
		Model: g.Cluster, Stage: stage, Old: netip.MustParsePrefix("10.96.0.0/16"), New: netip.MustParsePrefix("172.24.0.0/16"),
		Specs: map[model.Key]corev1.PodSpec{}, Namespaces: []string{metav1.NamespaceDefault, metav1.NamespaceSystem},
	}}
	if stage != Before {
		g.Mark()
		w.Was = map[model.Key]string{}
		work(20)
	}
	w.workloads()
	w.services()
	w.ranges()
	if stage == Overlap {
		w.bridges()
	}
	w.remains()
	requireVariety(t, w)
	return w
}

// requireVariety fails the test unless the world has what the defects are made of.
func requireVariety(t *testing.T, w *world) {
	t.Helper()
	places, by := map[model.Place]int{}, 0
	for key, s := range w.Model.Services {
		places[w.Model.Place(key)]++
		by += len(s.Slices)
	}
	for _, p := range []model.Place{model.Nowhere, model.Moves, model.Keeps, model.Anywhere} {
		if places[p] == 0 && w.Stage != Before {
			t.Fatalf("no Service is %s: %v", p, places)
		}
	}
	if by == 0 || len(w.Model.Namespaces) < 3 {
		t.Fatalf("there are %d slices by hand and %d namespaces", by, len(w.Model.Namespaces))
	}
}

func (w *world) workloads() {
	for _, ns := range slices.Concat(w.Model.NamespaceNames(), w.Want.Namespaces, []string{v1alpha1.JournalNamespace}) {
		w.Snapshot.Namespaces = append(w.Snapshot.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	for _, key := range w.Model.DeploymentKeys() {
		d := w.Model.Deployments[key].DeepCopy()
		w.Specs[key] = d.Spec.Template.Spec
		n := *d.Spec.Replicas
		d.Annotations = map[string]string{revision: "3"}
		d.Spec.Template.Annotations = union(map[string]string{v1alpha1.AnnotationRestartedAt: "now"}, d.Spec.Template.Annotations)
		d.Status = appsv1.DeploymentStatus{Replicas: n, UpdatedReplicas: n, AvailableReplicas: n}
		w.Deployments = append(w.Deployments, *d)
		for i := range n + 1 { // one is on its way out
			p := corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			p.Namespace, p.Name = d.Namespace, fmt.Sprintf("%s-%d", d.Name, i)
			p.Status.PodIP = fmt.Sprintf("10.244.%d.%d", len(w.Deployments), i+2)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			if i == n {
				p.DeletionTimestamp = &metav1.Time{}
			}
			w.Pods = append(w.Pods, p)
		}
	}
}

func (w *world) address(r netip.Prefix) string {
	w.next++
	b := r.Addr().As4()
	return fmt.Sprintf("%d.%d.7.%d", b[0], b[1], w.next)
}

// place gives a Service an address, as the API server and the migration would.
func (w *world) place(key model.Key, svc *corev1.Service, place model.Place) {
	moved := w.Stage == Overlap || w.Stage == Finished
	if w.Was != nil && place != model.Anywhere {
		w.Was[key] = w.address(w.Old)
		svc.Spec.ClusterIP = w.Was[key]
	}
	switch {
	case moved && place != model.Keeps:
		svc.Spec.ClusterIP = w.address(w.New)
	case svc.Spec.ClusterIP == "":
		svc.Spec.ClusterIP = w.address(w.Old)
	}
	svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
}

func (w *world) services() {
	for _, key := range w.Model.ServiceKeys() {
		s := w.Model.Services[key]
		svc := s.Object.DeepCopy()
		if s.HasAddress() {
			w.place(key, svc, w.Model.Place(key))
			if w.Stage == Overlap && w.Model.Place(key) == model.Moves {
				svc.Annotations = union(map[string]string{v1alpha1.LabelMigration: "m"}, svc.Annotations)
			}
		}
		w.add(svc, s.Slices)
	}
	for _, key := range clusters() {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		w.place(key, svc, model.Moves)
		w.add(svc, []*discoveryv1.EndpointSlice{slice(key, "by-server", "172.30.0.10")})
	}
}

func slice(key model.Key, suffix string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name + "-" + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: key.Name},
		},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](6443)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// add puts a Service there, with its slices or those of the pods that it selects.
func (w *world) add(svc *corev1.Service, given []*discoveryv1.EndpointSlice) {
	w.Services = append(w.Services, *svc)
	key := keyOf(svc)
	for _, s := range given {
		w.Slices = append(w.Slices, *s)
	}
	if len(svc.Spec.Selector) > 0 {
		s := slice(key, "abcde")
		s.Ports = nil
		for _, p := range svc.Spec.Ports {
			number := map[string]int32{"http": 8080, "tcp": 9000, "udp": 9001}[p.TargetPort.StrVal]
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &number})
		}
		for _, p := range w.Pods {
			if p.Namespace == key.Namespace && p.Labels[model.LabelApp] == svc.Spec.Selector[model.LabelApp] &&
				p.Labels[model.LabelColour] == svc.Spec.Selector[model.LabelColour] {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{p.Status.PodIP},
					Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(p.DeletionTimestamp == nil)},
				})
			}
		}
		w.Slices = append(w.Slices, *s)
	}
	if netip.MustParsePrefix("0.0.0.0/0").Contains(parsed(svc.Spec.ClusterIP)) {
		w.Addresses = append(w.Addresses, networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: svc.Spec.ClusterIP, Labels: map[string]string{networkingv1.LabelManagedBy: allocator}},
			Spec: networkingv1.IPAddressSpec{
				ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: svc.Namespace, Name: svc.Name},
			},
		})
	}
}

func parsed(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a
}

func (w *world) ranges() {
	cidr := func(name, text string) {
		c := networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.CIDRs = []string{text}
		w.ServiceCIDRs = append(w.ServiceCIDRs, c)
	}
	if w.Stage == Overlap || w.Stage == Finished {
		cidr(defaultRange, w.New.String())
		cidr("m-keep-0", "10.96.7.0/24")
		return
	}
	cidr(defaultRange, w.Old.String())
}

// bridges are those of the Services that have moved, with the copies of endpoints of those without selector.
func (w *world) bridges() {
	r := &report{Want: w.Want, Snapshot: w.Snapshot, services: map[model.Key]*corev1.Service{}}
	for _, key := range r.moved() {
		svc := w.service(key)
		bridge := svc.DeepCopy()
		bridge.Name += "-bridge"
		bridge.Labels = map[string]string{v1alpha1.LabelRole: v1alpha1.RoleBridge}
		bridge.Annotations = map[string]string{v1alpha1.AnnotationService: key.Name}
		bridge.Spec.ClusterIP = w.address(w.New)
		bridge.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: w.Was[key]}}
		var copies []*discoveryv1.EndpointSlice
		for i := range w.Slices {
			if s := w.Slices[i].DeepCopy(); len(svc.Spec.Selector) == 0 && s.Labels[discoveryv1.LabelServiceName] == key.Name &&
				s.Namespace == key.Namespace {
				s.Name, s.Labels = s.Name+"-copy", map[string]string{discoveryv1.LabelServiceName: bridge.Name}
				copies = append(copies, s)
			}
		}
		w.add(bridge, copies)
		w.Addresses = append(w.Addresses, networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
			Name: w.Was[key], Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleHold, networkingv1.LabelManagedBy: "replumb"},
		}})
	}
	w.Snapshot.Namespaces = append(w.Snapshot.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}})
}

// remains lists everything, with what may stay.
func (w *world) remains() {
	list := func(resource string, objects ...client.Object) {
		for _, o := range objects {
			meta := metav1.ObjectMeta{
				Namespace:   o.GetNamespace(),
				Name:        o.GetName(),
				Labels:      o.GetLabels(),
				Annotations: o.GetAnnotations(),
			}
			w.Everything = append(w.Everything, Object{resource, meta})
		}
	}
	for i := range w.Services {
		list("services", &w.Services[i])
	}
	for i := range w.Pods {
		list("pods", &w.Pods[i])
	}
	for i := range w.Snapshot.Namespaces {
		list("namespaces", &w.Snapshot.Namespaces[i])
	}
	for i := range w.Deployments {
		list("deployments.apps", &w.Deployments[i])
	}
	named := func(namespace, name string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelMigration: "m"},
		}}
	}
	list("customresourcedefinitions.apiextensions.k8s.io", named("", "migrations.replumb.dev"))
	list("migrations.replumb.dev", named("", "m"))
	list("configmaps", named(v1alpha1.JournalNamespace, "replumb-journal-m-0001"))
	list("leases.coordination.k8s.io", named(metav1.NamespaceSystem, "replumb"))
	list("events", named("shop", "replumb-x"))
	role := named("", "replumb-lab:podnet")
	role.SetLabels(nil)
	list("clusterroles.rbac.authorization.k8s.io", role)
	w.Given = map[string]bool{"clusterroles.rbac.authorization.k8s.io /replumb-lab:podnet": true}
}

// service of that name, to be changed.
func (w *world) service(key model.Key) *corev1.Service {
	i := slices.IndexFunc(w.Services, func(s corev1.Service) bool { return keyOf(&s) == key })
	if i < 0 {
		return nil
	}
	return &w.Services[i]
}

// one is the first Service of the model that a filter leaves, to be changed.
func (w *world) one(keep func(model.Key, *model.Service) bool) *corev1.Service {
	for _, key := range w.Model.ServiceKeys() {
		if keep(key, w.Model.Services[key]) {
			return w.service(key)
		}
	}
	panic("there is no such Service")
}

// at is the first Service of a place.
func (w *world) at(p model.Place) *corev1.Service {
	return w.one(func(k model.Key, _ *model.Service) bool { return w.Model.Place(k) == p })
}

func (w *world) steady() *corev1.Service {
	return w.service(model.Key{Namespace: model.Steady, Name: model.SteadyApps()[0]})
}

// slice is that of a Service, to be changed.
func (w *world) slice(svc *corev1.Service) *discoveryv1.EndpointSlice {
	i := slices.IndexFunc(w.Slices, func(s discoveryv1.EndpointSlice) bool {
		return s.Namespace == svc.Namespace && s.Labels[discoveryv1.LabelServiceName] == svc.Name
	})
	return &w.Slices[i]
}

// object puts a further one among everything.
func (w *world) object(resource string, meta metav1.ObjectMeta) {
	w.Everything = append(w.Everything, Object{resource, meta})
}

func (w *world) bridge() *corev1.Service {
	i := slices.IndexFunc(w.Services, func(s corev1.Service) bool {
		return s.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge && len(s.Spec.Selector) > 0
	})
	return &w.Services[i]
}

func put(m *map[string]string, key, value string) {
	*m = maps.Clone(*m)
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}
