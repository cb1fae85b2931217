package cluster

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

// Mesh is a service mesh: proxies that carry what its pods send.
type Mesh struct {
	Name string
	// Objects show it, as kind and name: its control plane, its webhooks, its DaemonSets.
	Objects []string
	// Versions are the tags of its images.
	Versions []string
	// Pods have a proxy, or are redirected to their node's; Namespaces are where they are.
	Pods       int
	Namespaces []string
}

// ztunnel is Istio's proxy of a node. Its own pods are not carried by the mesh.
const ztunnel = "ztunnel"

// meshSign is how upstream's manifests mark a mesh.
type meshSign struct {
	name string
	// webhook is how the names of its injecting webhooks end.
	webhook string
	// parts are labels of the pods of its control plane, and of those that it runs on nodes. No
	// value means any.
	parts map[string]string
	// sidecars are the names of the containers that it injects.
	sidecars []string
	// marks are labels and annotations of pods that it carries without a sidecar.
	marks map[string]string
	// invites are labels and annotations of namespaces whose pods it takes in. No values means any
	// but disabled.
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

// MeshOf names the mesh that takes in the pods of a namespace; nothing, if none does.
func MeshOf(ns *corev1.Namespace) string {
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

// meshed looks at one object for signs of a mesh.
func (i *Inspection) meshed(o client.Object) {
	switch o := o.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for n := range o.Webhooks {
			for _, sign := range meshes() {
				if strings.HasSuffix(o.Webhooks[n].Name, sign.webhook) {
					add(&i.mesh(sign.name).Objects, references.Name("MutatingWebhookConfiguration", o))
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

func (i *Inspection) meshPart(object string, template *corev1.PodTemplateSpec) {
	for _, sign := range meshes() {
		for key, value := range sign.parts {
			if v, labelled := template.Labels[key]; !labelled || value != "" && v != value {
				continue
			}
			m := i.mesh(sign.name)
			add(&m.Objects, object)
			for n := range template.Spec.Containers {
				add(&m.Versions, imageVersion(template.Spec.Containers[n].Image))
			}
		}
	}
}

// meshPod counts a pod that a mesh carries. Sidecars are init containers where Kubernetes keeps
// those running.
func (i *Inspection) meshPod(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Labels["app"] == ztunnel {
		return
	}
	for _, sign := range meshes() {
		version, carried := "", false
		for _, all := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for n := range all {
				if slices.Contains(sign.sidecars, all[n].Name) {
					version, carried = imageVersion(all[n].Image), true
				}
			}
		}
		for key, value := range sign.marks {
			carried = carried || pod.Annotations[key] == value || pod.Labels[key] == value
		}
		if carried {
			m := i.mesh(sign.name)
			m.Pods++
			add(&m.Versions, version)
			add(&m.Namespaces, pod.Namespace)
		}
	}
}

// mesh is what was found of one so far.
func (i *Inspection) mesh(name string) *Mesh {
	for _, m := range i.Meshes {
		if m.Name == name {
			return m
		}
	}
	m := &Mesh{Name: name}
	i.Meshes = append(i.Meshes, m)
	return m
}

// add keeps a list in order, and each of its words once.
func add(list *[]string, word string) {
	if at, there := slices.BinarySearch(*list, word); !there && word != "" {
		*list = slices.Insert(*list, at, word)
	}
}
