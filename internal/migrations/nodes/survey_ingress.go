package nodes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
)

// toRestore are the Services whose policy has been switched, now or in an earlier run, or is about to be.
func (s *Survey) toRestore() []types.NamespacedName {
	all := s.switched()
	for _, key := range s.toSwitch() {
		if !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// early are the Services of ingress whose policy is restored before old nodes are empty: those of which all pods on old nodes go first.
//
// There are none where pods may come to other old nodes, since not everything has a place elsewhere from the start; and none while another
// Service keeps its policy Local and its pods on old nodes, which load balancers then have to reach. Where releases move pods, they are
// those that have been moved.
func (s *Survey) early() []types.NamespacedName {
	if s.Spec.Join.Room == v1alpha1.RoomPartial || len(s.outstanding(false)) == 0 {
		return nil
	}
	keys := s.toRestore()
	var all []types.NamespacedName
	for i := range s.Services {
		svc := &s.Services[i]
		switch key := client.ObjectKeyFromObject(svc); {
		case !slices.Contains(keys, key):
			if local(svc) && s.hasPodsOnOldNodes(svc) {
				return nil
			}
		case len(svc.Spec.Selector) > 0 && !slices.ContainsFunc(s.onOld(svc), s.keepsBack):
			all = append(all, key)
		}
	}
	return all
}

// keepsBack reports whether a pod on an old node is one that does not leave it ahead of others.
func (s *Survey) keepsBack(p *corev1.Pod) bool { return s.Spec.waits() || !leaves(p) || !s.isFirst(p) }

// ahead are the old nodes with pods of some Services that have to leave, in the order of outstanding.
func (s *Survey) ahead(services []types.NamespacedName) []OldNode {
	return slices.DeleteFunc(s.outstanding(false), func(n OldNode) bool {
		return !slices.ContainsFunc(n.Pods, func(p *corev1.Pod) bool { return s.isBehind(services, p) })
	})
}

// isBehind reports whether one of some Services leads to a pod.
func (s *Survey) isBehind(services []types.NamespacedName, p *corev1.Pod) bool {
	return slices.ContainsFunc(s.Services, func(svc corev1.Service) bool {
		return slices.Contains(services, client.ObjectKeyFromObject(&svc)) && selects(&svc, p)
	})
}

// unready are the pods of all Services of ingress that are not ready.
func (s *Survey) unready() map[types.UID]bool {
	all := map[types.UID]bool{}
	for i := range s.Services {
		for _, p := range s.behind(&s.Services[i]) {
			if !readyPod(p) {
				all[p.UID] = true
			}
		}
	}
	return all
}

// behind are the pods that a Service leads to, ready or not.
func (s *Survey) behind(svc *corev1.Service) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && !leaving.Marked(p, "") && selects(svc, p) {
			all = append(all, p)
		}
	}
	return all
}

// onOld are those of them on old nodes.
func (s *Survey) onOld(svc *corev1.Service) []*corev1.Pod {
	on := map[string]bool{}
	for _, n := range s.OldNodes() {
		on[n.Name] = true
	}
	return slices.DeleteFunc(s.behind(svc), func(p *corev1.Pod) bool { return !on[p.Spec.NodeName] })
}

// servedByNew reports whether a ready pod of a Service is on a new node that takes pods.
func (s *Survey) servedByNew(svc *corev1.Service) bool {
	on := map[string]bool{}
	for _, n := range s.ReadyNewNodes() {
		on[n.Name] = true
	}
	return slices.ContainsFunc(s.behind(svc), func(p *corev1.Pod) bool { return on[p.Spec.NodeName] && readyPod(p) })
}

// hasMoved reports whether new nodes serve a Service, and old ones do not.
func (s *Survey) hasMoved(svc *corev1.Service) bool {
	return len(svc.Spec.Selector) > 0 && len(s.onOld(svc)) == 0 && s.servedByNew(svc)
}

// served fails until new nodes alone serve a Service, with all its pods but for those that were not ready before. One without any pod has
// nothing to serve with anywhere.
func (s *Survey) served(svc *corev1.Service, before map[types.UID]bool) error {
	key := client.ObjectKeyFromObject(svc)
	if on := s.onOld(svc); len(on) > 0 {
		return engine.NotYet("pod %s/%s of service %s is on node %s", on[0].Namespace, on[0].Name, key, on[0].Spec.NodeName)
	}
	all := s.behind(svc)
	for _, p := range all {
		if !readyPod(p) && p.DeletionTimestamp.IsZero() && !before[p.UID] {
			return engine.NotYet("pod %s/%s of service %s is not ready: %s", p.Namespace, p.Name, key, whyPodNotReady(p))
		}
	}
	if len(all) > 0 && !s.servedByNew(svc) {
		return engine.NotYet("service %s has no ready pod on a new node", key)
	}
	return nil
}
