package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/network/calico"
)

// has reports whether a pod has an address of some ranges.
func has(pod *corev1.Pod, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}

// arrived reports whether a pod has addresses, and none of the ranges that are left.
func arrived(pod *corev1.Pod, leaving []netip.Prefix) bool {
	return len(calico.PodAddresses(pod)) > 0 && !has(pod, leaving)
}

// rangesOf are those that pods have with a network.
func (s *Survey) rangesOf(network v1alpha1.CNIName) []netip.Prefix {
	if network == s.Spec.To {
		return s.target()
	}
	return s.Ranges
}

// strangers are the pods that have an address of the other network.
func (s *Survey) strangers(network v1alpha1.CNIName) []corev1.Pod {
	other := s.Spec.To
	if network == s.Spec.To {
		other = s.from()
	}
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; concerned(p) && has(p, s.rangesOf(other)) {
			out = append(out, *p)
		}
	}
	return out
}

// unsettled are the nodes that are not where a direction goes.
func (s *Survey) unsettled(d engine.Direction) []string {
	network, label := s.Spec.To, string(s.Spec.To)
	if d == engine.Backward {
		network, label = s.from(), ""
	}
	crowded := map[string]bool{}
	for _, p := range s.strangers(network) {
		crowded[p.Spec.NodeName] = true
	}
	return s.ordered(d, func(n *corev1.Node) bool {
		return n.Annotations[v1alpha1.AnnotationPodNetwork] != label || cordon.Closed(n) || crowded[n.Name]
	})
}

// unswitched are the nodes that give new pods the old network.
func (s *Survey) unswitched() []string {
	return s.ordered(engine.Forward, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.AnnotationPodNetwork] != string(s.Spec.To) })
}

// ordered are the nodes that a condition holds for, by name: those that were named to go first lead, and on the way back they are last.
func (s *Survey) ordered(d engine.Direction, holds func(*corev1.Node) bool) []string {
	var all []string
	for i := range s.Nodes {
		if n := &s.Nodes[i]; holds(n) {
			all = append(all, n.Name)
		}
	}
	rank := func(name string) int {
		if i := slices.Index(s.Spec.InPlace.First, name); i >= 0 {
			return i
		}
		return len(s.Spec.InPlace.First)
	}
	slices.SortFunc(all, func(a, b string) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return strings.Compare(a, b)
	})
	if d == engine.Backward {
		slices.Reverse(all)
	}
	return all
}

// leftServing says what of apply is left to do; nothing, if it is through.
func (s *Survey) leftServing() string {
	if !s.begun() {
		return fmt.Sprintf("%s is not installed beside %s", s.Spec.To, s.from())
	}
	if nodes := s.unsettled(engine.Forward); len(nodes) > 0 {
		return fmt.Sprintf(
			"%s not switched to %s, the first is %s",
			english.Plural(len(nodes), "node is", "nodes are"),
			s.Spec.To,
			nodes[0],
		)
	}
	if nodes := s.proxied(engine.Forward); len(nodes) > 0 {
		return fmt.Sprintf("kube-proxy is not replaced on %s, the first is %s", english.Plural(len(nodes), "node", ""), nodes[0])
	}
	return ""
}

// stagesServing say for each node which network it gives to new pods, and how many of its pods have the other one.
func (s *Survey) stagesServing() []NodeStatus {
	stale := map[string]int{}
	for _, p := range s.strangers(s.Spec.To) {
		stale[p.Spec.NodeName]++
	}
	var out []NodeStatus
	for i := range s.Nodes {
		n := &s.Nodes[i]
		st := NodeStatus{Name: n.Name, Pods: stale[n.Name], Stage: StageOld}
		if n.Annotations[v1alpha1.AnnotationPodNetwork] == string(s.Spec.To) {
			st.Stage = StageNew
			if st.Pods == 0 && !cordon.Closed(n) {
				st.Stage = StageSwitched
			}
		}
		out = append(out, st)
	}
	return out
}
