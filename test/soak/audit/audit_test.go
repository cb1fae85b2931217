package audit

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

func TestNothingIsFoundWhereAllIsWell(t *testing.T) {
	for _, stage := range []Stage{Before, Overlap, RolledBack, Finished} {
		t.Run(string(stage), func(t *testing.T) {
			w := newWorld(t, stage)
			for _, d := range Audit(w.Want, w.Snapshot) {
				t.Error(d)
			}
		})
	}
}

// TestRangeThatWasKept is one that a rollback has left to a Service in it. It may stay when the Service has gone.
func TestRangeThatWasKept(t *testing.T) {
	w := newWorld(t, Overlap)
	w.ServiceCIDRs = append(w.ServiceCIDRs, cidr("m", "172.24.0.0/16"))
	if found := Audit(w.Want, w.Snapshot); len(found) == 0 {
		t.Error("control: a range that no Service needs is passed over")
	}
	w.Keep(w.Snapshot)
	for _, d := range Audit(w.Want, w.Snapshot) {
		t.Error(d)
	}
}

// defect is something that is wrong, and what the audit has to say of it.
type defect struct {
	name  string
	stage Stage
	do    func(*world)
	say   string
}

// TestEveryDefectIsFound makes one thing wrong at a time, in a world where all is well.
func TestEveryDefectIsFound(t *testing.T) {
	for _, d := range slices.Concat(ofServices(), ofPlaces(), ofEndpoints(), ofWorkloads(), ofRanges(), ofBridges(), ofRemains()) {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t, d.stage)
			d.do(w)
			found := Audit(w.Want, w.Snapshot)
			if !slices.ContainsFunc(found, func(f Defect) bool { return strings.Contains(f.String(), d.say) }) {
				t.Errorf("nothing says %q in %v", d.say, found)
			}
		})
	}
}

func ofServices() []defect {
	leads := func(_ model.Key, s *model.Service) bool { return len(s.Object.Spec.Selector) > 0 && s.HasAddress() }
	return []defect{
		{"a Service is lost", Finished, func(w *world) {
			w.Services = slices.DeleteFunc(w.Services, func(s corev1.Service) bool { return s.Name == "cart" })
		}, "service steady/cart: is lost"},
		{"the Service kubernetes is lost", Finished, func(w *world) {
			w.Services = slices.DeleteFunc(w.Services, func(s corev1.Service) bool { return s.Name == "kubernetes" })
		}, "service default/kubernetes: is lost"},
		{"a Service is left over", RolledBack, func(w *world) {
			w.Services = append(w.Services, corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "churn", Name: "zombie"}})
		}, "service churn/zombie: is left over"},
		{"a bridge is left over", Finished, func(w *world) {
			w.Services = append(w.Services, corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: "churn", Name: "b", Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleBridge},
			}})
		}, "service churn/b: is left over"},
		{"a Service is on its way out", Finished, func(w *world) { w.steady().DeletionTimestamp = &metav1.Time{} }, "is being deleted"},
		{"another selector", Finished, func(w *world) {
			put(&w.steady().Spec.Selector, model.LabelColour, "red")
		}, "service steady/cart: has another spec.selector"},
		{"half a hop", RolledBack, func(w *world) {
			svc := w.steady()
			svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, "x"
		}, "has another spec.type"},
		{"a port is lost", RolledBack, func(w *world) { w.steady().Spec.Ports = w.steady().Spec.Ports[1:] }, "has another spec.ports"},
		{"another node port", Finished, func(w *world) {
			w.one(func(k model.Key, _ *model.Service) bool { return k.Name == model.SteadyNodePort }).Spec.Ports[0].NodePort++
		}, "service steady/front: has another spec.ports"},
		{"affinity is lost", Finished, func(w *world) {
			w.one(func(_ model.Key, s *model.Service) bool { return s.Object.Spec.SessionAffinityConfig != nil }).Spec.SessionAffinityConfig = nil
		}, "has another spec.sessionAffinityConfig"},
		{"an internal traffic policy is lost", Finished, func(w *world) {
			w.one(leads).Spec.InternalTrafficPolicy = nil
		}, "has another spec.internalTrafficPolicy"},
		{"a headless Service has an address", Finished, func(w *world) {
			svc := w.one(func(_ model.Key, s *model.Service) bool { return s.Object.Spec.ClusterIP == corev1.ClusterIPNone })
			svc.Spec.ClusterIP = "172.24.9.9"
		}, "has another spec.clusterIP"},
		{"a label is lost", Finished, func(w *world) { w.steady().Labels = nil }, "has lost label"},
		{"another label", Finished, func(w *world) { put(&w.steady().Labels, "x", "y") }, "has label x too much"},
		{"an annotation is lost", Overlap, func(w *world) { w.steady().Annotations = nil }, "has lost annotation"},
		{"another value", Overlap, func(w *world) {
			for key := range w.steady().Annotations {
				if !strings.Contains(key, domain) {
					put(&w.steady().Annotations, key, "other")
				}
			}
		}, "=other instead of"},
		{"an annotation of replumb", RolledBack, func(w *world) {
			put(&w.steady().Annotations, v1alpha1.AnnotationMovedAt, "now")
		}, "has annotation replumb.dev/moved-at too much"},
		{"a pin that no one set", Overlap, func(w *world) {
			put(&w.steady().Annotations, v1alpha1.AnnotationStrategy, v1alpha1.StrategyPin)
		}, "has annotation replumb.dev/strategy too much"},
		{"a namespace is lost", Before, func(w *world) { w.Snapshot.Namespaces = w.Snapshot.Namespaces[1:] }, "namespace churn: is lost"},
		{"a namespace is left over", Finished, func(w *world) {
			w.Snapshot.Namespaces = append(
				w.Snapshot.Namespaces,
				corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}},
			)
		}, "namespace replumb-system: is left over"},
	}
}

