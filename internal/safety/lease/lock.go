// Package lease lets one migration at a time work on a cluster. A second run does not queue: it
// fails at once and names the holder.
package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// The Lease. It lies in kube-system because it has to be there before anything of replumb is.
const (
	Namespace = "kube-system"
	Name      = "replumb"
)

const (
	annotationHolder = "replumb.dev/holder"
	// annotationToken is new each time the lock is taken, and identifies it after a lost answer.
	annotationToken = "replumb.dev/holder-token" //nolint:gosec // the name of an annotation

	attempts = 5
	// releaseLimit bounds how long Release tries, since a process that ends waits for it.
	releaseLimit = 5 * time.Second

	// nullSignal asks whether a process exists (kill(2)).
	nullSignal = syscall.Signal(0)
)

type timing struct {
	duration     time.Duration
	renew, retry time.Duration
}

func (t timing) watched() time.Duration { return t.renew + t.retry }

// seconds is the duration as a Lease has it.
func (t timing) seconds() int32 {
	return int32((t.duration + time.Second - 1) / time.Second) //nolint:gosec // minutes
}

// Restart is for how long a lock is held without a renewal where the only API server is restarted:
// a kubelet takes most of a minute for it, and a person longer.
const Restart = 5 * time.Minute

// Usual is for how long it is held otherwise.
const Usual = time.Minute

// defaults are those of a run. A killed one on the same machine need not be waited for.
func defaults() timing {
	return timing{duration: Usual, renew: 10 * time.Second, retry: time.Second}
}

// Lock is held until Release, or until it is lost.
type Lock struct {
	client client.Client
	holder Holder
	now    func() time.Time
	timing timing
	token  string

	// lost ends with the lock: its cause is a LostError, or context.Canceled after Release.
	lost    context.Context
	end     context.CancelCauseFunc
	stop    context.CancelFunc
	stopped chan struct{}

	mu       sync.Mutex
	released bool

	// renewing guards what follows.
	renewing sync.Mutex
	lease    *coordinationv1.Lease
	// renewed is when the latest successful renewal was sent, by the monotonic clock, and wall by
	// the other; failed is the error of later ones.
	renewed, wall time.Time
	failed        error
}

// Acquire takes the lock for h and keeps it renewed, or fails with a HeldError.
//
// A lock is free when its holder on this very host is gone, or its Lease has expired by the local
// clock and is not renewed while it is watched for longer than a renewal period: clocks may differ,
// so that observation decides, as in client-go's leaderelection. A dead holder's fast clock delays
// that; deleting the Lease helps. A foreign Lease is treated alike.
func Acquire(ctx context.Context, c client.Client, h Holder, now func() time.Time) (*Lock, error) {
	return acquire(ctx, c, h, now, defaults())
}

func acquire(ctx context.Context, c client.Client, h Holder, now func() time.Time, timing timing) (*Lock, error) {
	l := &Lock{client: c, holder: h, now: now, timing: timing, token: string(uuid.NewUUID()), stopped: make(chan struct{})}
	if l.holder.Since.IsZero() {
		l.holder.Since = now()
	}
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	l.lost, l.end = context.WithCancelCause(context.Background())
	renewing, stop := context.WithCancel(l.lost)
	l.stop = stop
	go func() {
		defer close(l.stopped)
		l.keepRenewed(renewing)
	}()
	return l, nil
}

// Key is where the Lease is.
func Key() types.NamespacedName { return types.NamespacedName{Namespace: Namespace, Name: Name} }

func (l *Lock) take(ctx context.Context) error {
	for range attempts {
		have := &coordinationv1.Lease{}
		err := l.client.Get(ctx, Key(), have)
		asked, wall := time.Now(), l.now()
		switch {
		case apierrors.IsNotFound(err):
			have = l.write(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}})
			err = l.client.Create(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
		case err != nil:
			return fmt.Errorf("lease %s: %w", Key(), err)
		default:
			if err := l.checkFree(ctx, have); err != nil {
				return err
			}
			asked, wall = time.Now(), l.now()
			have = l.write(have)
			err = l.client.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
		}
		if err == nil {
			l.lease, l.renewed, l.wall = have, asked, wall
			return nil
		}
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("lease %s: %w", Key(), err)
		}
	}
	return fmt.Errorf("lease %s: someone else keeps writing it", Key())
}

func (l *Lock) checkFree(ctx context.Context, lease *coordinationv1.Lease) error {
	h := holderOf(lease)
	if lease.Annotations[annotationToken] == l.token || h.gone(l.holder) {
		return nil
	}
	held := &HeldError{Holder: h, now: l.now()}
	if l.now().Before(expiry(lease, l.timing.duration)) {
		return held
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(l.timing.watched()):
	}
	again := &coordinationv1.Lease{}
	if err := l.client.Get(ctx, Key(), again); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("lease %s: %w", Key(), err)
	}
	if again.UID == lease.UID && again.ResourceVersion != lease.ResourceVersion {
		return held
	}
	return nil
}

