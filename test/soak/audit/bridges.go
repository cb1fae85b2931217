package audit

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/ownaddress"
	"github.com/replumb/replumb/test/soak/model"
)

// auditBridges looks whether each Service that has moved answers at its old address itself, or has a bridge which does and leads where
// it leads.
func (r *report) auditBridges() {
	bridges := map[model.Key]*corev1.Service{}
	for i := range r.Services {
		svc := &r.Services[i]
		if svc.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			bridges[model.Key{Namespace: svc.Namespace, Name: svc.Annotations[v1alpha1.AnnotationService]}] = svc
		}
	}
	for _, key := range r.moved() {
		svc, bridge := r.services[key], bridges[key]
		switch {
		case svc == nil:
			continue // which is reported
		case keepsItself(svc, r.Was[key]):
		case bridge == nil:
			r.add(name("service", key), "has no bridge at %s", r.Was[key])
		default:
			r.auditBridge(svc, bridge, r.Was[key])
		}
	}
}

func keepsItself(svc *corev1.Service, old string) bool {
	a, err := netip.ParseAddr(old)
	_, itself := ownaddress.FormOf(svc, a)
	return err == nil && itself
}

// moved are the Services that must have moved: not those that a rollback has left in the range that is the target again.
func (r *report) moved() []model.Key {
	all := slices.DeleteFunc(r.Model.ServiceKeys(), func(k model.Key) bool {
		was, err := netip.ParseAddr(r.Was[k])
		return r.Model.Place(k) != model.Moves || (err == nil && r.New.Contains(was))
	})
	return append(all, clusters()...)
}

func (r *report) auditBridge(svc, bridge *corev1.Service, old string) {
	object := name("bridge", keyOf(bridge))
	at := slices.Clone(bridge.Spec.ExternalIPs)
	for _, in := range bridge.Status.LoadBalancer.Ingress {
		at = append(at, in.IP)
	}
	if !slices.Contains(at, old) {
		r.add(object, "answers at %q, not at %s", at, old)
	}
	if want, have := svc.Spec.Selector, bridge.Spec.Selector; len(differences(wrapped{want}, wrapped{have})) > 0 {
		r.add(object, "selects %v instead of %v", have, want)
	}
	r.sameEndpoints(object, r.leads(keyOf(svc)), r.leads(keyOf(bridge)))
}

// wrapped makes of anything something that has fields.
type wrapped struct{ Value any }