func ofPlaces() []defect {
	move := func(svc *corev1.Service, to string) { svc.Spec.ClusterIP, svc.Spec.ClusterIPs = to, []string{to} }
	return []defect{
		{"not moved", Overlap, func(w *world) { move(w.at(model.Moves), "10.96.7.250") }, "is at 10.96.7.250, not in 172.24.0.0/16"},
		{
			"not moved for good",
			Finished,
			func(w *world) { move(w.at(model.Moves), "10.96.7.250") },
			"is at 10.96.7.250, not in 172.24.0.0/16",
		},
		{"not back", RolledBack, func(w *world) { move(w.at(model.Moves), "172.24.7.250") }, "is at 172.24.7.250 instead of 10.96."},
		{"back elsewhere", RolledBack, func(w *world) { move(w.at(model.Moves), "10.96.7.250") }, "is at 10.96.7.250 instead of 10.96."},
		{"pinned and moved", Finished, func(w *world) { move(w.at(model.Keeps), "172.24.7.250") }, "is at 172.24.7.250 instead of 10.96."},
		{
			"the cluster's own, not moved",
			Finished,
			func(w *world) { move(w.service(clusters()[1]), "10.96.7.250") },
			"kube-dns: is at 10.96.7.250",
		},
		{"no address", Overlap, func(w *world) { move(w.at(model.Anywhere), "") }, `has clusterIP ""`},
		{"two addresses", Finished, func(w *world) {
			svc := w.at(model.Moves)
			svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "172.24.7.251")
		}, "and clusterIPs"},
	}
}

