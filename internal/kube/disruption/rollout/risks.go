package rollout

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/kube/readiness"
)

// Gap says why a workload does not answer for a while during a restart; nothing, if it does.
func (s *State) Gap(w *Workload) string {
	if w.AllAtOnce {
		return "ends all its pods before it starts new ones (strategy Recreate)"
	}
	for i := range s.StatefulSets {
		if set := &s.StatefulSets[i]; set.UID == w.UID && ptr.Deref(set.Spec.Replicas, 1) == 1 {
			return "has a single pod, which ends before the next one starts"
		}
	}
	for i := range s.Deployments {
		if d := &s.Deployments[i]; d.UID == w.UID && ptr.Deref(d.Spec.Replicas, 1) == 1 && !surges(d) {
			return "has a single pod, which may end before the next one is ready (maxSurge 0)"
		}
	}
	for i := range s.DaemonSets {
		if d := &s.DaemonSets[i]; d.UID == w.UID && atHostPort(d) {
			return "ends its pod on a node before the next one starts there, and it answers at a port of the node"
		}
	}
	return ""
}

// Overlaps reports whether a rollout ends no pod before another one has been ready for settle.
func (s *State) Overlaps(w *Workload, settle time.Duration) bool {
	for i := range s.Deployments {
		if d := &s.Deployments[i]; d.UID == w.UID {
			return !w.AllAtOnce && unavailable(d) == 0 && time.Duration(d.Spec.MinReadySeconds)*time.Second >= settle
		}
	}
	return true
}

// unavailable is how many pods a rollout may end first (default 25%, rounded down).
func unavailable(d *appsv1.Deployment) int {
	most := intstr.FromString("25%")
	if u := d.Spec.Strategy.RollingUpdate; u != nil && u.MaxUnavailable != nil {
		most = *u.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&most, int(ptr.Deref(d.Spec.Replicas, 1)), false)
	if err != nil {
		return 1
	}
	return n
}

// surges reports whether a new pod starts before an old one ends (default 25%, rounded up).
func surges(d *appsv1.Deployment) bool {
	u := d.Spec.Strategy.RollingUpdate
	return u == nil || u.MaxSurge == nil || more(u.MaxSurge)
}

func more(n *intstr.IntOrString) bool { return n.String() != "0" && n.String() != "0%" }

// atHostPort reports whether a DaemonSet answers at ports of its nodes.
func atHostPort(d *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

// unfinished says what a workload lacks that replumb has not restarted for these changes.
func (s *State) unfinished(o *owners, w *Workload, c Changes) string {
	a := o.adapterOf(w.UID)
	if a == nil || c.touched(w.Namespace, restartedAt(a)) {
		return ""
	}
	return lacks(present(a, s.Pods, s.Away))
}

// lacks says what is outstanding of a rollout, without the workload's name; empty, if nothing is.
func lacks(a adapter) string {
	ok, why := readiness.Workload(a.object())
	if ok {
		return "" // it has something to say then, too
	}
	return why
}

func (o *owners) adapterOf(uid types.UID) adapter {
	if d := o.deployments[uid]; d != nil {
		return deploymentAdapter{d}
	}
	if d := o.statefulSets[uid]; d != nil {
		return statefulSetAdapter{d}
	}
	if d := o.daemonSets[uid]; d != nil {
		return daemonSetAdapter{d}
	}
	return nil
}

func (s *State) fateOf(o *owners, pod *corev1.Pod) fate {
	f := o.fateOf(pod)
	if f.workload != nil && waitsForNode(f.workload.Kind, pod, s.Away) {
		return fate{reason: "node " + pod.Spec.NodeName + " is not ready", final: true}
	}
	return f
}
