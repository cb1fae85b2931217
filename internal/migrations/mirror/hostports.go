package mirror

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/workload"
)

// hostPortProblem is a port of nodes that a copy cannot have.
type hostPortProblem struct{ object, text string }

// hostPortProblems compares what copies ask for with what other pods have on the nodes that the
// copies can be on. One of a DaemonSet needs all of these, others as many as they have pods.
func hostPortProblems(s *Inventory) []hostPortProblem {
	held := map[string][]corev1.Pod{}
	for _, p := range s.others() {
		if len(hostPorts(&p.Spec)) > 0 {
			held[p.Spec.NodeName] = append(held[p.Spec.NodeName], p)
		}
	}
	var out []hostPortProblem
	for _, w := range s.Workloads {
		for _, port := range hostPorts(&w.Pod) {
			fit, taken, example := 0, 0, ""
			for i := range s.Nodes {
				if !fits(&w.Pod, &s.Nodes[i]) {
					continue
				}
				fit++
				if owner := holder(held[s.Nodes[i].Name], port); owner != "" {
					taken++
					example = fmt.Sprintf("%s's on node %s", owner, s.Nodes[i].Name)
				}
			}
			if taken > 0 && (w.OnEveryNode || fit-taken < int(w.Replicas)) {
				out = append(out, hostPortProblem{w.Object, fmt.Sprintf("host port %d/%s of %s is taken on %d of %d nodes of the target: it is %s",
					port.HostPort, port.Protocol, w.Object, taken, fit, example)})
			}
		}
	}
	return out
}

// fits reports whether a node that serves takes a pod.
func fits(pod *corev1.PodSpec, node *corev1.Node) bool {
	return inventory.NodeReady(node) && !node.Spec.Unschedulable && workload.Fits(pod, node)
}

// holder is whose a port is on a node; empty, if it is free.
func holder(pods []corev1.Pod, port corev1.ContainerPort) string {
	for i := range pods {
		for _, have := range hostPorts(&pods[i].Spec) {
			if have.HostPort == port.HostPort && have.Protocol == port.Protocol && meet(have.HostIP, port.HostIP) {
				return ownerOf(&pods[i])
			}
		}
	}
	return ""
}

// meet reports whether one port cannot be had at both addresses, as the scheduler sees it.
func meet(a, b string) bool {
	all := func(ip string) bool { p, err := netip.ParseAddr(ip); return err != nil || p.IsUnspecified() }
	return all(a) || all(b) || a == b
}
