// Package placement finds nodes for pods by the scheduler's predicates in k8s.io/component-helpers.
package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Misfit is a pod that no node takes.
type Misfit struct {
	Pod     *corev1.Pod
	Reasons string
}

// candidate is a node with what is free on it.
type candidate struct {
	node *corev1.Node
	free corev1.ResourceList
	pods []*corev1.Pod
}

// Place puts pods on nodes, the largest first, beside those of running, and returns the pods that
// do not fit. Topology spread, volumes and extenders do not count.
func Place(pods []*corev1.Pod, nodes []*corev1.Node, running []corev1.Pod) []Misfit {
	var all []*candidate
	for _, n := range nodes {
		all = append(all, newCandidate(n, running))
	}
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		x, y := Requests(a), Requests(b)
		return cmp.Or(y.Cpu().Cmp(*x.Cpu()), y.Memory().Cmp(*x.Memory()), strings.Compare(a.Namespace+a.Name, b.Namespace+b.Name))
	})
	var out []Misfit
	for _, p := range pods {
		if reasons := put(p, all); len(reasons) > 0 {
			out = append(out, Misfit{Pod: p, Reasons: summarize(reasons)})
		}
	}
	return out
}

func newCandidate(n *corev1.Node, running []corev1.Pod) *candidate {
	at := &candidate{node: n, free: n.Status.Allocatable.DeepCopy()}
	for i := range running {
		p := &running[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if p.Spec.NodeName == n.Name && !ended {
			at.take(p)
		}
	}
	return at
}

func (at *candidate) take(p *corev1.Pod) {
	for name, want := range Requests(p) {
		if have, ok := at.free[name]; ok {
			have.Sub(want)
			at.free[name] = have
		}
	}
	at.pods = append(at.pods, p)
}

// Requests of a pod, with the place that it takes among the pods of its node.
func Requests(p *corev1.Pod) corev1.ResourceList {
	want := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	want[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return want
}

// put takes the node with most CPU free, as the scheduler prefers it, or says why no node fits.
func put(p *corev1.Pod, all []*candidate) map[string]int {
	reasons := map[string]int{}
	var best *candidate
	for _, at := range all {
		if why := at.refuses(p); why != "" {
			reasons[why]++
			continue
		}
		if best == nil || at.free.Cpu().Cmp(*best.free.Cpu()) > 0 {
			best = at
		}
	}
	if best != nil {
		best.take(p)
		return nil
	}
	if len(all) == 0 {
		reasons["there is no new node that takes pods"] = 0
	}
	return reasons
}

func (at *candidate) refuses(p *corev1.Pod) string {
	taint, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(
		klog.Background(),
		at.node.Spec.Taints,
		p.Spec.Tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeNotReady && t.Key != v1alpha1.TaintLeaving
		},
		false,
	)
	if untolerated {
		return "with the taint " + taint.Key
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(at.node); err != nil || !fits {
		return "that its node selector or affinity does not choose"
	}
	want := Requests(p)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		amount := want[name]
		if have := at.free[name]; !amount.IsZero() && amount.Cmp(have) > 0 {
			return "without enough " + string(name)
		}
	}
	switch {
	case at.portsTaken(p):
		return "with its host ports taken"
	case at.repels(p):
		return "with pods that it must not be beside"
	}
	return ""
}

func hostPorts(p *corev1.Pod) map[string]bool {
	all := map[string]bool{}
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.HostPort != 0 {
				all[fmt.Sprintf("%s/%d", cmp.Or(port.Protocol, corev1.ProtocolTCP), port.HostPort)] = true
			}
		}
	}
	return all
}

func (at *candidate) portsTaken(p *corev1.Pod) bool {
	want := hostPorts(p)
	if len(want) == 0 {
		return false
	}
	return slices.ContainsFunc(at.pods, func(o *corev1.Pod) bool {
		for port := range hostPorts(o) {
			if want[port] {
				return true
			}
		}
		return false
	})
}

// repels reports whether required anti-affinity keeps two pods apart, by node.
func (at *candidate) repels(p *corev1.Pod) bool {
	return slices.ContainsFunc(at.pods, func(o *corev1.Pod) bool { return avoids(p, o) || avoids(o, p) })
}

func avoids(p, o *corev1.Pod) bool {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	for _, term := range p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		there := slices.Contains(term.Namespaces, o.Namespace) || len(term.Namespaces) == 0 && o.Namespace == p.Namespace
		if err == nil && there && selector.Matches(labels.Set(o.Labels)) {
			return true
		}
	}
	return false
}

func summarize(reasons map[string]int) string {
	var all []string
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		switch n := reasons[why]; n {
		case 0:
			all = append(all, why)
		case 1:
			all = append(all, "1 node "+why)
		default:
			all = append(all, fmt.Sprintf("%d nodes %s", n, why))
		}
	}
	return strings.Join(all, ", ")
}
