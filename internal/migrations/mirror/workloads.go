package mirror

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// CopiedWorkload is a workload as the target will have it once it is awake.
type CopiedWorkload struct {
	// Object as resource and name, such as deployments.apps shop/web.
	Object, Namespace string
	// OnEveryNode is true of a DaemonSet, which has no number of replicas.
	OnEveryNode bool
	Replicas    int32
	Pod         corev1.PodSpec
}

const appsGroup = ".apps "

// lookAtWorkloads reads what pods copies will ask for.
func (j *Job) lookAtWorkloads(ctx context.Context, s *Inventory) error {
	s.Workloads = nil
	for _, kind := range []string{"DaemonSet", "Deployment", "StatefulSet"} {
		err := j.eachTaken(ctx, appsKind(kind), func(from, taken *unstructured.Unstructured) error {
			w, err := workloadOf(kind, from, taken)
			s.Workloads = append(s.Workloads, w)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func appsKind(kind string) objects.ResourceKind {
	return objects.ResourceKind{Group: "apps", Version: "v1", Kind: kind, Resource: strings.ToLower(kind) + "s", Namespaced: true}
}

// eachTaken calls do with the objects of a kind that are copied, and their copies. Errors of
// transforms are findings of their own.
func (j *Job) eachTaken(ctx context.Context, k objects.ResourceKind, do func(from, taken *unstructured.Unstructured) error) error {
	all, err := j.from.read(ctx, []string{k.String()})
	if err != nil {
		return err
	}
	for i := range all {
		taken, why, err := j.copying.copier.Rules.Take(k, &all[i])
		if err != nil || why != "" {
			continue
		}
		if err := do(&all[i], taken); err != nil {
			return fmt.Errorf("%s %s/%s: %w", k, taken.GetNamespace(), taken.GetName(), err)
		}
	}
	return nil
}

// workloadOf goes by the source's replicas for a copy that sleeps.
func workloadOf(kind string, from, taken *unstructured.Unstructured) (CopiedWorkload, error) {
	replicas := int64(1)
	for _, o := range []*unstructured.Unstructured{from, taken} {
		if n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found && (n > 0 || o == from) {
			replicas = n
		}
	}
	w := CopiedWorkload{
		Object: appsKind(kind).String() + " " + taken.GetNamespace() + "/" + taken.GetName(), Namespace: taken.GetNamespace(),
		OnEveryNode: kind == "DaemonSet", Replicas: int32(replicas),
	}
	spec, _, _ := unstructured.NestedMap(taken.Object, "spec", "template", "spec")
	return w, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &w.Pod)
}

// ownerOf is what a pod is of, as CopiedWorkload.Object; the pod itself, if it has no owner.
func ownerOf(p *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return "pods " + p.Namespace + "/" + p.Name
	}
	kind, name := ref.Kind, ref.Name
	if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; kind == "ReplicaSet" && hash != "" {
		kind, name = "Deployment", strings.TrimSuffix(name, "-"+hash)
	}
	return strings.ToLower(kind) + "s" + appsGroup + p.Namespace + "/" + name
}

// others are pods of the target that are of no copy, and have not ended.
func (s *Inventory) others() []corev1.Pod {
	copied := map[string]bool{}
	for _, w := range s.Workloads {
		copied[w.Object] = true
	}
	var out []corev1.Pod
	for _, p := range s.InTarget {
		if ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed; !ended && !copied[ownerOf(&p)] {
			out = append(out, p)
		}
	}
	return out
}

// hostPorts are the ports of nodes that a pod asks for. Those of a pod in the network of its node
// are what its containers listen on.
func hostPorts(p *corev1.PodSpec) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	for _, c := range p.Containers {
		for _, port := range c.Ports {
			if p.HostNetwork {
				port.HostPort = cmp.Or(port.HostPort, port.ContainerPort)
			}
			if port.HostPort > 0 {
				port.Protocol = cmp.Or(port.Protocol, corev1.ProtocolTCP)
				out = append(out, port)
			}
		}
	}
	return out
}