func ofEndpoints() []defect {
	byHand := func(w *world) *corev1.Service {
		return w.one(func(_ model.Key, s *model.Service) bool { return len(s.Slices) > 0 })
	}
	return []defect{
		{"an endpoint is missing", Finished, func(w *world) {
			s := w.slice(w.steady())
			s.Endpoints = s.Endpoints[1:]
		}, "service steady/cart: leads to"},
		{"an endpoint too much", Finished, func(w *world) {
			s := w.slice(w.steady())
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.9.9"}})
		}, "10.244.9.9"},
		{"a pod that ends", Finished, func(w *world) {
			s := w.slice(w.steady())
			s.Endpoints[len(s.Endpoints)-1].Conditions.Ready = ptr.To(true)
		}, "service steady/cart: leads to"},
		{"the pods of the other colour", Overlap, func(w *world) {
			s := w.slice(w.steady())
			for i := range s.Endpoints {
				s.Endpoints[i].Addresses = []string{"10.244.8.8"}
			}
		}, "10.244.8.8"},
		{
			"another port",
			Finished,
			func(w *world) { w.slice(w.steady()).Ports[0].Port = ptr.To[int32](1) },
			"service steady/cart: leads to",
		},
		{"what was written by hand is gone", Finished, func(w *world) { w.slice(byHand(w)).Endpoints = nil }, "leads to [] instead of"},
		{"what was written by hand is twice", Finished, func(w *world) {
			w.Slices = append(w.Slices, *w.slice(byHand(w)))
		}, "leads to"},
		{"a slice is left over", Finished, func(w *world) {
			w.Slices = append(w.Slices, *slice(model.Key{Namespace: model.Churn, Name: "gone"}, "x"))
		}, "endpointslice churn/gone-x: is left over of service gone"},
	}
}

func ofWorkloads() []defect {
	return []defect{
		{"a Deployment is lost", Finished, func(w *world) { w.Deployments = w.Deployments[1:] }, "deployment churn/mill-blue: is lost"},
		{"a Deployment is left over", Finished, func(w *world) {
			d := w.Deployments[0].DeepCopy()
			d.Name = "zombie"
			w.Deployments = append(w.Deployments, *d)
		}, "deployment churn/zombie: is left over"},
		{"scaled", Finished, func(w *world) { w.Deployments[0].Spec.Replicas = ptr.To[int32](9) }, "has 9 replicas"},
		{"rolls", Finished, func(w *world) { w.Deployments[0].Status.UpdatedReplicas-- }, "are of the last revision"},
		{"not seen", Finished, func(w *world) { w.Deployments[0].Generation++ }, "are of the last revision"},
		{"an annotation of replumb", Finished, func(w *world) {
			put(&w.Deployments[0].Annotations, v1alpha1.AnnotationReplicas, "2")
		}, "has annotation replumb.dev/original-replicas too much"},
		{"an annotation of pods", Finished, func(w *world) {
			put(&w.Deployments[0].Spec.Template.Annotations, "x", "y")
		}, "has annotation of pods x too much"},
		{"a label of pods", Finished, func(w *world) {
			put(&w.Deployments[0].Spec.Template.Labels, "x", "y")
		}, "has label of pods x too much"},
		{"other pods", Finished, func(w *world) {
			w.Deployments[0].Spec.Template.Spec.DNSPolicy = corev1.DNSDefault
		}, "has another spec.template.spec.dnsPolicy"},
		{"a pod is missing", Finished, func(w *world) { w.Pods = w.Pods[1:] }, "pods instead of"},
		{"a pod is not ready", Finished, func(w *world) { w.Pods[0].Status.Conditions = nil }, "is not ready"},
	}
}

func cidr(name, text string) networkingv1.ServiceCIDR {
	c := networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.CIDRs = []string{text}
	return c
}

func ofRanges() []defect {
	return []defect{
		{"the old range came back", Finished, func(w *world) {
			w.ServiceCIDRs[0].Spec.CIDRs = []string{w.Old.String()}
		}, "servicecidr kubernetes: is"},
		{"no default range", Overlap, func(w *world) { w.ServiceCIDRs = w.ServiceCIDRs[1:] }, "servicecidr kubernetes: is lost"},
		{"a range goes", Finished, func(w *world) { w.ServiceCIDRs[0].DeletionTimestamp = &metav1.Time{} }, "is being deleted"},
		{"a range is left over", RolledBack, func(w *world) {
			w.ServiceCIDRs = append(w.ServiceCIDRs, cidr("m", "172.24.0.0/16"))
		}, "servicecidr m: is left over"},
		{"a range for no one", Finished, func(w *world) {
			w.ServiceCIDRs = append(w.ServiceCIDRs, cidr("m-keep-1", "10.96.99.0/24"))
		}, "servicecidr m-keep-1: is left over"},
		{"an address in no range", Finished, func(w *world) { w.ServiceCIDRs = w.ServiceCIDRs[:1] }, "is in no Service range"},
		{"an address without a record", Before, func(w *world) { w.Addresses = w.Addresses[1:] }, "for which there is no ipaddress"},
		{"a record without a Service", Finished, func(w *world) {
			a := w.Addresses[0].DeepCopy()
			a.Name = "10.96.200.200"
			w.Addresses = append(w.Addresses, *a)
		}, "ipaddress 10.96.200.200: is left over"},
		{"a record of another Service", Finished, func(w *world) {
			ref := *w.Addresses[0].Spec.ParentRef
			ref.Name = "other"
			w.Addresses[0].Spec.ParentRef = &ref
		}, "other, and service"},
		{"a reservation", RolledBack, func(w *world) {
			w.Addresses = append(w.Addresses, networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
				Name:   "172.24.1.1",
				Labels: map[string]string{networkingv1.LabelManagedBy: "replumb", v1alpha1.LabelRole: v1alpha1.RoleHold},
			}})
		}, `ipaddress 172.24.1.1: is managed by "replumb"`},
	}
}

