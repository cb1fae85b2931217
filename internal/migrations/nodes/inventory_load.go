package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
)

// loader makes the Inventory.
type loader struct{ live }

// live is the cluster and its Migration as they are when a step looks.
type live struct {
	migration.Deps
	spec Spec
}

func (l loader) load(ctx context.Context) (*Inventory, error) {
	out := &Inventory{Spec: l.spec}
	var err error
	if out.Recorded, err = l.record().nodes(ctx); err != nil {
		return nil, err
	}
	if out.Workloads, err = rollout.Load(ctx, l.Cluster); err != nil {
		return nil, err
	}
	for _, read := range []func(context.Context, *Inventory) error{l.nodesAndPods, l.services, l.volumes, l.policies} {
		if err := read(ctx, out); err != nil {
			return nil, err
		}
	}
	out.findAutoscalers()
	return out, nil
}

func (l loader) nodesAndPods(ctx context.Context, s *Inventory) (err error) {
	if s.Nodes, err = cluster.List[corev1.Node](ctx, l.Cluster, &corev1.NodeList{}); err != nil {
		return err
	}
	s.Pods, err = cluster.List[corev1.Pod](ctx, l.Cluster, &corev1.PodList{})
	return err
}

// services reads those whose externalTrafficPolicy is, or was, Local.
func (l loader) services(ctx context.Context, s *Inventory) error {
	all, err := cluster.List[corev1.Service](ctx, l.Cluster, &corev1.ServiceList{})
	s.sortServices(all)
	return err
}

func (s *Inventory) sortServices(all []corev1.Service) {
	for _, svc := range all {
		if local(&svc) || svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" {
			s.Services = append(s.Services, svc)
		}
		if svc.Namespace == v1alpha1.SystemNamespace {
			continue
		}
		if len(svc.Spec.Selector) > 0 {
			s.Selecting = append(s.Selecting, svc)
		}
		s.Balanced = s.Balanced || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
}

// volumes reads volumes and claims, as far as they may be read.
func (l loader) volumes(ctx context.Context, s *Inventory) error {
	volumes, err := cluster.List[corev1.PersistentVolume](ctx, l.Cluster, &corev1.PersistentVolumeList{})
	if access.UnlessForbidden(err) != nil {
		return err
	}
	s.Volumes = map[string]*corev1.PersistentVolume{}
	for i := range volumes {
		s.Volumes[volumes[i].Name] = &volumes[i]
	}
	claims, err := cluster.List[corev1.PersistentVolumeClaim](ctx, l.Cluster, &corev1.PersistentVolumeClaimList{})
	if access.UnlessForbidden(err) != nil {
		return err
	}
	s.Claims = map[types.NamespacedName]*corev1.PersistentVolumeClaim{}
	for i := range claims {
		s.Claims[client.ObjectKeyFromObject(&claims[i])] = &claims[i]
	}
	return nil
}

// policies reads NetworkPolicies, and Calico's where there are any.
func (l loader) policies(ctx context.Context, s *Inventory) (err error) {
	if s.Policies, err = cluster.List[networkingv1.NetworkPolicy](ctx, l.Cluster, &networkingv1.NetworkPolicyList{}); err != nil {
		return err
	}
	s.Policies = slices.DeleteFunc(s.Policies, func(p networkingv1.NetworkPolicy) bool { return p.Namespace == v1alpha1.SystemNamespace })
	for _, kind := range []string{"GlobalNetworkPolicy", "NetworkPolicy"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(calico.GroupVersion().WithKind(kind + "List"))
		err := l.Cluster.List(ctx, list)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if access.UnlessForbidden(err) != nil {
			return fmt.Errorf("listing %s of Calico: %w", kind, err)
		}
		for i := range list.Items {
			s.CalicoPolicies = append(s.CalicoPolicies, &list.Items[i])
		}
	}
	return nil
}

// findAutoscalers finds autoscalers of nodes by the names in their charts.
func (s *Inventory) findAutoscalers() {
	for i := range s.Workloads.Deployments {
		d := &s.Workloads.Deployments[i]
		for _, name := range []string{"cluster-autoscaler", "karpenter"} {
			running := d.Spec.Replicas == nil || *d.Spec.Replicas > 0
			if running && (strings.Contains(d.Name, name) || d.Labels["app.kubernetes.io/name"] == name) {
				s.Autoscalers = append(s.Autoscalers, client.ObjectKeyFromObject(d))
			}
		}
	}
}

func (l live) pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := l.Cluster.List(ctx, all, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", node, err)
	}
	return all.Items, nil
}

func statusOf(n *corev1.Node, role v1alpha1.NodeRole) v1alpha1.NodeStatus {
	st := v1alpha1.NodeStatus{Name: n.Name, Role: role, ProviderID: n.Spec.ProviderID}
	for _, a := range addresses(n) {
		st.Addresses = append(st.Addresses, a.String())
	}
	return st
}

func readyPod(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func controllerOf(p *corev1.Pod) string {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		return ref.Kind
	}
	return ""
}
