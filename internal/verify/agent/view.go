package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

type view struct {
	// migration is nil if there is none of the name.
	migration *v1alpha1.Migration
	services  []*corev1.Service
	// reserved are the addresses that the migration reserves, for the agent in the node's network.
	reserved []*networkingv1.IPAddress
	// listed says that these are known.
	listed bool
	// pods of the node, for the agent in its network.
	pods []*corev1.Pod
	// podsListed says that these are known.
	podsListed bool
	// ranges bound the addresses of Services; notes of others are not believed.
	ranges []netip.Prefix
}

type watched struct {
	name       string
	ranges     []netip.Prefix
	changes    chan struct{}
	migrations *store[*v1alpha1.Migration]
	services   *store[*corev1.Service]
	reserved   *store[*networkingv1.IPAddress]
	pods       *store[*corev1.Pod]
}

func newWatched(migration string, ranges []netip.Prefix) *watched {
	w := &watched{name: migration, ranges: ranges, changes: make(chan struct{}, 1)}
	w.migrations = newStore("migrations", shrinkMigration, w.changed)
	w.services = newStore("services", func(svc *corev1.Service) *corev1.Service { return shrinkService(svc, ranges) }, w.changed)
	w.reserved = newStore("ipaddresses", shrinkReserved, w.changed)
	w.pods = newStore("pods", shrinkPod, w.changed)
	return w
}

func (w *watched) changed() {
	select {
	case w.changes <- struct{}{}:
	default: // a look is due already
	}
}

// follow watches until ctx ends; pods only if node is named, and reserved addresses only if asked.
func (w *watched) follow(ctx context.Context, c client.WithWatch, node string, reserved bool) {
	var all sync.WaitGroup
	all.Go(func() {
		byName := client.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.name)}
		w.migrations.follow(ctx, c, func() client.ObjectList { return &v1alpha1.MigrationList{} }, byName)
	})
	all.Go(func() {
		w.services.follow(ctx, c, func() client.ObjectList { return &corev1.ServiceList{} }, client.ListOptions{})
	})
	if reserved {
		all.Go(func() {
			held := labels.Set{v1alpha1.LabelMigration: w.name, v1alpha1.LabelRole: v1alpha1.RoleHold}
			w.reserved.follow(ctx, c, func() client.ObjectList { return &networkingv1.IPAddressList{} },
				client.ListOptions{LabelSelector: labels.SelectorFromSet(held)})
		})
	}
	if node != "" {
		all.Go(func() {
			ofNode := client.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node)}
			w.pods.follow(ctx, c, func() client.ObjectList { return &corev1.PodList{} }, ofNode)
		})
	}
	all.Wait()
}

// view is false until Migration and Services were listed; nothing depends on the order of pods.
func (w *watched) view() (s view, ok bool) {
	migrations, known := w.migrations.all()
	if len(migrations) > 0 {
		s.migration = migrations[0]
	}
	s.services, ok = w.services.all()
	s.reserved, s.listed = w.reserved.all()
	s.pods, s.podsListed = w.pods.all()
	s.ranges = w.ranges
	return s, ok && known
}

// Objects are shrunk to what is read, since every node watches every Service.

func shrinkMigration(m *v1alpha1.Migration) *v1alpha1.Migration {
	kept := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: m.UID, DeletionTimestamp: m.DeletionTimestamp},
		Spec:       v1alpha1.MigrationSpec{Proof: m.Spec.Proof},
		Status: v1alpha1.MigrationStatus{
			Phase: m.Status.Phase, PointOfNoReturnPassed: m.Status.PointOfNoReturnPassed, Proof: m.Status.Proof,
		},
	}
	if s := m.Spec.ServiceCIDR; s != nil {
		kept.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{From: s.From, To: s.To, Drain: s.Drain}
	}
	return kept
}

// shrinkService keeps one address: of two families that in the ranges.
func shrinkService(svc *corev1.Service, ranges []netip.Prefix) *corev1.Service {
	meta := shrinkMeta(&svc.ObjectMeta)
	delete(meta.Annotations, v1alpha1.AnnotationOriginalSpec)
	kept := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: svc.Spec.Type, ClusterIP: addressIn(svc, ranges), HealthCheckNodePort: svc.Spec.HealthCheckNodePort,
	}}
	if svc.Annotations[v1alpha1.LabelMigration] != "" {
		kept.Spec.ExternalIPs, kept.Spec.LoadBalancerClass = svc.Spec.ExternalIPs, svc.Spec.LoadBalancerClass
		kept.Status.LoadBalancer.Ingress = svc.Status.LoadBalancer.Ingress
	}
	for _, p := range svc.Spec.Ports {
		kept.Spec.Ports = append(kept.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
	}
	return kept
}

// addressIn is a Service's address in some ranges, else its first.
func addressIn(svc *corev1.Service, ranges []netip.Prefix) string {
	for _, text := range svc.Spec.ClusterIPs {
		if a := parse(text); slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			return text
		}
	}
	return svc.Spec.ClusterIP
}

// shrinkReserved leaves out the spec of a Service, which reservations have among their annotations.
func shrinkReserved(ip *networkingv1.IPAddress) *networkingv1.IPAddress {
	meta := shrinkMeta(&ip.ObjectMeta)
	delete(meta.Annotations, v1alpha1.AnnotationOriginalSpec)
	meta.CreationTimestamp = ip.CreationTimestamp
	return &networkingv1.IPAddress{ObjectMeta: meta, Spec: ip.Spec}
}

func shrinkPod(pod *corev1.Pod) *corev1.Pod {
	meta := shrinkMeta(&pod.ObjectMeta)
	if owner := metav1.GetControllerOf(pod); owner != nil {
		meta.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if hash := pod.Labels[hashLabel]; hash != "" {
		if meta.Labels == nil {
			meta.Labels = map[string]string{}
		}
		meta.Labels[hashLabel] = hash
	}
	return &corev1.Pod{
		ObjectMeta: meta,
		Spec:       corev1.PodSpec{HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
}

func shrinkMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, DeletionTimestamp: o.DeletionTimestamp,
		Labels: ours(o.Labels), Annotations: ours(o.Annotations),
	}
}

func ours(notes map[string]string) map[string]string {
	notes = maps.Clone(notes)
	maps.DeleteFunc(notes, func(key, _ string) bool { return !strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/") })
	return notes
}

// own are the migration's live Services of a role in replumb's namespace; elsewhere, tenants write
// labels.
func (s view) own(role string) []*corev1.Service {
	return slices.DeleteFunc(s.role(role), func(svc *corev1.Service) bool { return svc.Namespace != v1alpha1.SystemNamespace })
}

// role are live Services of all namespaces that claim a role in the migration.
func (s view) role(role string) []*corev1.Service {
	var found []*corev1.Service
	for _, svc := range s.services {
		if svc.Labels[v1alpha1.LabelRole] == role && s.migration != nil && svc.Labels[v1alpha1.LabelMigration] == s.migration.Name &&
			svc.DeletionTimestamp.IsZero() {
			found = append(found, svc)
		}
	}
	return found
}

func (s view) within(a netip.Addr) bool {
	return slices.ContainsFunc(s.ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// clusterIP is invalid for a Service on its way or without an address.
func clusterIP(svc *corev1.Service) netip.Addr {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return netip.Addr{}
	}
	return parse(svc.Spec.ClusterIP)
}

func parse(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a
}