func ofBridges() []defect {
	return []defect{
		{"no bridge", Overlap, func(w *world) {
			gone := w.bridge().Name
			w.Services = slices.DeleteFunc(w.Services, func(s corev1.Service) bool { return s.Name == gone })
		}, "has no bridge at"},
		{"it does not answer", Overlap, func(w *world) { w.bridge().Status.LoadBalancer.Ingress = nil }, "answers at []"},
		{"it selects others", Overlap, func(w *world) { w.bridge().Spec.Selector = map[string]string{"x": "y"} }, "selects map[x:y]"},
		{"it does not follow", Overlap, func(w *world) { w.slice(w.bridge()).Endpoints = nil }, "leads to [] instead of"},
		{"that of kubernetes does not follow", Overlap, func(w *world) {
			i := slices.IndexFunc(w.Slices, func(s discoveryv1.EndpointSlice) bool { return s.Name == "kubernetes-by-server-copy" })
			w.Slices[i].Endpoints[0].Addresses = []string{"172.30.0.9"}
		}, "bridge default/kubernetes-bridge: leads to"},
	}
}

func ofRemains() []defect {
	marked := map[string]string{v1alpha1.LabelMigration: "m"}
	return []defect{
		{"the freeze", Finished, func(w *world) {
			w.object("validatingadmissionpolicies.admissionregistration.k8s.io", metav1.ObjectMeta{Name: "replumb-freeze"})
		}, "/replumb-freeze: is left over"},
		{"a backup", RolledBack, func(w *world) {
			w.object("configmaps", metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "x"})
		}, "configmaps replumb-system/x: is left over"},
		{"a label", Finished, func(w *world) {
			w.object("clusterroles.rbac.authorization.k8s.io", metav1.ObjectMeta{Name: "agent", Labels: marked})
		}, "has label replumb.dev/migration left over"},
		{"an annotation of a node", Finished, func(w *world) {
			w.object("nodes", metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{v1alpha1.AnnotationCordoned: "x"}})
		}, "nodes /node1: has annotation replumb.dev/cordoned left over"},
		{"a restricted label", Finished, func(w *world) {
			w.object("nodes", metav1.ObjectMeta{Name: "node1", Labels: map[string]string{v1alpha1.LabelAgents: "host"}})
		}, "nodes /node1: has label replumb.dev.node-restriction"},
		{"another lease", Finished, func(w *world) {
			w.object("leases.coordination.k8s.io", metav1.ObjectMeta{Namespace: "kube-system", Name: "replumb-overlap"})
		}, "kube-system/replumb-overlap: is left over"},
		{"a foreign definition", Finished, func(w *world) {
			w.object("customresourcedefinitions.apiextensions.k8s.io", metav1.ObjectMeta{Name: "x.example.com", Labels: marked})
		}, "x.example.com: has label replumb.dev/migration left over"},
		{"a taint's memory on a pod", Finished, func(w *world) {
			w.object(
				"pods",
				metav1.ObjectMeta{Namespace: "shop", Name: "p", Annotations: map[string]string{v1alpha1.AnnotationMovedAt: "x"}},
			)
		}, "pods shop/p: has annotation replumb.dev/moved-at left over"},
	}
}
