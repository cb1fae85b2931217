package inventory

import (
	"net/netip"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/references"
)

// Take keeps nothing of an object but its findings.
func (i *Scan) Take(scanner *references.Scanner, o client.Object) {
	i.Called = append(i.Called, servicesCalledFor(o)...)
	i.Kubeadm = i.Kubeadm || ByKubeadm(o)
	i.takeMesh(o)
	if u, custom := o.(*unstructured.Unstructured); custom { // or an APIService
		i.takeCustom(scanner, u)
		return
	}
	if i.takeWhole(o) {
		return
	}
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		i.takeEgress(o)
	case *networkingv1.Ingress:
		i.takeIngress(o)
	case *apiextensionsv1.CustomResourceDefinition:
		i.define(o)
		i.calico = i.calico || o.Name == "felixconfigurations.crd.projectcalico.org"
	case *corev1.ConfigMap:
		i.takeConfigMap(o)
		i.ControlPlane.takeConfigMap(o)
	case *corev1.Pod:
		i.takeAddresses(scanner, o)
		i.ControlPlane.takePod(o)
	}
	if madeByReplumb(o) || endedOrFromTemplate(o) {
		return
	}
	i.References = append(i.References, scanner.Find(withoutGateFlags(o))...)
	i.takeAdvertisers(o)
	if object, spec := template(o); spec != nil {
		i.takeWorkload(object, spec)
		i.takePlanes(object, spec)
	}
}

// withoutGateFlags leaves out what API servers, controller managers and kube-proxies have in flags
// that take one range of a family: gates and other checks say when those change, and with two such
// ranges the programs do not start.
func withoutGateFlags(o client.Object) client.Object {
	if o.GetNamespace() != metav1.NamespaceSystem {
		return o
	}
	var spec *corev1.PodSpec
	switch was := o.(type) {
	case *corev1.Pod:
		copied := was.DeepCopy()
		o, spec = copied, &copied.Spec
	case *appsv1.DaemonSet:
		copied := was.DeepCopy()
		o, spec = copied, &copied.Spec.Template.Spec
	default:
		return o
	}
	for n := range spec.Containers {
		c := &spec.Containers[n]
		if words := commandLine(c); runs(words, "kube-apiserver") || runs(words, "kube-controller-manager") || runs(words, "kube-proxy") {
			c.Command, c.Args = withoutRanges(c.Command), withoutRanges(c.Args)
		}
	}
	return o
}

// withoutRanges empties the words of these flags, and a value that is a word of its own. Positions
// stay, since findings name them.
func withoutRanges(words []string) []string {
	for k, word := range words {
		name, _, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if name != "service-cluster-ip-range" && name != "cluster-cidr" {
			continue
		}
		if words[k] = ""; !joined && k+1 < len(words) {
			words[k+1] = ""
		}
	}
	return words
}

// takeWhole reports whether an object is of a kind that names no address, and takes it if so.
func (i *Scan) takeWhole(o client.Object) bool {
	switch o := o.(type) {
	case *v1alpha1.Migration:
		i.Migrations = append(i.Migrations, v1alpha1.Migration{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name}, Status: v1alpha1.MigrationStatus{Phase: o.Status.Phase},
		})
	case *admissionv1.ValidatingAdmissionPolicy:
		if owner := o.Labels[v1alpha1.LabelMigration]; owner != "" {
			i.Policies = append(i.Policies, Policy{Name: o.Name, Migration: owner})
		}
	case *policyv1.PodDisruptionBudget:
		if rule := NeverAllows(o); rule != "" {
			i.Stuck = append(i.Stuck, StuckBudget{Name: o.Namespace + "/" + o.Name, Rule: rule})
		}
	case *networkingv1.IngressClass:
		if i.IngressClasses == nil {
			i.IngressClasses = map[string]string{}
		}
		i.IngressClasses[o.Name] = o.Spec.Controller
	default:
		return false
	}
	return true
}

// takeEgress follows PolicyTypes in k8s.io/api networking/v1: without any, rules for egress count.
func (i *Scan) takeEgress(o *networkingv1.NetworkPolicy) {
	about := slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || len(o.Spec.PolicyTypes) == 0 && len(o.Spec.Egress) > 0
	if !about {
		return
	}
	if i.Egress == nil {
		i.Egress = map[string]bool{}
	}
	i.Egress[o.Namespace] = true
}

// madeByReplumb is true of objects such as backups, which have to name old addresses.
func madeByReplumb(o client.Object) bool {
	return o.GetLabels()[v1alpha1.LabelRole] != "" || o.GetNamespace() == v1alpha1.SystemNamespace
}

// endedOrFromTemplate is true of objects that have ended, or whose template is looked at elsewhere.
func endedOrFromTemplate(o client.Object) bool {
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		return o.Labels[discoveryv1.LabelManagedBy] == fromPods
	case *corev1.Pod:
		over := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed || !o.DeletionTimestamp.IsZero()
		return over || madeFromTemplate(o)
	case *batchv1.Job:
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "CronJob" {
			return true
		}
		for _, c := range o.Status.Conditions {
			if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}

// madeFromTemplate leaves out a ReplicaSet without a Deployment, since ReplicaSets are not listed.
func madeFromTemplate(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	switch owner.Kind {
	case "StatefulSet", "DaemonSet", "Job":
		return true
	case "ReplicaSet":
		return pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != ""
	}
	return false
}

func template(o client.Object) (string, *corev1.PodSpec) {
	switch o := o.(type) {
	case *corev1.Pod:
		return references.Name("Pod", o), &o.Spec
	case *appsv1.Deployment:
		return references.Name("Deployment", o), &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return references.Name("DaemonSet", o), &o.Spec.Template.Spec
	}
	return "", nil
}

func (i *Scan) takeAddresses(scanner *references.Scanner, pod *corev1.Pod) {
	if pod.Spec.HostNetwork { // another check is about addresses of nodes
		return
	}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && scanner.InTarget(a) {
			i.InTarget = append(i.InTarget, PodAddress{Pod: pod.Namespace + "/" + pod.Name, Address: a})
		}
	}
}
