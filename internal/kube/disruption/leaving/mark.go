package leaving

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Released is the value of the label by which a ReplicaSet selects a pod that was taken from it.
const Released = "released-by-replumb"

// Mark is what is noted on a pod that leaves.
type Mark struct {
	// Owner is the workload that it belonged to, if it was taken from that.
	Owner *Owner `json:"owner,omitempty"`
	// Labels are those that were changed, as they were.
	Labels map[string]string `json:"labels,omitempty"`
}

// Owner is a workload of the pod's namespace.
type Owner struct {
	Kind  string    `json:"kind"`
	Name  string    `json:"name"`
	UID   types.UID `json:"uid"`
	Since time.Time `json:"since"`
}

// Marked reports whether a pod is leaving for a migration; for any, if none is named.
func Marked(pod *corev1.Pod, migration string) bool {
	return pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleLeaving &&
		(migration == "" || pod.Labels[v1alpha1.LabelMigration] == migration)
}

// MarkOf is what is noted on a pod; empty if nothing that can be read is.
func MarkOf(pod *corev1.Pod) Mark {
	var m Mark
	if json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationLeaving]), &m) != nil {
		return Mark{}
	}
	return m
}

// Addresses are those that a pod has of its own. One on the network of its node has none.
func Addresses(pod *corev1.Pod) []netip.Addr {
	if pod.Spec.HostNetwork {
		return nil
	}
	var all []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

func release(pod *corev1.Pod, migration string, owner Owner) (*corev1.Pod, error) {
	return relabelled(pod, migration, Mark{Owner: &owner}, map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: Released})
}

func leave(pod *corev1.Pod, migration string, keys []string) (*corev1.Pod, error) {
	changes := map[string]string{}
	for _, k := range keys {
		changes[k] = Gone
	}
	return relabelled(pod, migration, MarkOf(pod), changes)
}

func relabelled(pod *corev1.Pod, migration string, mark Mark, changes map[string]string) (*corev1.Pod, error) {
	next := pod.DeepCopy()
	mark.Labels = maps.Clone(mark.Labels)
	if mark.Labels == nil {
		mark.Labels = map[string]string{}
	}
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	for k, v := range changes {
		if _, noted := mark.Labels[k]; !noted {
			mark.Labels[k] = pod.Labels[k]
		}
		next.Labels[k] = v
	}
	note, err := json.Marshal(mark)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	next.Labels[v1alpha1.LabelRole], next.Labels[v1alpha1.LabelMigration] = v1alpha1.RoleLeaving, migration
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[v1alpha1.AnnotationLeaving] = string(note)
	return next, nil
}

func restored(pod *corev1.Pod) *corev1.Pod {
	next := pod.DeepCopy()
	for k, v := range MarkOf(pod).Labels {
		next.Labels[k] = v
	}
	delete(next.Labels, v1alpha1.LabelRole)
	delete(next.Labels, v1alpha1.LabelMigration)
	delete(next.Annotations, v1alpha1.AnnotationLeaving)
	return next
}

func changedKeys(a, b map[string]string) []string {
	var keys []string
	for k := range b {
		if a[k] != b[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