func expiry(lease *coordinationv1.Lease, duration time.Duration) time.Time {
	from := lease.CreationTimestamp.Time
	if lease.Spec.RenewTime != nil {
		from = lease.Spec.RenewTime.Time
	}
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	return from.Add(duration)
}

func (l *Lock) write(lease *coordinationv1.Lease) *coordinationv1.Lease {
	body, err := json.Marshal(l.holder)
	if err != nil {
		panic(fmt.Sprintf("a holder of strings and numbers has no JSON: %v", err))
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[annotationHolder], lease.Annotations[annotationToken] = string(body), l.token
	now, identity := metav1.NewMicroTime(l.now()), l.holder.String()
	seconds := l.timing.seconds()
	var transitions int32
	if was := lease.Spec.LeaseTransitions; was != nil {
		transitions = *was
	}
	if lease.UID != "" {
		transitions++
	}
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &identity, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions, AcquireTime: &now, RenewTime: &now,
	}
	return lease
}

func (l *Lock) keepRenewed(ctx context.Context) {
	next := l.timing.renew
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(next, time.Until(l.expires()))):
		}
		err := l.confirm(ctx, true)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			next = l.timing.renew
		default:
			next = l.timing.retry
		}
	}
}

// Outlast has the lock be held for a time without a renewal, from now on. It writes that first, so
// that others wait for as long; if it cannot, the lock lasts as before. A nil lock has none.
func (l *Lock) Outlast(ctx context.Context, duration time.Duration) {
	if l == nil {
		return
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	was := l.timing.duration
	if duration == was {
		return
	}
	l.timing.duration = duration
	asked, wall := time.Now(), l.now()
	if err := l.renew(engine.Unfenced(ctx), l.renewed.Add(was)); err != nil {
		l.timing.duration = was
		return
	}
	l.renewed, l.wall, l.failed = asked, wall, nil
}

// Outlasting is for what waits while people may restart the only API server: the lock in its
// context is held through that, and as long as usual again once it holds.
func Outlasting(holds func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		lock := Of(ctx)
		lock.Outlast(ctx, Restart)
		err := holds(ctx)
		if err == nil {
			lock.Outlast(ctx, Usual)
		}
		return err
	}
}

func (l *Lock) expires() time.Time {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	return l.renewed.Add(l.timing.duration)
}

func (l *Lock) renew(ctx context.Context, expires time.Time) error {
	limit := time.Now().Add(l.timing.renew)
	if expires.Before(limit) {
		limit = expires
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	err := l.update(ctx, l.lease.DeepCopy())
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	have, err := l.mine(ctx)
	if err != nil {
		return err
	}
	return l.update(ctx, have) // someone labelled it, or our last write succeeded and its answer was lost
}

func (l *Lock) update(ctx context.Context, lease *coordinationv1.Lease) error {
	now, seconds := metav1.NewMicroTime(l.now()), l.timing.seconds()
	lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &now, &seconds
	if err := l.client.Update(ctx, lease, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return err
	}
	l.lease = lease
	return nil
}

func (l *Lock) mine(ctx context.Context) (*coordinationv1.Lease, error) {
	have := &coordinationv1.Lease{}
	err := l.client.Get(ctx, Key(), have)
	switch {
	case apierrors.IsNotFound(err):
		return nil, &LostError{Why: errors.New("someone deleted it")}
	case err != nil:
		return nil, err
	case have.Annotations[annotationToken] != l.token:
		return nil, &LostError{Why: fmt.Errorf("taken by %s", holderOf(have))}
	}
	return have, nil
}

// Context ends with the lock: its cause is a LostError if it was lost, context.Canceled if
// released. The lock is the fence of writes in it.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(engine.Fenced(parent, l))
	unhook := context.AfterFunc(l.lost, func() { cancel(context.Cause(l.lost)) })
	context.AfterFunc(ctx, func() { unhook() })
	return ctx
}

// Release gives the lock back within five seconds, even if ctx is cancelled; repeated, or for a
// lost lock, it does nothing.
func (l *Lock) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil
	}
	l.stop()
	<-l.stopped
	l.end(context.Canceled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	if err := l.remove(ctx); err != nil {
		return fmt.Errorf("releasing lease %s: %w", Key(), err)
	}
	l.released = true
	return nil
}

func (l *Lock) remove(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	lease := l.lease
	for range attempts {
		err := l.client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if !apierrors.IsConflict(err) {
			return client.IgnoreNotFound(err)
		}
		var lost *LostError
		if lease, err = l.mine(ctx); errors.As(err, &lost) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.New("someone else keeps writing it")
}

// Current is who holds the lock; nil if no one does.
func Current(ctx context.Context, c client.Client) (*Holder, error) {
	lease := &coordinationv1.Lease{}
	err := c.Get(ctx, Key(), lease)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", Key(), err)
	}
	h := holderOf(lease)
	if h.gone(Self("", "")) || !time.Now().Before(expiry(lease, defaults().duration)) {
		return nil, nil
	}
	return &h, nil
}
