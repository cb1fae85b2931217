package objectsync

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
)

// strip removes what one cluster gave an object, finalizers included.
func (r *CopyRules) strip(k ResourceKind, o *unstructured.Unstructured) {
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences", "finalizers",
		"generateName", "deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		drop(o, "metadata", field)
	}
	drop(o, "status")
	stripMarks(o)
	if pod := podTemplate(k, o); pod != nil {
		drop(&unstructured.Unstructured{Object: pod}, "metadata", "creationTimestamp")
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
	setOrDrop(o, "annotations", annotations)
	marks := o.GetLabels()
	delete(marks, v1alpha1.LabelMirror)
	setOrDrop(o, "labels", marks)
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

func setOrDrop(o *unstructured.Unstructured, field string, values map[string]string) {
	if len(values) == 0 {
		drop(o, "metadata", field)
		return
	}
	_ = unstructured.SetNestedStringMap(o.Object, values, "metadata", field) // fails only if metadata were no object
}

func (r *CopyRules) stripCore(k ResourceKind, o *unstructured.Unstructured) {
	switch k.Kind {
	case "Namespace":
		drop(o, "spec") // its finalizers
	case "Service":
		r.stripService(o)
	case "ServiceAccount":
		drop(o, "secrets")
	case "PersistentVolumeClaim":
		// The source keeps what it was made from.
		for _, field := range []string{"volumeName", "dataSource", "dataSourceRef"} {
			drop(o, "spec", field)
		}
	case "Pod":
		stripPod(inside(o.Object, "spec"))
	}
}

func (r *CopyRules) stripService(o *unstructured.Unstructured) {
	if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != corev1.ClusterIPNone {
		drop(o, "spec", "clusterIP")
		drop(o, "spec", "clusterIPs")
	}
	if r.options.Copy.NodePorts == v1alpha1.NodePortsKeep {
		return
	}
	withoutPorts(o)
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
	retain(spec, "volumes", func(v map[string]any) bool { return !token(v) })
	for _, c := range containers(spec) {
		retain(c, "volumeMounts", func(m map[string]any) bool { return !token(m) })
	}
}

func stripClaimTemplates(o *unstructured.Unstructured) {
	for _, t := range asSlice(inside(o.Object, "spec")["volumeClaimTemplates"]) {
		m := asMap(t)
		delete(m, "status")
		delete(asMap(m["metadata"]), "creationTimestamp")
	}
}

// stripJob takes away the selector that the API server made of the Job's UID, with its labels.
func stripJob(k ResourceKind, o *unstructured.Unstructured) {
	if k.Kind == "CronJob" {
		drop(o, "spec", "jobTemplate", "metadata", "creationTimestamp")
		return
	}
	if manual, _, _ := unstructured.NestedBool(o.Object, "spec", "manualSelector"); manual {
		return
	}
	drop(o, "spec", "selector")
	for _, l := range []string{"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"} {
		drop(o, "metadata", "labels", l)
		drop(o, "spec", "template", "metadata", "labels", l)
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
	drop(o, "spec", "caBundle")
	drop(o, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	for _, w := range asSlice(o.Object["webhooks"]) {
		delete(inside(asMap(w), "clientConfig"), "caBundle")
	}
}
