// Package proxy has Cilium take the place of kube-proxy as well, once package inplace has given
// every node its network.
package proxy

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/cni/inplace"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// Strategy switches nodes to Cilium one by one, and then has it take the place of kube-proxy.
type Strategy struct{ *inplace.Strategy }

// Load looks at what a switch of nodes one by one goes by.
func Load(ctx context.Context, d switchover.Deps, s *switchover.Inventory) (*Strategy, error) {
	inPlace, err := inplace.Load(ctx, d, s)
	if err != nil {
		return nil, err
	}
	return New(inPlace), nil
}

// New is the strategy of a migration that replaces kube-proxy as well.
func New(s *inplace.Strategy) *Strategy {
	s.ProxyReplacement = inplace.ProxySettings{Want: "true", Why: "with spec.cni.kubeProxy: Replace"}
	return &Strategy{s}
}

func (s *Strategy) LeftOfSwitch() string {
	if left := s.Strategy.LeftOfSwitch(); left != "" {
		return left
	}
	if nodes := s.toHandOver(engine.Forward); len(nodes) > 0 {
		return fmt.Sprintf("kube-proxy is not replaced on %s, the first is %s", english.Plural(len(nodes), "node", ""), nodes[0])
	}
	return ""
}

func (s *Strategy) Removes() []string {
	out := s.Strategy.Removes()
	for _, line := range switchover.Leftover(nodecleanup.KubeProxy).Describe() {
		out = append(out, "removed from every node by finish, of kube-proxy: "+line)
	}
	return out
}

func (s *Strategy) Plans(p *switchover.Planner) switchover.Plans { return s.PlansWith(p, s) }

func (s *Strategy) Replace(p *inplace.Planner) []engine.Group { return planner{p, s}.replace() }
func (s *Strategy) Restore(p *inplace.Planner) []engine.Group { return planner{p, s}.restore() }
func (s *Strategy) Remove(p *inplace.Planner) []engine.Group  { return planner{p, s}.remove() }

// toHandOver are the nodes where Services are not as a direction goes: forward those on which
// kube-proxy may still be, and on the way back those on which Cilium does its work.
func (s *Strategy) toHandOver(d engine.Direction) []string {
	want := v1alpha1.ProxyReplaced
	if d == engine.Backward {
		want = ""
	}
	return s.Ordered(d, func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelKubeProxy] != want })
}

// nodeConfigs are what has Cilium's agents take the place of kube-proxy.
func (s *Strategy) nodeConfigs() []*unstructured.Unstructured {
	if s.Manifests == nil || s.Manifests.DaemonSet() == nil {
		return nil
	}
	return podnetwork.ReplaceProxy(s.Manifests.DaemonSet().Namespace, s.Manifests.CiliumSetting(podnetwork.ProxyHealthKey))
}

// planner adds to a switch under traffic what is done to kube-proxy.
type planner struct {
	*inplace.Planner
	proxy *Strategy
}

// replace has Cilium lead to Services in place of kube-proxy, node by node, once every node has its
// network.
//
// The agent takes the work over while kube-proxy is there, so that there is no moment without
// either: Cilium's packets never get to kube-proxy's rules. Only then kube-proxy goes. Its rules
// stay until finish, for connections that it has led and for the way back.
func (p planner) replace() []engine.Group {
	s := p.proxy
	nodes, configs := s.toHandOver(engine.Forward), s.nodeConfigs()
	if len(nodes) == 0 || len(configs) == 0 {
		return nil
	}
	var groups []engine.Group
	for i := range s.ProxySets {
		groups = append(groups, engine.InOrder(p.keepOff(&s.ProxySets[i]), p.proxyReady(&s.ProxySets[i]))...)
	}
	for _, o := range configs {
		groups = append(groups, engine.InOrder(p.Deps.Apply(p.Spec().Name, o, false))...)
	}
	for i, name := range nodes {
		groups = append(groups, p.handOverRound(i+1, name, engine.Forward, p.handOver(name))...)
	}
	return groups
}

// restore has kube-proxy back, with its rules written, before Cilium lets go of Services.
func (p planner) restore() []engine.Group {
	s := p.proxy
	if !s.Begun() {
		return nil
	}
	var groups []engine.Group
	for i, name := range s.toHandOver(engine.Backward) {
		groups = append(groups, p.handOverRound(i+1, name, engine.Backward, p.handBack(name))...)
	}
	groups = append(groups, p.removeConfigs()...)
	for i := range s.ProxySets {
		ds := &s.ProxySets[i]
		if ds.Annotations[v1alpha1.AnnotationAffinity] != "" {
			groups = append(groups, engine.InOrder(p.letOn(ds), p.proxyReady(ds))...)
		}
	}
	return groups
}

func (p planner) remove() []engine.Group {
	s := p.proxy
	var first []engine.Step
	for i := range s.ProxySets {
		first = append(first, p.Deps.Remove(asObject(&s.ProxySets[i]), inplace.PhaseProxy, p.Frozen()))
	}
	return slices.Concat(
		engine.AtOnce(manifests.Parallel, "Programs", first...), p.removeConfigs(), p.CleanInRounds(nodecleanup.KubeProxy, inplace.PhaseProxy+"/clean"),
		p.EachNode(func(node string) engine.Step {
			return p.Residue(nodecleanup.KubeProxy, inplace.PhaseProxy+"/residue", node)
		}),
		p.EachNode(func(node string) engine.Step { return p.label(node, "", engine.Forward) }),
	)
}

func (p planner) handOverRound(number int, name string, d engine.Direction, steps []engine.Step) []engine.Group {
	title := "kube-proxy of " + name
	return p.Around(title, inplace.Occasion(inplace.PhaseProxy, number, []string{name}, d), engine.AtOnce(1, title, steps...))
}

func (p planner) handOver(name string) []engine.Step {
	steps := []engine.Step{p.label(name, v1alpha1.ProxyBeside, engine.Forward), p.restartAgent(name, true, "")}
	for _, g := range p.Agents.Steady("Cilium beside kube-proxy on " + name) { // a loss ends the run while kube-proxy is there
		steps = append(steps, g.Steps...)
	}
	steps = append(steps, p.label(name, v1alpha1.ProxyLeaving, engine.Forward))
	if len(p.proxy.ProxySets) > 0 {
		steps = append(steps, p.proxyGone(name))
	}
	proof, health := p.proof(name, engine.Forward), p.proxy.Manifests.CiliumSetting(podnetwork.ProxyHealthKey)
	switch {
	case health == "":
		steps = append(steps, proof)
	case len(p.proxy.ProxySets) == 0: // kube-proxy has the port until the operator has stopped it, which the proof waits for
		steps = append(steps, proof, p.restartAgent(name, true, health))
	default: // balancers ask there, so that comes first
		steps = append(steps, p.restartAgent(name, true, health), proof)
	}
	return append(steps, p.label(name, v1alpha1.ProxyReplaced, engine.Forward))
}

func (p planner) handBack(name string) []engine.Step {
	steps := []engine.Step{p.label(name, v1alpha1.ProxyBeside, engine.Backward)}
	if len(p.proxy.ProxySets) > 0 {
		steps = append(steps, p.proxyThere(name))
	}
	return append(steps, p.proof(name, engine.Backward), p.label(name, "", engine.Backward), p.restartAgent(name, false, ""))
}

func (p planner) removeConfigs() []engine.Group {
	var steps []engine.Step
	for _, o := range slices.Backward(p.proxy.nodeConfigs()) {
		steps = append(steps, p.removeConfig(o))
	}
	return engine.InOrder(steps...)
}
