package inventory

import (
	"cmp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/references"
)

// Mesh is a service mesh, whose proxies carry traffic of pods.
type Mesh struct {
	Name string
	// Objects are its control plane, webhooks and DaemonSets, as kind and name.
	Objects  []string
	Versions []string
	// Pods in Namespaces have a proxy, or use that of their node.
	Pods       int
	Namespaces []string
}

// ztunnel is Istio's proxy of a node, whose own pods the mesh does not carry.
const ztunnel = "ztunnel"

type meshSign struct {
	name string
	// webhook is the suffix of the names of its injecting webhooks.
	webhook string
	// parts are labels of its own pods; an empty value matches any.
	parts    map[string]string
	sidecars []string
	// marks are labels and annotations of pods that it carries without a sidecar.
	marks map[string]string
	// invites are labels and annotations of namespaces; no values match any but disabled.
	invites map[string][]string
}

// meshes follow istio/istio manifests/charts (istio-discovery, ztunnel) and its labels
// istio.io/dataplane-mode and istio-injection; linkerd/linkerd2 charts/linkerd-control-plane;
// hashicorp/consul-k8s charts/consul (connect-inject); kumahq/kuma.
func meshes() []meshSign {
	return []meshSign{
		{
			name: "Istio", webhook: "sidecar-injector.istio.io", sidecars: []string{"istio-proxy"},
			parts: map[string]string{"istio": "pilot", "app": ztunnel},
			marks: map[string]string{"ambient.istio.io/redirection": "enabled"},
			invites: map[string][]string{
				"istio-injection": {"enabled"}, "istio.io/rev": nil, "istio.io/dataplane-mode": {"ambient"},
			},
		},
		{
			name: "Linkerd", webhook: "linkerd-proxy-injector.linkerd.io", sidecars: []string{"linkerd-proxy"},
			parts:   map[string]string{"linkerd.io/control-plane-component": ""},
			invites: map[string][]string{"linkerd.io/inject": {"enabled", "ingress"}},
		},
		{
			name: "Consul", webhook: "connect-injector.consul.hashicorp.com", sidecars: []string{"consul-dataplane"},
			parts: map[string]string{"component": "connect-injector"},
			marks: map[string]string{"consul.hashicorp.com/connect-inject-status": "injected"},
		},
		{
			name: "Kuma", webhook: "kuma-injector.kuma.io", sidecars: []string{"kuma-sidecar"},
			parts:   map[string]string{"app": "kuma-control-plane"},
			invites: map[string][]string{"kuma.io/sidecar-injection": {"enabled", "true"}},
		},
	}
}

// meshOf names the mesh that takes in the pods of a namespace, or is empty.
func meshOf(ns *corev1.Namespace) string {
	for _, sign := range meshes() {
		for key, values := range sign.invites {
			value := cmp.Or(ns.Labels[key], ns.Annotations[key])
			if slices.Contains(values, value) || values == nil && value != "" && value != "disabled" {
				return sign.name
			}
		}
	}
	return ""
}

func (i *Scan) takeMesh(o client.Object) {
	switch o := o.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for n := range o.Webhooks {
			for _, sign := range meshes() {
				if strings.HasSuffix(o.Webhooks[n].Name, sign.webhook) {
					insertSorted(&i.mesh(sign.name).Objects, references.Name("MutatingWebhookConfiguration", o))
				}
			}
		}
	case *appsv1.Deployment:
		i.meshPart(references.Name("Deployment", o), &o.Spec.Template)
	case *appsv1.DaemonSet:
		i.meshPart(references.Name("DaemonSet", o), &o.Spec.Template)
	case *corev1.Pod:
		i.meshPod(o)
	}
}

func (i *Scan) meshPart(object string, template *corev1.PodTemplateSpec) {
	for _, sign := range meshes() {
		for key, value := range sign.parts {
			if v, labelled := template.Labels[key]; !labelled || value != "" && v != value {
				continue
			}
			m := i.mesh(sign.name)
			insertSorted(&m.Objects, object)
			for n := range template.Spec.Containers {
				insertSorted(&m.Versions, imageVersion(template.Spec.Containers[n].Image))
			}
		}
	}
}

// meshPod counts a pod that a mesh carries. Native sidecars are init containers.
func (i *Scan) meshPod(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Labels["app"] == ztunnel {
		return
	}
	for _, sign := range meshes() {
		version, carried := "", false
		for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			if slices.Contains(sign.sidecars, c.Name) {
				version, carried = imageVersion(c.Image), true
			}
		}
		for key, value := range sign.marks {
			carried = carried || pod.Annotations[key] == value || pod.Labels[key] == value
		}
		if carried {
			m := i.mesh(sign.name)
			m.Pods++
			insertSorted(&m.Versions, version)
			insertSorted(&m.Namespaces, pod.Namespace)
		}
	}
}

func (i *Scan) mesh(name string) *Mesh {
	for _, m := range i.Meshes {
		if m.Name == name {
			return m
		}
	}
	m := &Mesh{Name: name}
	i.Meshes = append(i.Meshes, m)
	return m
}

// insertSorted leaves out an empty word, and one that is in the list.
func insertSorted(list *[]string, word string) {
	if at, there := slices.BinarySearch(*list, word); !there && word != "" {
		*list = slices.Insert(*list, at, word)
	}
}
