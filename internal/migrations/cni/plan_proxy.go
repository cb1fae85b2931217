package cni

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// proxySets are the DaemonSets that run kube-proxy on nodes with Linux.
func proxySets(all []appsv1.DaemonSet) []appsv1.DaemonSet {
	var out []appsv1.DaemonSet
	for i := range all {
		template := &all[i].Spec.Template.Spec
		if len(cluster.ProxiesOf("", template)) > 0 && template.NodeSelector[corev1.LabelOSStable] != "windows" {
			out = append(out, all[i])
		}
	}
	return out
}

// proxied are the nodes where it is not as a direction goes: forward those on which kube-proxy may still be, and on the way back those on which
// Cilium does its work.
func (s *Survey) proxied(d engine.Direction) []string {
	if !s.Spec.ReplaceProxy {
		return nil
	}
	want := v1alpha1.ProxyReplaced
	if d == backward {
		want = ""
	}
	return s.ordered(d, func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelKubeProxy] != want })
}

// nodeConfigs are what has Cilium's agents take the place of kube-proxy.
func (s *Survey) nodeConfigs() []*unstructured.Unstructured {
	if s.Manifests == nil || s.Manifests.set() == nil {
		return nil
	}
	return podnetwork.ReplaceProxy(s.Manifests.set().Namespace, s.Manifests.setting(podnetwork.ProxyHealthKey))
}

// replaceProxy has Cilium lead to Services in place of kube-proxy, node by node, once every node has its network.
//
// The agent takes the work over while kube-proxy is there, so that there is no moment without either: what Cilium leads never gets to kube-proxy's
// rules. Only then kube-proxy goes. Its rules stay until finish, for connections that it has led and for the way back.
func (p *Planner) replaceProxy() []engine.Group {
	nodes := p.Survey.proxied(forward)
	configs := p.Survey.nodeConfigs()
	if len(nodes) == 0 || len(configs) == 0 {
		return nil
	}
	var groups []engine.Group
	for i := range p.Survey.ProxySets {
		groups = append(groups, engine.InOrder(p.keepOff(&p.Survey.ProxySets[i]), p.settled(&p.Survey.ProxySets[i]))...)
	}
	for _, o := range configs {
		groups = append(groups, engine.InOrder(p.Tools.apply(p.spec().Name, o, false))...)
	}
	for i, name := range nodes {
		groups = append(groups, p.proxyRound(i+1, name, forward)...)
	}
	return groups
}

// restoreProxy has kube-proxy lead to Services again: it is back, and has written rules, before Cilium lets go.
func (p *Planner) restoreProxy() []engine.Group {
	if !p.Survey.begun() || !p.Survey.Spec.ReplaceProxy {
		return nil
	}
	var groups []engine.Group
	for i, name := range p.Survey.proxied(backward) {
		groups = append(groups, p.proxyRound(i+1, name, backward)...)
	}
	groups = append(groups, p.withoutConfigs()...)
	for i := range p.Survey.ProxySets {
		ds := &p.Survey.ProxySets[i]
		if ds.Annotations[v1alpha1.AnnotationAffinity] != "" {
			groups = append(groups, engine.InOrder(p.letOn(ds), p.settled(ds))...)
		}
	}
	return groups
}

// proxyRound is what is done to one node, in this order.
func (p *Planner) proxyRound(number int, name string, d engine.Direction) []engine.Group {
	title := "kube-proxy of " + name
	o := hook.Occasion{Run: hook.Apply, Moment: v1alpha1.BeforeBatch, Phase: phaseProxy, Batch: number, Nodes: []string{name}}
	var groups []engine.Group
	if d == backward {
		o.Run = hook.Rollback
	} else if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.AtOnce(1, title, window.NewStep("window/"+title, windows, p.Tools.Now))...)
	}
	groups = append(groups, p.Hooks(o)...)
	steps := p.takeOver(name)
	if d == backward {
		steps = p.handBack(name)
	}
	groups = append(groups, engine.AtOnce(1, title, steps...)...)
	steady := p.Agents.Steady(title)
	if d == backward {
		steady = p.Agents.BestEffort(steady)
	}
	o.Moment = v1alpha1.AfterBatch
	return slices.Concat(groups, steady, p.Hooks(o))
}

// takeOver is the way of one node to Cilium.
func (p *Planner) takeOver(name string) []engine.Step {
	steps := []engine.Step{p.mark(name, v1alpha1.ProxyBeside, forward), p.agentReplaces(name, true, "")}
	if p.Agents != nil { // a loss ends the run while kube-proxy is there
		for _, g := range p.Agents.Steady("Cilium beside kube-proxy on " + name) {
			steps = append(steps, g.Steps...)
		}
	}
	steps = append(steps, p.mark(name, v1alpha1.ProxyLeaving, forward))
	if len(p.Survey.ProxySets) > 0 {
		steps = append(steps, p.proxyGone(name))
	}
	proof, health := p.proof(name, forward), p.Survey.Manifests.setting(podnetwork.ProxyHealthKey)
	switch {
	case health == "":
		steps = append(steps, proof)
	case len(p.Survey.ProxySets) == 0: // kube-proxy has the port until the operator has stopped it, which the proof waits for
		steps = append(steps, proof, p.agentReplaces(name, true, health))
	default: // balancers ask there, so that comes first
		steps = append(steps, p.agentReplaces(name, true, health), proof)
	}
	return append(steps, p.mark(name, v1alpha1.ProxyReplaced, forward))
}

// handBack is the way of one node to kube-proxy.
func (p *Planner) handBack(name string) []engine.Step {
	steps := []engine.Step{p.mark(name, v1alpha1.ProxyBeside, backward)}
	if len(p.Survey.ProxySets) > 0 {
		steps = append(steps, p.proxyThere(name))
	}
	return append(steps, p.proof(name, backward), p.mark(name, "", backward), p.agentReplaces(name, false, ""))
}

// removeProxy removes kube-proxy from the cluster, and its rules from nodes. Cilium's own configuration has it do the work everywhere by now.
func (p *Planner) removeProxy() []engine.Group {
	if !p.Survey.Spec.ReplaceProxy {
		return nil
	}
	var first, clean, plain []engine.Step
	for i := range p.Survey.ProxySets {
		first = append(first, p.Tools.remove(asObject(&p.Survey.ProxySets[i]), phaseProxy, p.Survey.Frozen))
	}
	for _, name := range p.Survey.NodeNames() {
		clean = append(clean, p.residue(nodecleanup.KubeProxy, phaseProxy+"/residue", name))
		plain = append(plain, p.mark(name, "", forward))
	}
	return slices.Concat(
		engine.AtOnce(parallel, "Programs", first...), p.withoutConfigs(), p.cleanServing(nodecleanup.KubeProxy, phaseProxy+"/clean"),
		engine.AtOnce(parallel, "Nodes", clean...), engine.AtOnce(parallel, "Nodes", plain...),
	)
}

// withoutConfigs removes what has single agents take the place of kube-proxy.
func (p *Planner) withoutConfigs() []engine.Group {
	var steps []engine.Step
	for _, o := range slices.Backward(p.Survey.nodeConfigs()) {
		steps = append(steps, p.forgetConfig(o))
	}
	return engine.InOrder(steps...)
}
