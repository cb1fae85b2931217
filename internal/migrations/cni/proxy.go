package cni

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// proxyStrategy switches nodes to Cilium one by one, and then has it take the place of kube-proxy.
type proxyStrategy struct{ *inPlaceStrategy }

// loadProxy looks at what a switch of nodes one by one goes by.
func loadProxy(ctx context.Context, d Deps, s *Inventory) (*proxyStrategy, error) {
	inPlace, err := loadInPlace(ctx, d, s)
	if err != nil {
		return nil, err
	}
	return newProxy(inPlace), nil
}

func newProxy(s *inPlaceStrategy) *proxyStrategy {
	s.ProxyReplacement = replacement{"true", "with spec.cni.kubeProxy: Replace"}
	return &proxyStrategy{s}
}

func (s *proxyStrategy) LeftOfSwitch() string {
	if left := s.inPlaceStrategy.LeftOfSwitch(); left != "" {
		return left
	}
	if nodes := s.toHandOver(forward); len(nodes) > 0 {
		return fmt.Sprintf("kube-proxy is not replaced on %s, the first is %s", english.Plural(len(nodes), "node", ""), nodes[0])
	}
	return ""
}

func (s *proxyStrategy) Removes() []string {
	out := s.inPlaceStrategy.Removes()
	for _, line := range leftover(nodecleanup.KubeProxy).Describe() {
		out = append(out, "removed from every node by finish, of kube-proxy: "+line)
	}
	return out
}

func (s *proxyStrategy) Plans(p *Planner) Plans { return s.PlansWith(p, s) }

// What is done to kube-proxy, by command.
func (s *proxyStrategy) Replace(p *inPlacePlanner) []engine.Group {
	return proxyPlanner{p, s}.replace()
}
func (s *proxyStrategy) Restore(p *inPlacePlanner) []engine.Group {
	return proxyPlanner{p, s}.restore()
}
func (s *proxyStrategy) Remove(p *inPlacePlanner) []engine.Group { return proxyPlanner{p, s}.remove() }

// toHandOver are the nodes where Services are not as a direction goes: forward those on which kube-proxy may still be, and on
// the way back those on which Cilium does its work.
func (s *proxyStrategy) toHandOver(d engine.Direction) []string {
	want := v1alpha1.ProxyReplaced
	if d == backward {
		want = ""
	}
	return s.ordered(d, func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelKubeProxy] != want })
}

// nodeConfigs are what has Cilium's agents take the place of kube-proxy.
func (s *proxyStrategy) nodeConfigs() []*unstructured.Unstructured {
	if s.Manifests == nil || s.Manifests.set() == nil {
		return nil
	}
	return podnetwork.ReplaceProxy(s.Manifests.set().Namespace, s.Manifests.setting(podnetwork.ProxyHealthKey))
}

// proxyPlanner adds to a switch under traffic what is done to kube-proxy.
type proxyPlanner struct {
	*inPlacePlanner
	proxy *proxyStrategy
}

// replace has Cilium lead to Services in place of kube-proxy, node by node, once every node has its network.
//
// The agent takes the work over while kube-proxy is there, so that there is no moment without either: Cilium's packets never
// get to kube-proxy's rules. Only then kube-proxy goes. Its rules stay until finish, for connections that it has led and for
// the way back.
func (p proxyPlanner) replace() []engine.Group {
	s := p.proxy
	nodes, configs := s.toHandOver(forward), s.nodeConfigs()
	if len(nodes) == 0 || len(configs) == 0 {
		return nil
	}
	var groups []engine.Group
	for i := range s.ProxySets {
		groups = append(groups, engine.InOrder(p.keepOff(&s.ProxySets[i]), p.proxyReady(&s.ProxySets[i]))...)
	}
	for _, o := range configs {
		groups = append(groups, engine.InOrder(p.Deps.apply(p.spec().Name, o, false))...)
	}
	for i, name := range nodes {
		groups = append(groups, p.handOverRound(i+1, name, forward, p.handOver(name))...)
	}
	return groups
}

// restore has kube-proxy lead to Services again: it is back, and has written rules, before Cilium lets go.
func (p proxyPlanner) restore() []engine.Group {
	s := p.proxy
	if !s.begun() {
		return nil
	}
	var groups []engine.Group
	for i, name := range s.toHandOver(backward) {
		groups = append(groups, p.handOverRound(i+1, name, backward, p.handBack(name))...)
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

// remove removes kube-proxy from the cluster, and its rules from nodes. Cilium's own configuration has it do the work
// everywhere by now.
func (p proxyPlanner) remove() []engine.Group {
	s := p.proxy
	var first []engine.Step
	for i := range s.ProxySets {
		first = append(first, p.Deps.remove(asObject(&s.ProxySets[i]), phaseProxy, p.frozen()))
	}
	return slices.Concat(
		engine.AtOnce(parallel, "Programs", first...), p.removeConfigs(), p.cleanInRounds(nodecleanup.KubeProxy, phaseProxy+"/clean"),
		p.eachNode(func(node string) engine.Step { return p.residue(nodecleanup.KubeProxy, phaseProxy+"/residue", node) }),
		p.eachNode(func(node string) engine.Step { return p.label(node, "", forward) }),
	)
}

// handOverRound is what is done to one node.
func (p proxyPlanner) handOverRound(number int, name string, d engine.Direction, steps []engine.Step) []engine.Group {
	title := "kube-proxy of " + name
	return p.around(title, occasion(phaseProxy, number, []string{name}, d), engine.AtOnce(1, title, steps...))
}

// handOver is the way of one node to Cilium.
func (p proxyPlanner) handOver(name string) []engine.Step {
	steps := []engine.Step{p.label(name, v1alpha1.ProxyBeside, forward), p.restartAgent(name, true, "")}
	for _, g := range p.Agents.Steady("Cilium beside kube-proxy on " + name) { // a loss ends the run while kube-proxy is there
		steps = append(steps, g.Steps...)
	}
	steps = append(steps, p.label(name, v1alpha1.ProxyLeaving, forward))
	if len(p.proxy.ProxySets) > 0 {
		steps = append(steps, p.proxyGone(name))
	}
	proof, health := p.proof(name, forward), p.proxy.Manifests.setting(podnetwork.ProxyHealthKey)
	switch {
	case health == "":
		steps = append(steps, proof)
	case len(p.proxy.ProxySets) == 0: // kube-proxy has the port until the operator has stopped it, which the proof waits for
		steps = append(steps, proof, p.restartAgent(name, true, health))
	default: // balancers ask there, so that comes first
		steps = append(steps, p.restartAgent(name, true, health), proof)
	}
	return append(steps, p.label(name, v1alpha1.ProxyReplaced, forward))
}

// handBack is the way of one node to kube-proxy.
func (p proxyPlanner) handBack(name string) []engine.Step {
	steps := []engine.Step{p.label(name, v1alpha1.ProxyBeside, backward)}
	if len(p.proxy.ProxySets) > 0 {
		steps = append(steps, p.proxyThere(name))
	}
	return append(steps, p.proof(name, backward), p.label(name, "", backward), p.restartAgent(name, false, ""))
}

// removeConfigs removes what has single agents take the place of kube-proxy.
func (p proxyPlanner) removeConfigs() []engine.Group {
	var steps []engine.Step
	for _, o := range slices.Backward(p.proxy.nodeConfigs()) {
		steps = append(steps, p.removeConfig(o))
	}
	return engine.InOrder(steps...)
}
