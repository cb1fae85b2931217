package servicecidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// strategies say how a Service gets to another address.
type strategies struct {
	of v1alpha1.StrategiesSpec
	// etcd says that the etcd of the API servers is named.
	etcd bool
}

func strategiesOf(j *v1alpha1.ServiceCIDRSpec) strategies {
	return strategies{of: j.Strategies, etcd: j.Etcd != nil}
}

// choose is the strategy for a Service with an address, by its annotation or by its kind, and chosen, whether it is the annotation's. It is
// empty for a Service that no strategy moves; why says so in words that follow its name.
func (s strategies) choose(svc *corev1.Service) (strategy v1alpha1.Strategy, chosen bool, why string) {
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

// byKind is the strategy for Services of the kind of one, and the field of the Migration that says so.
func (s strategies) byKind(svc *corev1.Service) (field string, strategy v1alpha1.Strategy) {
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

// unhoppable says what of a Service a hop would not keep; nothing, if it would keep all.
func unhoppable(svc *corev1.Service) string {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "is of type LoadBalancer, and its load balancer would be deleted if it hopped"
	case len(svc.Spec.ExternalIPs) > 0:
		return "has externalIPs, which would stop answering for a moment"
	case internalLocal(svc):
		return "has internalTrafficPolicy Local, which a bridge cannot keep"
	}
	return ""
}

// internalLocal reports whether a Service leads pods to endpoints of their own node alone.
func internalLocal(svc *corev1.Service) bool {
	p := svc.Spec.InternalTrafficPolicy
	return p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal
}

// strategy by which the Service moves. One in the middle of a hop goes on hopping.
func (s strategies) strategy(e *Entry) v1alpha1.Strategy {
	if e.Place == HalfHopped {
		return v1alpha1.StrategyOfHop
	}
	strategy, _, _ := s.choose(e.Service)
	return strategy
}

// risk says what may be lost in the move of a Service, in a few words; nothing, if nothing is known.
func (s strategies) risk(e *Entry) string {
	var all []string
	if s.strategy(e) == v1alpha1.StrategyOfHop {
		if e.HasNodePorts() {
			all = append(all, nodePortRisk)
		}
		if e.called && e.Old.Is4() {
			all = append(all, "its name has no DNS answer for some milliseconds")
		}
	}
	if internalLocal(e.Service) {
		all = append(all, "its old address leads to endpoints of all nodes until finish")
	}
	return strings.Join(all, "; ")
}

// nodePortRisk is what a hop of a Service with node ports costs, as TestNodePorts has measured it.
const nodePortRisk = "measured: node ports refused connections for 1.1 s in 2 of 60 moves where one Service changes a second, in none of 60 on a quiet cluster"

// Line is how one Service fares, in words for people: what a plan lists first.
type Line struct {
	Service string `json:"service"`
	// Kind is the type of the Service.
	Kind string `json:"kind"`
	// Strategy is hop, etcd, pin, or stay for what the migration has nothing to do with, or cannot move.
	Strategy string `json:"strategy"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	// Risk is what may be lost; empty, if nothing is known. Reason is why the Service keeps its address, if it does.
	Risk   string `json:"risk,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Lines are those of all Services: those that move in their order, then those that keep their address.
func (s *Survey) Lines() []Line {
	all := make([]Line, 0, len(s.Moves)+len(s.Pins)+len(s.Stays))
	for _, e := range s.Moves {
		all = append(all, Line{
			Service: e.Key().
				String(),
			Kind:     e.kind(),
			Strategy: e.by(),
			From:     text(e.Old),
			To:       text(e.New),
			Risk:     s.Spec.Strategies.risk(e),
		})
	}
	for _, e := range s.Pins {
		all = append(all, Line{
			Service: e.Key().
				String(),
			Kind:     e.kind(),
			Strategy: v1alpha1.StrategyPin,
			From:     text(e.Old),
			To:       text(e.Old),
			Reason:   e.Reason.String(),
		})
	}
	for _, e := range s.Stays {
		all = append(all, Line{
			Service: e.Key().String(), Kind: e.kind(), Strategy: "stay", From: text(e.Old), To: text(e.Old), Reason: e.Reason.String(),
		})
	}
	return all
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// kind is the type that the Service has, or had before its hop, with what of it decides on the strategy.
func (e *Entry) kind() string {
	spec := &e.Service.Spec
	if e.Place == HalfHopped {
		if original, err := e.original(e.Service); err == nil {
			spec = original
		}
	}
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
		return "headless"
	case len(spec.ExternalIPs) > 0:
		return string(spec.Type) + ", externalIPs"
	case internalLocal(e.Service):
		return string(spec.Type) + ", internal Local"
	}
	return string(spec.Type)
}

// by is the strategy, as it is written in annotations.
func (e *Entry) by() string {
	if e.strategy == v1alpha1.StrategyOfEtcd {
		return v1alpha1.StrategyEtcd
	}
	return v1alpha1.StrategyHop
}
