package mirror

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// lookAtQuotas reads the quotas that copies will be under, but for those that are copies, or will
// be replaced by some.
func (j *Job) lookAtQuotas(ctx context.Context, s *Inventory) error {
	all, err := cluster.List[corev1.ResourceQuota](ctx, j.to, &corev1.ResourceQuotaList{})
	if err != nil {
		return err
	}
	replaced := func(q corev1.ResourceQuota) bool {
		return s.Spec.Copy.Existing == v1alpha1.ExistingOverwrite && slices.ContainsFunc(s.copied("resourcequotas"), func(r objects.Ref) bool {
			return r.Namespace == q.Namespace && r.Name == q.Name
		})
	}
	s.Quotas = slices.DeleteFunc(all, func(q corev1.ResourceQuota) bool {
		return !s.Spec.chosen(q.Namespace) || q.Labels[v1alpha1.LabelMirror] == s.Spec.Name || replaced(q)
	})
	if len(s.Quotas) == 0 {
		return nil
	}
	s.Asked = map[string]corev1.ResourceList{}
	if err := j.eachTaken(ctx, objects.Services(), func(_, taken *unstructured.Unstructured) error {
		s.ask(taken.GetNamespace(), portsAsked(taken))
		return nil
	}); err != nil {
		return err
	}
	claim := objects.ResourceKind{Version: "v1", Kind: "PersistentVolumeClaim", Resource: "persistentvolumeclaims", Namespaced: true}
	return j.eachTaken(ctx, claim, func(_, taken *unstructured.Unstructured) error {
		text, _, _ := unstructured.NestedString(taken.Object, "spec", "resources", "requests", "storage")
		if q, err := resource.ParseQuantity(text); err == nil {
			s.ask(taken.GetNamespace(), corev1.ResourceList{corev1.ResourceRequestsStorage: q})
		}
		return nil
	})
}

func (s *Inventory) ask(namespace string, more corev1.ResourceList) {
	if s.Asked[namespace] == nil {
		s.Asked[namespace] = corev1.ResourceList{}
	}
	add(s.Asked[namespace], more)
}

// portsAsked is what a Service counts for, beside itself.
func portsAsked(o *unstructured.Unstructured) corev1.ResourceList {
	typ, _, _ := unstructured.NestedString(o.Object, "spec", "type")
	ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
	allocated, found, _ := unstructured.NestedBool(o.Object, "spec", "allocateLoadBalancerNodePorts")
	out := corev1.ResourceList{}
	balanced := typ == string(corev1.ServiceTypeLoadBalancer)
	if balanced {
		out[corev1.ResourceServicesLoadBalancers] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if typ == string(corev1.ServiceTypeNodePort) || balanced && (allocated || !found) {
		out[corev1.ResourceServicesNodePorts] = *resource.NewQuantity(int64(len(ports)), resource.DecimalSI)
	}
	return out
}

// copied are the objects of a kind that are copied.
func (s *Inventory) copied(resource string) []objects.Ref {
	for _, c := range s.Objects.Counts {
		if c.Resource == resource {
			return c.Refs
		}
	}
	return nil
}

// quotaProblems compares what copies need at least with what quotas of the target allow.
func quotaProblems(s *Inventory) []string {
	var out []string
	for i := range s.Quotas {
		q := &s.Quotas[i]
		for _, name := range sortedNames(q.Spec.Hard) {
			hard := q.Spec.Hard[name]
			if needed := s.needed(q, name); needed.Cmp(hard) > 0 {
				out = append(out, fmt.Sprintf("ResourceQuota %s/%s of the target allows %s: %s, and copies need %s",
					q.Namespace, q.Name, name, hard.String(), needed.String()))
			}
		}
	}
	return out
}

func sortedNames(of corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// needed is what a quota counts of copies, and of pods of others in the namespace.
func (s *Inventory) needed(q *corev1.ResourceQuota, name corev1.ResourceName) resource.Quantity {
	scopes := append(slices.Clone(q.Spec.Scopes), scopesOf(q)...)
	if counted := s.podsNeeded(q, scopes, name); counted != nil {
		return *counted
	}
	if len(scopes) > 0 { // it is about pods alone
		return resource.Quantity{}
	}
	if asked, ok := s.Asked[q.Namespace][name]; ok {
		return asked
	}
	n := 0
	for _, ref := range s.copied(strings.TrimPrefix(string(name), "count/")) {
		if ref.Namespace == q.Namespace {
			n++
		}
	}
	return *resource.NewQuantity(int64(n), resource.DecimalSI)
}

func scopesOf(q *corev1.ResourceQuota) (out []corev1.ResourceQuotaScope) {
	if q.Spec.ScopeSelector == nil {
		return nil
	}
	for _, m := range q.Spec.ScopeSelector.MatchExpressions {
		out = append(out, m.ScopeName)
	}
	return out
}

// podsNeeded is nil for resources that are not those of pods.
func (s *Inventory) podsNeeded(q *corev1.ResourceQuota, scopes []corev1.ResourceQuotaScope, name corev1.ResourceName) *resource.Quantity {
	of := podResource(name)
	if of == nil {
		return nil
	}
	var sum resource.Quantity
	for i := range s.Workloads {
		if w := &s.Workloads[i]; w.Namespace == q.Namespace && !w.OnEveryNode && within(scopes, &w.Pod) {
			one := of(&corev1.Pod{Spec: w.Pod})
			one.Mul(int64(w.Replicas))
			sum.Add(one)
		}
	}
	for _, p := range s.others() {
		if p.Namespace == q.Namespace && within(scopes, &p.Spec) {
			sum.Add(of(&p))
		}
	}
	return &sum
}

// podResource reads from a pod what a quota of that name counts; nil for those of other kinds.
func podResource(name corev1.ResourceName) func(*corev1.Pod) resource.Quantity {
	of := string(name)
	limit, isLimit := strings.CutPrefix(of, "limits.")
	request, isRequest := strings.CutPrefix(of, corev1.DefaultResourceRequestsPrefix)
	switch {
	case name == corev1.ResourcePods, of == "count/pods":
		return func(*corev1.Pod) resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }
	case name == corev1.ResourceRequestsStorage, strings.Contains(of, ".storageclass.storage.k8s.io/"):
		return nil
	case isLimit:
		return func(p *corev1.Pod) resource.Quantity {
			return resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceName(limit)]
		}
	case isRequest, slices.Contains([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}, name):
		return func(p *corev1.Pod) resource.Quantity {
			return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceName(cmp.Or(request, of))]
		}
	}
	return nil
}

// within reports whether a quota counts a pod for certain. Quotas by priority and by affinity count
// none here.
func within(scopes []corev1.ResourceQuotaScope, p *corev1.PodSpec) bool {
	for _, scope := range scopes {
		ends := p.ActiveDeadlineSeconds != nil
		switch {
		case scope == corev1.ResourceQuotaScopeTerminating && ends, scope == corev1.ResourceQuotaScopeNotTerminating && !ends:
		case scope == corev1.ResourceQuotaScopeBestEffort && bestEffort(p), scope == corev1.ResourceQuotaScopeNotBestEffort && !bestEffort(p):
		default:
			return false
		}
	}
	return true
}

func bestEffort(p *corev1.PodSpec) bool {
	return !slices.ContainsFunc(slices.Concat(p.InitContainers, p.Containers), func(c corev1.Container) bool {
		return len(c.Resources.Requests)+len(c.Resources.Limits) > 0
	})
}
