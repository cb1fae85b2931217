package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// ReplumbImage holds replumb itself, for the pods that a migration runs.
const ReplumbImage = "replumb.local/replumb:lab"

// PartOfVariety is the part-of label of everything in Variety; its NetworkPolicies are about pods that have it.
const PartOfVariety = "variety"

// Names of what Variety has and no Service stands before.
const (
	// JobName runs once and ends.
	JobName = "report"
	// BarePodName has no owner, and no controller starts it again.
	BarePodName = "loner"
)

// Variety is an application with one workload of every kind that a pod can belong to, budgets over several of them, and
// NetworkPolicies: nothing may call its pods but what carries the labels Guest or Member. Every Service keeps at least one
// pod while its workload is restarted the way its kind is.
func Variety(namespace string) []runtime.Object {
	echo := func(name string, replicas int32) Echo {
		return Echo{Namespace: namespace, Name: name, PartOf: PartOfVariety, Replicas: replicas}
	}
	front, cart, catalog := echo("front", 3), echo("cart", 2), echo("catalog", 2)
	payments, search := echo("payments", 1), echo("search", 2)
	ledger, archive := echo("ledger", 2), echo("archive", 2)
	agent, relay := echo("agent", 0), echo("relay", 0)
	cache, queue := echo("cache", 2), echo("queue", 1)
	objects := []runtime.Object{
		front.Deployment(), cart.Deployment(), payments.Deployment(), queue.Deployment(),
		catalog.withoutSurge(), search.Deployment(),
		ledger.statefulSet(appsv1.RollingUpdateStatefulSetStrategyType), archive.statefulSet(appsv1.OnDeleteStatefulSetStrategyType),
		agent.daemonSet(appsv1.RollingUpdateDaemonSetStrategyType), relay.daemonSet(appsv1.OnDeleteDaemonSetStrategyType),
		cache.replicaSet(), echo(BarePodName, 0).Pod(), job(namespace),
		front.budget(policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(2))}),
		// Kubernetes knows no maxUnavailable over DaemonSets: it would never let a pod go.
		relay.budget(policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1))}),
	}
	for _, e := range []Echo{cart, ledger, archive, cache} {
		objects = append(objects, e.budget(policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1))}))
	}
	for _, e := range []Echo{front, cart, catalog, payments, search, ledger, archive, agent, relay, cache, queue} {
		objects = append(objects, e.Service())
	}
	return append(objects, Policies(namespace)...)
}

// withoutSurge ends a pod before it starts the next one.
func (e Echo) withoutSurge() *appsv1.Deployment {
	d := e.Deployment()
	d.Spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
	return d
}

func (e Echo) statefulSet(update appsv1.StatefulSetUpdateStrategyType) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: e.meta(), Spec: appsv1.StatefulSetSpec{
		ServiceName: e.Name, Replicas: &e.Replicas, Selector: e.selector(), Template: e.template(),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: update},
	}}
}

func (e Echo) daemonSet(update appsv1.DaemonSetUpdateStrategyType) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: e.meta(), Spec: appsv1.DaemonSetSpec{
		Selector: e.selector(), Template: e.template(), UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: update},
	}}
}

// EachNode has a pod on every node, and a Service in front of them.
func (e Echo) EachNode() []runtime.Object {
	return []runtime.Object{e.daemonSet(appsv1.RollingUpdateDaemonSetStrategyType), e.Service()}
}

// Stateful is a StatefulSet with a Service in front of it, one without an address of its own, and a budget: one of its pods may be away.
func (e Echo) Stateful() []runtime.Object {
	headless := e.Service()
	headless.Name, headless.Labels, headless.Spec.ClusterIP = Headless(e.Name), nil, corev1.ClusterIPNone
	return []runtime.Object{
		e.statefulSet(appsv1.RollingUpdateStatefulSetStrategyType), e.Service(), headless,
		e.budget(policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1))}),
	}
}

// Headless is the name of the Service without an address that Stateful has.
func Headless(name string) string { return name + "-pods" }

func (e Echo) replicaSet() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: e.meta(), Spec: appsv1.ReplicaSetSpec{
		Replicas: &e.Replicas, Selector: e.selector(), Template: e.template(),
	}}
}

// Pod has no owner.
func (e Echo) Pod() *corev1.Pod { return &corev1.Pod{ObjectMeta: e.meta(), Spec: e.template().Spec} }

func (e Echo) budget(spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	spec.Selector = e.selector()
	return &policyv1.PodDisruptionBudget{ObjectMeta: e.meta(), Spec: spec}
}

// job ends by itself.
func job(namespace string) *batchv1.Job {
	labels := map[string]string{labelName: JobName, labelPartOf: PartOfVariety}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: JobName, Labels: labels},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
				Name: "report", Image: ReplumbImage, ImagePullPolicy: corev1.PullNever, Args: []string{"version"},
			}}},
		}},
	}
}

// Labels by which the NetworkPolicies of Variety tell its callers apart.
const labelCaller = "replumb.local/caller"

// Member may call every Service of Variety.
func Member() map[string]string { return map[string]string{labelCaller: "member"} }

// Guest may call the Service front, and nothing else.
func Guest() map[string]string { return map[string]string{labelCaller: "guest"} }

// GuestsMay is the one Service that a Guest may call.
const GuestsMay = "front"

// Policies are the NetworkPolicies of Variety.
func Policies(namespace string) []runtime.Object {
	policy := func(name string, to, from map[string]string) *networkingv1.NetworkPolicy {
		p := &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: to}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			},
		}
		if from != nil {
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: from}}},
			}}
		}
		return p
	}
	return []runtime.Object{
		policy("default-deny", nil, nil),
		policy("members", map[string]string{labelPartOf: PartOfVariety}, Member()),
		policy("guests", map[string]string{labelName: GuestsMay, labelPartOf: PartOfVariety}, Guest()),
	}
}
