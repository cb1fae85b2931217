package mirror

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/replumb/replumb/internal/kube/inventory"
)

type shortage struct {
	Resource     corev1.ResourceName
	Needed, Free resource.Quantity
}

func (s shortage) String() string {
	return fmt.Sprintf("%s: %s are asked for, %s are free", s.Resource, s.Needed.String(), s.Free.String())
}

// shortages compares sums of requests and free capacity: enough in sum may still not fit.
func shortages(moving []corev1.Pod, nodes []corev1.Node, there []corev1.Pod) []shortage {
	free, needed := corev1.ResourceList{}, asked(moving)
	for i := range nodes {
		if n := &nodes[i]; inventory.NodeReady(n) && !n.Spec.Unschedulable {
			add(free, n.Status.Allocatable)
		}
	}
	for name, q := range asked(there) {
		left := free[name]
		left.Sub(q)
		free[name] = left
	}
	var out []shortage
	for name, q := range needed {
		if have := free[name]; have.Cmp(q) < 0 {
			out = append(out, shortage{Resource: name, Needed: q, Free: have})
		}
	}
	slices.SortFunc(out, func(a, b shortage) int {
		if a.Resource < b.Resource {
			return -1
		}
		return 1
	})
	return out
}

// asked sums up requests as the scheduler does (k8s.io/component-helpers/resource), and pods.
func asked(pods []corev1.Pod) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		requests[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
		add(sum, requests)
	}
	return sum
}

func add(sum, more corev1.ResourceList) {
	for name, q := range more {
		have := sum[name]
		have.Add(q)
		sum[name] = have
	}
}

func ofDaemonSet(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && ref.Kind == "DaemonSet"
}
