package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations"
)

// LeaseName is the Lease of the replica that leads.
const LeaseName = migrations.OperatorLease

// The lead lasts as long as the lock, and outlasts the restart of a control plane's only API
// server, which gates ask for. An earlier successor would wait for the lock.
const leaseDuration, renewDeadline, retryPeriod = time.Minute, 50 * time.Second, 3 * time.Second

// Run runs for the lead, and runs Migrations while it has it. It returns once nothing is in hand.
func (o *Operator) Run(ctx context.Context) error {
	elections, err := coordination.NewForConfig(o.cluster().RESTConfig())
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	wait.UntilWithContext(klog.NewContext(ctx, klog.Logger{}), func(ctx context.Context) { o.run(ctx, elections) }, time.Second)
	return ctx.Err()
}

type term struct {
	mu      sync.Mutex
	over    bool
	leading sync.WaitGroup
}

func (t *term) serve(do func()) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.leading.Add(1)
	t.mu.Unlock()
	defer t.leading.Done()
	do()
}

func (t *term) end() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.leading.Wait()
}

// run runs for the lead once, and has it for as long as it can.
func (o *Operator) run(ctx context.Context, c coordination.LeasesGetter) {
	var t term
	defer t.end()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: LeaseName}, Client: c,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Name},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { t.serve(func() { o.lead(ctx) }) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil { // of settings that contradict each other, which are constants
		o.Log("error: %v", err)
		return
	}
	elector.Run(ctx)
}

// Alive is the leader by its Lease and the API server's clock; empty if no operator is alive, or
// without the right to see.
func Alive(ctx context.Context, c client.Client, namespace string, now time.Time) (leader string, err error) {
	l := &coordinationv1.Lease{}
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: LeaseName}, l)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("lease %s/%s: %w", namespace, LeaseName, err)
	}
	if l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil || now.After(l.Spec.RenewTime.Add(silence)) {
		return "", nil
	}
	return *l.Spec.HolderIdentity, nil
}

// silence bounds how long a leader may say nothing: while another replica takes over, there is an
// operator.
const silence = 90 * time.Second

// Namespace is where the operator is, unless it is installed elsewhere.
const Namespace = v1alpha1.SystemNamespace
