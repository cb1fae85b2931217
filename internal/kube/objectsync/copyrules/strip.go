package copyrules

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// strip removes what one cluster gave an object, finalizers included.
func (r *Rules) strip(k objects.ResourceKind, o *unstructured.Unstructured) {
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences", "finalizers",
		"generateName", "deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		objects.Drop(o, "metadata", field)
	}
	objects.Drop(o, "status")
	stripMarks(o)
	if pod := objects.PodTemplate(k, o); pod != nil {
		objects.Drop(&unstructured.Unstructured{Object: pod}, "metadata", "creationTimestamp")
	}
	switch k.Group {
	case "":
		r.stripCore(k, o)
	case "apps":
		stripClaimTemplates(o)
	case "batch":
		stripJob(k, o)
	case "rbac.authorization.k8s.io":
		// A controller fills them in.
		if _, aggregated := o.Object["aggregationRule"]; aggregated {
			delete(o.Object, "rules")
		}
	case "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io":
		stripBundles(o)
	}
}

// stripMarks takes away annotations and labels that controllers and clients write.
func stripMarks(o *unstructured.Unstructured) {
	annotations := o.GetAnnotations()
	for name := range annotations {
		if controllersOwn(name) {
			delete(annotations, name)
		}
	}
	objects.SetOrDrop(o, "annotations", annotations)
	marks := o.GetLabels()
	delete(marks, v1alpha1.LabelMirror)
	objects.SetOrDrop(o, "labels", marks)
}

func controllersOwn(annotation string) bool {
	return slices.Contains([]string{
		corev1.LastAppliedConfigAnnotation, "deployment.kubernetes.io/revision", "deployment.kubernetes.io/desired-replicas",
		"deployment.kubernetes.io/max-replicas", "deprecated.daemonset.template.generation",
		"endpoints.kubernetes.io/last-change-trigger-time", "autoscaling.alpha.kubernetes.io/conditions",
		"autoscaling.alpha.kubernetes.io/current-metrics", "batch.kubernetes.io/job-tracking",
		"volume.kubernetes.io/selected-node", "volume.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-resizer",
		"volume.beta.kubernetes.io/storage-provisioner", v1alpha1.AnnotationCopied, v1alpha1.AnnotationAddedNames,
		v1alpha1.AnnotationSettled,
	}, annotation) || strings.HasPrefix(annotation, "pv.kubernetes.io/") || strings.HasPrefix(annotation, "cni.projectcalico.org/") ||
		strings.HasPrefix(annotation, "k8s.v1.cni.cncf.io/network-status")
}

func (r *Rules) stripCore(k objects.ResourceKind, o *unstructured.Unstructured) {
	switch k.Kind {
	case "Namespace":
		objects.Drop(o, "spec") // its finalizers
	case "Service":
		r.stripService(o)
	case "ServiceAccount":
		objects.Drop(o, "secrets")
	case "PersistentVolumeClaim":
		// The source keeps what it was made from.
		for _, field := range []string{"volumeName", "dataSource", "dataSourceRef"} {
			objects.Drop(o, "spec", field)
		}
	case "Pod":
		stripPod(objects.Inside(o.Object, "spec"))
	}
}

func (r *Rules) stripService(o *unstructured.Unstructured) {
	if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != corev1.ClusterIPNone {
		objects.Drop(o, "spec", "clusterIP")
		objects.Drop(o, "spec", "clusterIPs")
	}
	if r.options.Copy.NodePorts == v1alpha1.NodePortsKeep {
		return
	}
	WithoutPorts(o)
}

// stripPod takes away what scheduler, admission and kubelet gave a pod that nothing recreates.
func stripPod(spec map[string]any) {
	for _, field := range []string{"nodeName", "priority", "preemptionPolicy", "ephemeralContainers"} {
		delete(spec, field)
	}
	token := func(item map[string]any) bool {
		name, _ := item["name"].(string)
		return strings.HasPrefix(name, "kube-api-access-")
	}
	objects.Retain(spec, "volumes", func(v map[string]any) bool { return !token(v) })
	for _, c := range objects.Containers(spec) {
		objects.Retain(c, "volumeMounts", func(m map[string]any) bool { return !token(m) })
	}
}

func stripClaimTemplates(o *unstructured.Unstructured) {
	for _, t := range objects.Slice(objects.Inside(o.Object, "spec")["volumeClaimTemplates"]) {
		m := objects.Map(t)
		delete(m, "status")
		delete(objects.Map(m["metadata"]), "creationTimestamp")
	}
}

// stripJob takes away the selector that the API server made of the Job's UID, with its labels.
func stripJob(k objects.ResourceKind, o *unstructured.Unstructured) {
	if k.Kind == "CronJob" {
		objects.Drop(o, "spec", "jobTemplate", "metadata", "creationTimestamp")
		return
	}
	if manual, _, _ := unstructured.NestedBool(o.Object, "spec", "manualSelector"); manual {
		return
	}
	objects.Drop(o, "spec", "selector")
	for _, l := range []string{"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"} {
		objects.Drop(o, "metadata", "labels", l)
		objects.Drop(o, "spec", "template", "metadata", "labels", l)
	}
}

// stripBundles removes the certificates that cert-manager's injector writes.
func stripBundles(o *unstructured.Unstructured) {
	injected := false
	for name := range o.GetAnnotations() {
		injected = injected || strings.HasPrefix(name, "cert-manager.io/inject-")
	}
	if !injected {
		return
	}
	objects.Drop(o, "spec", "caBundle")
	objects.Drop(o, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	for _, w := range objects.Slice(o.Object["webhooks"]) {
		delete(objects.Inside(objects.Map(w), "clientConfig"), "caBundle")
	}
}

// WithoutPorts takes the ports on nodes off a Service, in place.
func WithoutPorts(o *unstructured.Unstructured) *unstructured.Unstructured {
	if o.GetKind() != "Service" {
		return o
	}
	objects.Drop(o, "spec", "healthCheckNodePort")
	for _, p := range objects.Slice(objects.Inside(o.Object, "spec")["ports"]) {
		delete(objects.Map(p), "nodePort")
	}
	return o
}
