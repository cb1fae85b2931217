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

// ingressView is the part of an Inventory about Services that clients outside of the cluster use.
type ingressView struct{ *Inventory }

func (s *Inventory) Ingress() ingressView { return ingressView{s} }

// Affected are the Services to be switched: named ones, or those with pods on old nodes.
func (s ingressView) Affected() []*corev1.Service {
	if s.Spec.Ingress.Mode != v1alpha1.IngressSwitch {
		return nil
	}
	var all []*corev1.Service
	for i := range s.Services {
		svc := &s.Services[i]
		named := slices.Contains(s.Spec.Services, client.ObjectKeyFromObject(svc)) && !s.hasMoved(svc)
		if named || len(s.Spec.Services) == 0 && s.hasPodsOnOldNodes(svc) {
			all = append(all, svc)
		}
	}
	return all
}

// Switched are the Services, as namespace/name, whose policy has been switched and not restored.
func (s ingressView) Switched() []string {
	var all []string
	for _, key := range s.switched() {
		all = append(all, key.String())
	}
	return all
}

func (s ingressView) switched() []types.NamespacedName {
	return s.servicesThat(func(svc *corev1.Service) bool { return svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" })
}

// toSwitch are the Services whose policy is to be switched before their pods leave old nodes.
func (s ingressView) toSwitch() []types.NamespacedName {
	if len(s.outstanding(false)) == 0 {
		return nil
	}
	var all []types.NamespacedName
	for _, svc := range s.Affected() {
		if local(svc) {
			all = append(all, client.ObjectKeyFromObject(svc))
		}
	}
	return all
}

// toSwitchForReturn are the Services to switch before their pods leave new nodes.
func (s ingressView) toSwitchForReturn() []types.NamespacedName {
	if s.Spec.Ingress.Mode != v1alpha1.IngressSwitch {
		return nil
	}
	isNew := map[string]bool{}
	for _, n := range s.NewNodes() {
		isNew[n.Name] = true
	}
	return s.servicesThat(func(svc *corev1.Service) bool {
		return local(svc) && slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool { return isNew[p.Spec.NodeName] && selects(svc, &p) })
	})
}

func (s ingressView) servicesThat(hold func(*corev1.Service) bool) []types.NamespacedName {
	var all []types.NamespacedName
	for i := range s.Services {
		if hold(&s.Services[i]) {
			all = append(all, client.ObjectKeyFromObject(&s.Services[i]))
		}
	}
	return all
}

func (s ingressView) hasPodsOnOldNodes(svc *corev1.Service) bool {
	for _, l := range s.OldNodes() {
		if slices.ContainsFunc(l.Pods, func(p *corev1.Pod) bool { return selects(svc, p) }) {
			return true
		}
	}
	return false
}

// stillOnOld are the Services whose policy is restored once all their pods have left old nodes.
func (s ingressView) stillOnOld() []types.NamespacedName {
	if s.Spec.Join.Room == v1alpha1.RoomPartial {
		return nil
	}
	return slices.DeleteFunc(s.toRestore(), func(key types.NamespacedName) bool {
		var on []*corev1.Pod
		for i := range s.Services {
			if svc := &s.Services[i]; svc.Namespace == key.Namespace && svc.Name == key.Name {
				on = s.onOld(svc)
			}
		}
		return len(on) == 0 || slices.ContainsFunc(on, func(p *corev1.Pod) bool { return !leaves(p) })
	})
}

// anyLeft reports whether all pods of one of some Services have left.
func (s ingressView) anyLeft(services []types.NamespacedName, left map[string][]*corev1.Pod) bool {
	return slices.ContainsFunc(services, func(key types.NamespacedName) bool {
		for _, pods := range left {
			if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return s.isBehind([]types.NamespacedName{key}, p) }) {
				return false
			}
		}
		return true
	})
}

// toRestore are the Services whose policy has been, or is about to be, switched.
func (s ingressView) toRestore() []types.NamespacedName {
	all := s.switched()
	for _, key := range s.toSwitch() {
		if !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// early are the Services of ingress whose policy is restored before old nodes are empty: all their
// pods on old nodes go first.
//
// There are none with room: Partial, nor while another Service keeps its policy Local and pods on
// old nodes. Where releases move pods, they are those that have moved.
func (s ingressView) early() []types.NamespacedName {
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
func (s ingressView) keepsBack(p *corev1.Pod) bool {
	return s.Spec.waits() || !leaves(p) || !s.isFirst(p)
}

// ahead are the old nodes with pods of some Services, in the order of outstanding.
func (s ingressView) ahead(services []types.NamespacedName) []OldNode {
	return slices.DeleteFunc(s.outstanding(false), func(n OldNode) bool {
		return !slices.ContainsFunc(n.Pods, func(p *corev1.Pod) bool { return s.isBehind(services, p) })
	})
}

func (s ingressView) isBehind(services []types.NamespacedName, p *corev1.Pod) bool {
	return slices.ContainsFunc(s.Services, func(svc corev1.Service) bool {
		return slices.Contains(services, client.ObjectKeyFromObject(&svc)) && selects(&svc, p)
	})
}

func (s ingressView) unready() map[types.UID]bool {
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
func (s ingressView) behind(svc *corev1.Service) []*corev1.Pod {
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

func (s ingressView) onOld(svc *corev1.Service) []*corev1.Pod {
	on := map[string]bool{}
	for _, n := range s.OldNodes() {
		on[n.Name] = true
	}
	return slices.DeleteFunc(s.behind(svc), func(p *corev1.Pod) bool { return !on[p.Spec.NodeName] })
}

// servedByNew reports whether a ready pod of a Service is on a new node that takes pods.
func (s ingressView) servedByNew(svc *corev1.Service) bool {
	on := map[string]bool{}
	for _, n := range s.ReadyNewNodes() {
		on[n.Name] = true
	}
	return slices.ContainsFunc(s.behind(svc), func(p *corev1.Pod) bool { return on[p.Spec.NodeName] && readyPod(p) })
}

// hasMoved reports whether new nodes serve a Service, and old ones do not.
func (s ingressView) hasMoved(svc *corev1.Service) bool {
	return len(svc.Spec.Selector) > 0 && len(s.onOld(svc)) == 0 && s.servedByNew(svc)
}

// served fails until new nodes alone serve a Service, with all pods that were ready before.
func (s ingressView) served(svc *corev1.Service, before map[types.UID]bool) error {
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
