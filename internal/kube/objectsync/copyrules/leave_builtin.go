package copyrules

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

func whyNotCore(k objects.ResourceKind, o *unstructured.Unstructured) string {
	switch k.Kind {
	case "Secret":
		switch typ, _, _ := unstructured.NestedString(o.Object, "type"); corev1.SecretType(typ) {
		case corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken:
			return OfAnAccount
		}
	case "Pod":
		return whyNotPod(o)
	case "Endpoints":
		return whyNotEndpoints(o)
	}
	if madeAnywhere(k, o) {
		return everyClusters
	}
	if _, leader := o.GetAnnotations()["control-plane.alpha.kubernetes.io/leader"]; leader {
		return passing
	}
	return ""
}

// madeAnywhere reports whether each cluster has such an object without being asked.
func madeAnywhere(k objects.ResourceKind, o *unstructured.Unstructured) bool {
	switch k.Kind {
	case "Namespace":
		return o.GetName() == "default" && bare(o, corev1.LabelMetadataName)
	case "Service":
		return o.GetNamespace() == "default" && o.GetName() == "kubernetes"
	case "ServiceAccount":
		_, automount := o.Object["automountServiceAccountToken"]
		return o.GetName() == "default" && len(objects.Slice(o.Object["imagePullSecrets"])) == 0 && !automount && bare(o)
	case "ConfigMap":
		return o.GetName() == "kube-root-ca.crt"
	}
	return false
}

func bare(o *unstructured.Unstructured, but ...string) bool {
	for l := range o.GetLabels() {
		if !slices.Contains(but, l) {
			return false
		}
	}
	return len(o.GetAnnotations()) == 0
}

func whyNotPod(o *unstructured.Unstructured) string {
	if _, static := o.GetAnnotations()[corev1.MirrorPodAnnotationKey]; static {
		return ofItsCluster
	}
	restart, _, _ := unstructured.NestedString(o.Object, "spec", "restartPolicy")
	if restart != "" && restart != string(corev1.RestartPolicyAlways) {
		return RunsTwice
	}
	return ""
}

// whyNotEndpoints tells those that people write from those that are made of pods.
func whyNotEndpoints(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "default" && o.GetName() == "kubernetes" {
		return everyClusters
	}
	if _, made := o.GetLabels()["endpoints.kubernetes.io/managed-by"]; made {
		return ofItsOwner
	}
	subsets, _, _ := unstructured.NestedSlice(o.Object, "subsets")
	for _, s := range subsets {
		for _, list := range []string{"addresses", "notReadyAddresses"} {
			addresses, _, _ := unstructured.NestedSlice(objects.Map(s), list)
			for _, a := range addresses {
				if kind, _, _ := unstructured.NestedString(objects.Map(a), "targetRef", "kind"); kind == "Pod" {
					return ofItsOwner
				}
			}
		}
	}
	if len(subsets) == 0 {
		return ofItsOwner // no one writes empty ones
	}
	return ""
}

func whyNotSlice(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "default" && o.GetLabels()["kubernetes.io/service-name"] == "kubernetes" {
		return everyClusters
	}
	if strings.HasSuffix(o.GetLabels()["endpointslice.kubernetes.io/managed-by"], "controller.k8s.io") {
		return ofItsOwner
	}
	return ""
}

// whyNotJob lets only Jobs through that have not begun: a second run is not what a Job is for.
func whyNotJob(k objects.ResourceKind, o *unstructured.Unstructured) string {
	if k.Kind != "Job" {
		return ""
	}
	suspended, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
	_, begun, _ := unstructured.NestedString(o.Object, "status", "startTime")
	if suspended && !begun {
		return ""
	}
	return RunsTwice
}

// whyNotBuiltIn finds what API servers and installers make in each cluster.
func whyNotBuiltIn(k objects.ResourceKind, o *unstructured.Unstructured) string {
	name := o.GetName()
	switch k.Group {
	case "rbac.authorization.k8s.io":
		_, made := o.GetLabels()["kubernetes.io/bootstrapping"]
		if made || strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "kubeadm:") {
			return everyClusters
		}
	case "scheduling.k8s.io":
		if strings.HasPrefix(name, "system-") {
			return everyClusters
		}
	case "flowcontrol.apiserver.k8s.io":
		if _, made := o.GetAnnotations()["apf.kubernetes.io/autoupdate-spec"]; made {
			return everyClusters
		}
	}
	return ""
}

// whyNotVolumes leaves claims out, and what would wait for them for ever.
func (r *Rules) whyNotVolumes(k objects.ResourceKind, o *unstructured.Unstructured) string {
	if r.options.Copy.Volumes == v1alpha1.VolumesCopy {
		return ""
	}
	if k.Is("", "PersistentVolumeClaim") {
		return IsAClaim
	}
	if templates, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates"); k.Group == "apps" && len(templates) > 0 {
		return claimsVolumes
	}
	pod := objects.PodSpec(k, o)
	volumes, _, _ := unstructured.NestedSlice(pod, "volumes")
	for _, v := range volumes {
		if _, claims := objects.Map(v)["persistentVolumeClaim"]; claims {
			return claimsVolumes
		}
	}
	return ""
}
