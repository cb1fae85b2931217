package checks

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// keepsReadiness is the first minor version of kubelets that keep readiness over their restart
// (isRestart in k8s.io/kubernetes pkg/kubelet/prober/worker.go, gate
// ChangeContainerStatusOnKubeletRestart).
const keepsReadiness = 35

// checkKubeletRestarts names Services that one kubelet's restart would leave without a ready pod.
func checkKubeletRestarts(in Input) []findings.Result {
	if !in.kubeletsChange() {
		return findings.Skip("no kubelet has to be restarted")
	}
	out := in.unseen()
	if in.Workloads == nil {
		return out
	}
	forgetful := in.forgetfulKubelets()
	ready := in.readyPods()
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		if node := soleNode(svc, ready[svc.Namespace]); forgetful[node] != "" && !services.IsOwn(svc) {
			key := client.ObjectKeyFromObject(svc).String()
			out = append(
				out,
				findings.Failed(
					"Service "+key,
					"all ready pods of service %s are on node %s, whose kubelet is %s",
					key,
					node,
					forgetful[node],
				),
			)
		}
	}
	return out
}

// kubeletsChange reports whether one names cluster DNS itself, and not a cache on its node; one
// that does not tell may.
func (in Input) kubeletsChange() bool {
	for _, e := range in.Inventory.DNSMoves() {
		for _, k := range in.Snapshot.Kubelets {
			if k.Err != nil || slices.Contains(k.DNS, e.Old.String()) {
				return true
			}
		}
	}
	return len(in.Snapshot.Kubelets) == 0 && len(in.Inventory.DNSMoves()) > 0
}

func (in Input) forgetfulKubelets() map[string]string {
	found := map[string]string{}
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		text := n.Status.NodeInfo.KubeletVersion
		if v, err := version.ParseGeneric(text); err == nil && v.Minor() < keepsReadiness {
			found[n.Name] = text
		}
	}
	return found
}

func (in Input) readyPods() map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	for i := range in.Workloads.Pods {
		p := &in.Workloads.Pods[i]
		if ready, _ := readiness.Pod(p); ready {
			all[p.Namespace] = append(all[p.Namespace], p)
		}
	}
	return all
}

// soleNode is the node of all ready pods of a Service, if each has a readiness probe; else empty.
func soleNode(svc *corev1.Service, ready []*corev1.Pod) (node string) {
	if len(svc.Spec.Selector) == 0 {
		return ""
	}
	chosen := labels.SelectorFromSet(svc.Spec.Selector)
	for _, p := range ready {
		if !chosen.Matches(labels.Set(p.Labels)) {
			continue
		}
		probed := slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.ReadinessProbe != nil })
		if !probed || node != "" && node != p.Spec.NodeName {
			return ""
		}
		node = p.Spec.NodeName
	}
	return node
}
