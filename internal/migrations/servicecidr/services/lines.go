package services

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Line is how one Service fares, in words for people: what a plan lists first.
type Line struct {
	Service string `json:"service"`
	// Kind is the type of the Service.
	Kind string `json:"kind"`
	// Strategy is hop, etcd, pin, or stay.
	Strategy string `json:"strategy"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	// Overlap is where the other address answers until finish: externalIPs, load balancer or
	// bridge; OverlapWhy says why there.
	Overlap    string `json:"overlap,omitempty"`
	OverlapWhy string `json:"overlapWhy,omitempty"`
	// Risk is what may be lost, Reason why the Service keeps its address; either may be empty.
	Risk   string `json:"risk,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Lines are those of all Services: first those that move, in their order.
func (s *Inventory) Lines() []Line {
	all := make([]Line, 0, len(s.Moves)+len(s.Pins)+len(s.Stays))
	for _, e := range s.Moves {
		all = append(all, Line{
			Service: e.Key().String(), Kind: e.kindText(), Strategy: e.StrategyText(), From: text(e.Old), To: text(e.New),
			Overlap: e.Overlap.String(), OverlapWhy: e.Overlap.Why, Risk: s.Spec.Strategies.Risk(e),
		})
	}
	for _, e := range s.Pins {
		all = append(all, Line{
			Service: e.Key().String(), Kind: e.kindText(), Strategy: v1alpha1.StrategyPin, From: text(e.Old), To: text(e.Old),
			Reason: e.Reason.String(),
		})
	}
	for _, e := range s.Stays {
		all = append(all, Line{
			Service: e.Key().String(), Kind: e.kindText(), Strategy: "stay", From: text(e.Old), To: text(e.Old), Reason: e.Reason.String(),
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

// kindText is the type outside of hops, with what of it decides on the strategy.
func (e *Entry) kindText() string {
	spec := &e.AsOwned(e.Service).Spec
	if e.Position == InTransit {
		if original, err := e.OriginalSpec(e.Service); err == nil {
			spec = original
		}
	}
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
		return "headless"
	case len(spec.ExternalIPs) > 0:
		return string(spec.Type) + ", externalIPs"
	case InternalLocal(e.Service):
		return string(spec.Type) + ", internal Local"
	}
	return string(spec.Type)
}

// StrategyText is the strategy, as it is written in annotations.
func (e *Entry) StrategyText() string {
	if e.Strategy == v1alpha1.StrategyOfEtcd {
		return v1alpha1.StrategyEtcd
	}
	return v1alpha1.StrategyHop
}
