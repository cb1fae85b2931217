// Package overlap is the program that keeps bridges in step with their Services in the cluster,
// from the first bridge of a migration to the last, also while no command runs.
//
// All replicas watch. The leader writes at once, and the others what is still out of step a moment
// later (bridge.Follower), so the leader's lease can have its usual, slow times.
package overlap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
)

const (
	// LeaseName is the Lease of the leader, in replumb's namespace. Each replica has a heartbeat
	// beside it: a Lease with the name of its pod.
	LeaseName = "overlap"
	// Beat is how often a replica says that it is there, and whether all is in step.
	Beat = 2 * time.Second
	// Silence is for how long a replica may say nothing before it counts as lost.
	Silence = 15 * time.Second

	// The times of the lease that are usual for controllers (k8s.io/component-base config/v1alpha1,
	// RecommendedDefaultLeaderElectionConfiguration).
	leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

	// blind is for how long a replica goes on that cannot watch, before a new process tries.
	// Kubelets have forgotten earlier restarts by then, and start it at once (MaxContainerBackOff
	// in k8s.io/kubernetes pkg/kubelet/kubelet.go, twice).
	blind = 10*time.Minute + 10*time.Second

	heartbeat = "replumb-overlap"
)

// Replica is one of those that keep bridges in step.
type Replica struct {
	Cluster   *cluster.Cluster
	Migration string
	// Name and UID of the pod. Without a UID the heartbeat outlives the replica.
	Name string
	UID  types.UID
	Log  func(error)
	// Told, if set, hears of each address that was put back on a Service, or given to one.
	Told func(string)
	// Locked reports whether a run is at work. Without it, hops that a run was cut off in are left
	// alone.
	Locked func(context.Context) (bool, error)
	// Endpoints, if set, follow the Service kubernetes.
	Endpoints *cluster.APIEndpoints

	leads    atomic.Bool
	follower *bridge.Follower
}

// BlindError says that a replica cannot see what it is to follow.
type BlindError struct {
	For     time.Duration
	Problem string
}

func (e *BlindError) Error() string {
	return fmt.Sprintf("nothing could be watched for %s: %s", e.For.Round(time.Second), e.Problem)
}

// Run keeps bridges in step until ctx ends, or until it has not been able to watch for ten minutes.
func (r *Replica) Run(ctx context.Context) error {
	elections, err := coordination.NewForConfig(r.Cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	r.follower = &bridge.Follower{
		Client: r.Cluster, Migration: r.Migration, Leads: r.leads.Load, Report: r.report, Told: r.Told, Locked: r.Locked,
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	running.Go(func() { r.follower.Run(ctx) })
	running.Go(func() {
		wait.UntilWithContext(klog.NewContext(ctx, klog.Logger{}), func(ctx context.Context) { r.run(ctx, elections) }, time.Second)
	})
	running.Go(func() { wait.UntilWithContext(ctx, func(ctx context.Context) { r.beat(ctx, cancel) }, Beat) })
	running.Wait()
	if lost := (*BlindError)(nil); errors.As(context.Cause(ctx), &lost) {
		return lost
	}
	return ctx.Err()
}

func (r *Replica) report(err error) {
	if err != nil && r.Log != nil {
		r.Log(err)
	}
}

// run runs for the lead, and has it for as long as it can.
func (r *Replica) run(ctx context.Context, c coordination.LeasesGetter) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: LeaseName},
			Client:     c,
			LockConfig: resourcelock.ResourceLockConfig{Identity: r.Name},
			Labels:     Labels(r.Migration),
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { r.leads.Store(true) },
			OnStoppedLeading: func() { r.leads.Store(false) },
		},
	})
	if err != nil { // of settings that contradict each other, which are constants
		r.report(err)
		return
	}
	elector.Run(ctx)
}

// Labels of what replicas keep.
func Labels(migration string) map[string]string {
	return map[string]string{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleOverlap}
}

// beat says how things stand, and ends a replica that has been blind for too long.
func (r *Replica) beat(ctx context.Context, end context.CancelCauseFunc) {
	s := r.follower.Status()
	if !s.Blind.IsZero() && time.Since(s.Blind) > blind {
		end(&BlindError{For: time.Since(s.Blind), Problem: s.Problem})
		return
	}
	if r.Endpoints != nil {
		if servers := r.follower.APIServers(); len(servers) > 0 {
			r.Endpoints.Set(ctx, servers)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*Beat)
	defer cancel()
	if err := Say(ctx, r.Cluster, r.state(s)); err != nil && ctx.Err() == nil {
		r.report(err)
	}
}

func (r *Replica) state(s bridge.FollowerStatus) Heartbeat {
	now := time.Now().Truncate(time.Microsecond) // as Leases have it
	h := Heartbeat{Migration: r.Migration, Name: r.Name, UID: r.UID, At: now, Problem: s.Problem}
	if !s.Synced {
		return h
	}
	h.InStep = now
	for _, since := range []time.Time{s.Blind, s.Since} { // zero, if there is nothing
		if !since.IsZero() && since.Before(h.InStep) {
			h.InStep = since
		}
	}
	return h
}

// Heartbeat is what a replica says of itself, at a time by the clock of its node.
type Heartbeat struct {
	Migration, Name string
	UID             types.UID
	At              time.Time
	// InStep is when all bridges were last in step with their Services; zero if they have not been
	// yet.
	InStep  time.Time
	Problem string
}

// Say writes a heartbeat.
func Say(ctx context.Context, c client.Client, h Heartbeat) error {
	notes := map[string]string{}
	if !h.InStep.IsZero() {
		notes[v1alpha1.AnnotationInStep] = h.InStep.UTC().Format(time.RFC3339Nano)
	}
	if h.Problem != "" {
		notes[v1alpha1.AnnotationProblem] = h.Problem
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: h.Name, Labels: Labels(h.Migration), Annotations: notes},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &h.Name,
			LeaseDurationSeconds: ptr.To(int32(Silence / time.Second)),
			RenewTime:            &metav1.MicroTime{Time: h.At},
		},
	}
	if h.UID != "" { // the garbage collector takes it away with the pod
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: h.Name, UID: h.UID}}
	}
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(lease)
	if err != nil {
		return fmt.Errorf("heartbeat of %s: %w", h.Name, err)
	}
	o := &unstructured.Unstructured{Object: body}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(heartbeat), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("heartbeat of %s: %w", h.Name, err)
	}
	return nil
}

// Heard reads a heartbeat. ok is false for a Lease that is none, such as that of the leader.
func Heard(lease *coordinationv1.Lease) (h Heartbeat, ok bool) {
	if lease.Name == LeaseName || lease.Labels[v1alpha1.LabelRole] != v1alpha1.RoleOverlap || lease.Spec.RenewTime == nil {
		return Heartbeat{}, false
	}
	h = Heartbeat{
		Migration: lease.Labels[v1alpha1.LabelMigration], Name: lease.Name, At: lease.Spec.RenewTime.Time,
		Problem: lease.Annotations[v1alpha1.AnnotationProblem],
	}
	if len(lease.OwnerReferences) == 1 {
		h.UID = lease.OwnerReferences[0].UID
	}
	h.InStep, _ = time.Parse(time.RFC3339Nano, lease.Annotations[v1alpha1.AnnotationInStep])
	return h, true
}
