package services

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Strategies say how a Service gets to another address.
type Strategies struct {
	of v1alpha1.StrategiesSpec
	// etcd says that the etcd of the API servers is named.
	etcd bool
}

// StrategiesOf a Migration.
func StrategiesOf(j *v1alpha1.ServiceCIDRSpec) Strategies {
	return Strategies{of: j.Strategies, etcd: j.Etcd != nil}
}

// Choose is the strategy for a Service; chosen, if its annotation says so. Empty means that no
// strategy moves it; why follows its name.
func (s Strategies) Choose(svc *corev1.Service) (strategy v1alpha1.Strategy, chosen bool, why string) {
	svc = AsOwned(svc)
	text, chosen := svc.Annotations[v1alpha1.AnnotationStrategy]
	cannotHop := unhoppable(svc)
	switch {
	case !chosen:
	case text == v1alpha1.StrategyPin:
		return v1alpha1.StrategyOfPin, true, "is pinned by its annotation " + v1alpha1.AnnotationStrategy
	case text == v1alpha1.StrategyEtcd && !s.etcd:
		return "", true, "asks for strategy etcd, and spec.serviceCIDR.etcd does not say how etcd is reached"
	case text == v1alpha1.StrategyEtcd:
		return v1alpha1.StrategyOfEtcd, true, ""
	case text != v1alpha1.StrategyHop:
		return "", true, fmt.Sprintf("asks for strategy %q, which is not known", text)
	case cannotHop == "":
		return v1alpha1.StrategyOfHop, true, ""
	}
	field, strategy := s.byKind(svc)
	switch {
	case strategy == v1alpha1.StrategyOfPin && svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return strategy, false, "is of type LoadBalancer, and its load balancer would be deleted if it hopped"
	case strategy == v1alpha1.StrategyOfPin:
		return strategy, false, "is pinned by spec.serviceCIDR.strategies." + field
	case strategy == "":
		return "", chosen, cannotHop
	}
	return strategy, chosen, ""
}

func (s Strategies) byKind(svc *corev1.Service) (field string, strategy v1alpha1.Strategy) {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "loadBalancer", cmp.Or(s.of.LoadBalancer, v1alpha1.StrategyOfPin)
	case unhoppable(svc) != "" && s.of.Other == "" && s.etcd:
		return "other", v1alpha1.StrategyOfEtcd
	case unhoppable(svc) != "":
		return "other", s.of.Other
	case svc.Spec.Type == corev1.ServiceTypeNodePort:
		return "nodePort", cmp.Or(s.of.NodePort, v1alpha1.StrategyOfHop)
	}
	return "clusterIP", cmp.Or(s.of.ClusterIP, v1alpha1.StrategyOfHop)
}

// unhoppable says what of a Service a hop would not keep; empty, if it keeps all.
func unhoppable(svc *corev1.Service) string {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "is of type LoadBalancer, and its load balancer would be deleted if it hopped"
	case len(svc.Spec.ExternalIPs) > 0:
		return "has externalIPs, which would stop answering for a moment"
	case InternalLocal(svc):
		return "has internalTrafficPolicy Local, which a bridge cannot keep"
	}
	return ""
}

// InternalLocal reports whether a Service leads pods to endpoints of their own node alone.
func InternalLocal(svc *corev1.Service) bool {
	p := svc.Spec.InternalTrafficPolicy
	return p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal
}

// Of by which the Service moves. One in the middle of a hop goes on hopping.
func (s Strategies) Of(e *Entry) v1alpha1.Strategy {
	if e.Position == InTransit {
		return v1alpha1.StrategyOfHop
	}
	strategy, _, _ := s.Choose(e.AsOwned(e.Service))
	return strategy
}

// Risk says in a few words what may be lost in the move of a Service; empty, if nothing is known.
func (s Strategies) Risk(e *Entry) string {
	var all []string
	if s.Of(e) == v1alpha1.StrategyOfHop {
		if e.HasNodePorts() {
			all = append(all, nodePortRisk)
		}
		if e.Called && e.Old.Is4() {
			all = append(all, "its name has no DNS answer for some milliseconds")
		}
	}
	if InternalLocal(e.Service) {
		all = append(all, "its old address leads to endpoints of all nodes until finish")
	}
	return strings.Join(all, "; ")
}

// nodePortRisk is what a hop of a Service with node ports costs, as TestNodePorts has measured it.
const nodePortRisk = "measured: node ports refused connections for 1.1 s in 2 of 60 moves where one Service changes a second, in none of 60 on a quiet cluster"
