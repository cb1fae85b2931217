package fakekubelet

import (
	"context"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/overlap"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/leftaddress"
)

// Agents plays replumb's agents, and the replicas that keep bridges in step, which say that all is:
// whatever pod of theirs runs reports, ten times a second, that its requests of the two seconds
// before were answered, but for those that Lose says were not.
type Agents struct {
	Client client.Client
	// Lose is how many of the next ten requests of an agent fail. Default: none.
	Lose func(pod *corev1.Pod) int
	// Mute reports whether an agent says nothing. Default: none does.
	Mute func(pod *corev1.Pod) bool

	known map[types.UID]*played
}

// played is what one agent has counted.
type played struct {
	sequence, sent, failed, window int64
	recent                         []v1alpha1.ProbeWindow
	losses                         []v1alpha1.LossWindow
}

// Run plays until ctx ends.
func (a *Agents) Run(ctx context.Context) {
	a.known = map[types.UID]*played{}
	wait.UntilWithContext(ctx, a.report, 100*time.Millisecond)
}

// report has every agent report once. Failures are made up for the next time.
func (a *Agents) report(ctx context.Context) {
	pods := &corev1.PodList{}
	if a.Client.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), client.HasLabels{v1alpha1.LabelRole}) != nil {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase != corev1.PodRunning || !p.DeletionTimestamp.IsZero() || a.Mute != nil && a.Mute(p) {
			continue
		}
		if p.Labels[v1alpha1.LabelRole] == v1alpha1.RoleOverlap {
			keepInStep(ctx, a.Client, p)
			continue
		}
		a.speak(ctx, p)
	}
}

// keepInStep has a replica say that everything is in step, and that it leads.
func keepInStep(ctx context.Context, c client.Client, pod *corev1.Pod) {
	now, migration := metav1.NowMicro(), pod.Labels[v1alpha1.LabelMigration]
	_ = overlap.Say(ctx, c, overlap.Heartbeat{Migration: migration, Name: pod.Name, UID: pod.UID, At: now.Time, InStep: now.Time})
	lead := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.SystemNamespace, Name: overlap.LeaseName, Labels: overlap.Labels(migration),
	}}
	if err := c.Get(ctx, client.ObjectKeyFromObject(lead), lead); apierrors.IsNotFound(err) && c.Create(ctx, lead) != nil {
		return
	}
	lead.Spec.HolderIdentity, lead.Spec.RenewTime = &pod.Name, &now
	_ = c.Update(ctx, lead)
}

func (a *Agents) speak(ctx context.Context, pod *corev1.Pod) {
	origin := map[string]v1alpha1.ProbeOrigin{v1alpha1.RoleAgent: v1alpha1.FromHost, v1alpha1.RoleProbe: v1alpha1.FromPod}[pod.Labels[v1alpha1.LabelRole]]
	if origin == "" {
		return
	}
	r := &v1alpha1.NodeReport{}
	r.Name, r.Labels = pod.Spec.NodeName, map[string]string{v1alpha1.LabelMigration: pod.Labels[v1alpha1.LabelMigration]}
	its := r.Labels
	err := a.Client.Get(ctx, client.ObjectKeyFromObject(r), r)
	switch {
	case apierrors.IsNotFound(err):
		err = a.Client.Create(ctx, r)
	case err == nil && r.Labels[v1alpha1.LabelMigration] != its[v1alpha1.LabelMigration]: // it belongs to the migration from now on
		r.Labels = its
		err = a.Client.Update(ctx, r)
	}
	if err != nil {
		return
	}
	agent, probe := a.count(pod, origin)
	st := &r.Status
	st.Agents = append(slices.DeleteFunc(st.Agents, func(o v1alpha1.AgentReport) bool { return o.Origin == origin }), agent)
	st.Probes = append(slices.DeleteFunc(st.Probes, func(o v1alpha1.ProbeReport) bool { return o.Origin == origin }), probe)
	if origin == v1alpha1.FromHost {
		a.witness(ctx, st, string(pod.UID))
		st.Watched = a.watched(ctx, pod.Labels[v1alpha1.LabelMigration])
	}
	_ = a.Client.Status().Update(ctx, r)
}

// everything is more than there is.
const everything = 1 << 20

// witness says that the node has passed the latest barrier there is, and has connected to
// everything that has moved.
func (a *Agents) witness(ctx context.Context, st *v1alpha1.NodeReportStatus, instance string) {
	st.Connects = &v1alpha1.ConnectReport{Instance: instance, Connected: everything}
	sentinels := &corev1.ServiceList{}
	of := client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSentinel}
	if a.Client.List(ctx, sentinels, client.InNamespace(v1alpha1.SystemNamespace), of) != nil {
		return
	}
	st.Barriers = nil
	for i := range sentinels.Items {
		st.Barriers = append(st.Barriers, v1alpha1.BarrierReport{Sentinel: string(sentinels.Items[i].UID), PassedAt: metav1.NowMicro()})
	}
}

// watched are all addresses that Services have left; nil, if it cannot look, or none is to leave.
func (a *Agents) watched(ctx context.Context, migration string) *v1alpha1.WatchedAddresses {
	m := &v1alpha1.Migration{}
	if a.Client.Get(ctx, client.ObjectKey{Name: migration}, m) != nil || m.Spec.ServiceCIDR == nil {
		return nil
	}
	held, services := &networkingv1.IPAddressList{}, &corev1.ServiceList{}
	if a.Client.List(ctx, held, client.HasLabels{v1alpha1.LabelRole}) != nil || a.Client.List(ctx, services) != nil {
		return nil
	}
	from := spec.Prefixes(m.Spec.ServiceCIDR.From)
	ranges := leftaddress.Ranges{From: from, All: append(spec.Prefixes(m.Spec.ServiceCIDR.To), from...)}
	return leftaddress.Of(migration, pointers(held.Items), pointers(services.Items), ranges).Watched()
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// count is what an agent has seen by now.
func (a *Agents) count(pod *corev1.Pod, origin v1alpha1.ProbeOrigin) (v1alpha1.AgentReport, v1alpha1.ProbeReport) {
	k := a.known[pod.UID]
	if k == nil {
		k = &played{window: 1_700_000_000}
		a.known[pod.UID] = k
	}
	lost, now := 0, metav1.NowMicro()
	if a.Lose != nil {
		lost = a.Lose(pod)
	}
	k.sequence, k.sent, k.failed = k.sequence+1, k.sent+10, k.failed+int64(lost)
	k.recent = append(k.recent, v1alpha1.ProbeWindow{Start: k.window, End: k.window + 2, Sent: 10, Failed: lost})
	k.recent = k.recent[max(0, len(k.recent)-16):]
	k.window += 2
	if lost > 0 {
		k.losses = []v1alpha1.LossWindow{{Start: now, End: now, Failed: lost, Error: "played"}}
	}
	uid := string(pod.UID)
	return v1alpha1.AgentReport{Origin: origin, Instance: uid, Sequence: k.sequence, ReportedAt: now}, v1alpha1.ProbeReport{
		Name: strings.ToLower(
			string(origin),
		) + "/" + v1alpha1.ProbeAddress,
		Origin:   origin,
		Kind:     v1alpha1.RequestHTTP,
		Address:  "10.96.0.9:80",
		Instance: uid,
		Since:    now,
		Sent:     k.sent,
		Failed:   k.failed,
		Recent:   k.recent,
		Losses:   k.losses,
	}
}
