//go:build apiserver

package lease

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// quick is a timing for tests that wait for renewals. Between two of them a busy machine may take
// long, so its Leases last a minute.
func quick() timing {
	return timing{duration: time.Minute, renew: 200 * time.Millisecond, retry: 10 * time.Millisecond}
}

// hence is when what quick says has expired.
func hence() time.Time { return time.Now().Add(2 * quick().duration) }

func free(t *testing.T) *apitest.Server {
	t.Helper()
	s := lazy.Get(t)
	err := s.DeleteAllOf(t.Context(), &coordinationv1.Lease{}, client.InNamespace(Namespace), client.MatchingFields{"metadata.name": Name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func elsewhere(migration string) Holder {
	h := Self(migration, "replumb apply")
	h.User, h.Host, h.PID, h.Boot = "root", "elsewhere", 123, "another boot"
	return h
}

func lease(t *testing.T, c client.Client) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{}
	if err := c.Get(t.Context(), Key(), l); err != nil {
		t.Fatal(err)
	}
	return l
}

// crash ends the renewing without giving the lock back.
func crash(l *Lock) {
	l.stop()
	<-l.stopped
}

func mustAcquire(t *testing.T, c client.Client, h Holder, now func() time.Time, timing timing) *Lock {
	t.Helper()
	l, err := acquire(t.Context(), c, h, now, timing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { crash(l) })
	return l
}

func wantHeld(t *testing.T, c client.Client, h Holder, timing timing, by string) {
	t.Helper()
	_, err := acquire(t.Context(), c, h, time.Now, timing)
	var held *HeldError
	if !errors.As(err, &held) || !strings.Contains(err.Error(), by) {
		t.Fatalf("got %v, want held by %s", err, by)
	}
}

func TestOnlyOneHolds(t *testing.T) {
	s := free(t)
	first, err := Acquire(t.Context(), s, Self("shop", "replumb apply"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(t.Context(), s, Self("other", "replumb rollback"), time.Now)
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	if h := held.Holder; h.Migration != "shop" || h.PID != os.Getpid() || h.Boot == "" || h.Space == "" || h.Since.IsZero() {
		t.Errorf("the holder is %+v", h)
	}
	if h, err := Current(t.Context(), s); err != nil || h == nil || h.Migration != "shop" {
		t.Errorf("current: %v, %v", h, err)
	}
	work := first.Context(t.Context())
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := first.Release(cancelled); err != nil {
			t.Fatal(err)
		}
	}
	if <-work.Done(); !errors.Is(context.Cause(work), context.Canceled) {
		t.Errorf("after the release the cause is %v", context.Cause(work))
	}
	if h, err := Current(t.Context(), s); err != nil || h != nil {
		t.Errorf("current after the release: %v, %v", h, err)
	}
	second := mustAcquire(t, s, Self("other", "replumb rollback"), time.Now, defaults())
	if err := first.Release(t.Context()); err != nil || *lease(t, s).Spec.HolderIdentity != second.holder.String() {
		t.Errorf("released another holder's: %v", err)
	}
}

func TestOneOfManyAtOnce(t *testing.T) {
	s := free(t)
	var won, held atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			l, err := Acquire(t.Context(), s, Self("shop", "replumb apply"), time.Now)
			var h *HeldError
			switch {
			case err == nil:
				won.Add(1)
				t.Cleanup(func() { crash(l) })
			case errors.As(err, &h):
				held.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || held.Load() != 7 {
		t.Errorf("%d took it, %d were told that it is held", won.Load(), held.Load())
	}
}

func TestExpiredIsTakenOver(t *testing.T) {
	s := free(t)
	crash(mustAcquire(t, s, elsewhere("shop"), time.Now, quick()))
	wantHeld(t, s, Self("shop", "replumb apply"), quick(), "root@elsewhere (pid 123, replumb apply)")
	l := mustAcquire(t, s, Self("shop", "replumb apply"), hence, quick())
	if got := lease(t, s); *got.Spec.LeaseTransitions != 1 || *got.Spec.HolderIdentity != l.holder.String() {
		t.Errorf("the lease is %+v", got.Spec)
	}
}

// A clock that is ahead makes a Lease look expired which its holder renews.
func TestRenewedIsNotTakenOverByAClockAhead(t *testing.T) {
	s := free(t)
	behind := func() time.Time { return time.Now().Add(-time.Hour) }
	patient := quick()
	patient.renew = 2 * time.Second // a renewal comes within that on a busy machine, too
	mustAcquire(t, s, elsewhere("shop"), behind, quick())
	wantHeld(t, s, Self("shop", "replumb apply"), patient, "elsewhere")
}

func TestDeadIsTakenOverAtOnce(t *testing.T) {
	for name, reap := range map[string]bool{"reaped": true, "zombie": false} {
		t.Run(name, func(t *testing.T) {
			s := free(t)
			child := exec.CommandContext(t.Context(), "true")
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = child.Wait() })
			if err := unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
				t.Fatal(err)
			}
			if reap {
				_ = child.Wait()
			}
			dead := Self("shop", "replumb apply")
			dead.PID = child.Process.Pid
			crash(mustAcquire(t, s, dead, time.Now, defaults()))
			if h, err := Current(t.Context(), s); err != nil || h != nil {
				t.Errorf("current: %v, %v", h, err)
			}
			mustAcquire(t, s, Self("shop", "replumb apply"), time.Now, defaults())
		})
	}
}

func TestForeignLease(t *testing.T) {
	who := "an operator"
	for name, test := range map[string]struct {
		spec coordinationv1.LeaseSpec
		want string
	}{
		"empty": {want: "lease kube-system/replumb is held by a holder without a name"},
		"named": {coordinationv1.LeaseSpec{HolderIdentity: &who}, "lease kube-system/replumb is held by an operator"},
	} {
		t.Run(name, func(t *testing.T) {
			s := free(t)
			foreign := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}, Spec: test.spec}
			if err := s.Create(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			wantHeld(t, s, Self("shop", "replumb apply"), quick(), test.want)
			mustAcquire(t, s, Self("shop", "replumb apply"), hence, quick())
		})
	}
}

func TestRenewalKeepsIt(t *testing.T) {
	s := free(t)
	timing := quick()
	timing.duration = 5 * time.Second
	l := mustAcquire(t, s, Self("shop", "replumb apply"), time.Now, timing)
	first := lease(t, s)
	labelled := first.DeepCopy()
	labelled.Labels = map[string]string{"other": "was-here"}
	if err := s.Patch(t.Context(), labelled, client.MergeFrom(first)); err != nil {
		t.Fatal(err)
	}
	enough := first.Spec.RenewTime.Add(timing.duration)
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return lease(t, s).Spec.RenewTime.After(enough), nil
	})
	if err != nil || l.lost.Err() != nil || lease(t, s).Labels["other"] == "" {
		t.Errorf("%v, %v, labels %v", err, context.Cause(l.lost), lease(t, s).Labels)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Get(t.Context(), Key(), first); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the lease after the release: %v", err)
	}
}

func TestTakenIsLost(t *testing.T) {
	for name, test := range map[string]struct {
		take func(context.Context, client.Client, *coordinationv1.Lease) error
		want string
	}{
		"taken": {func(ctx context.Context, c client.Client, l *coordinationv1.Lease) error {
			patched, who := l.DeepCopy(), "an operator"
			patched.Annotations, patched.Spec.HolderIdentity = nil, &who
			return c.Patch(ctx, patched, client.MergeFrom(l))
		}, "lost the lock (lease kube-system/replumb): taken by an operator"},
		"deleted": {func(ctx context.Context, c client.Client, l *coordinationv1.Lease) error {
			return c.Delete(ctx, l)
		}, "lost the lock (lease kube-system/replumb): someone deleted it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := free(t)
			l := mustAcquire(t, s, Self("shop", "replumb apply"), time.Now, quick())
			work := l.Context(t.Context())
			if err := test.take(t.Context(), s, lease(t, s)); err != nil {
				t.Fatal(err)
			}
			<-work.Done()
			var lost *LostError
			if err := context.Cause(work); !errors.As(err, &lost) || err.Error() != test.want {
				t.Errorf("the cause is %v, want %s", err, test.want)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// severed is a client that at some moment does not get through any more.
type severed struct {
	client.Client
	fail atomic.Pointer[func(context.Context) error]
}

func (s *severed) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if fail := s.fail.Load(); fail != nil {
		return (*fail)(ctx)
	}
	return s.Client.Update(ctx, o, opts...)
}

func TestNotRenewedIsLost(t *testing.T) {
	unreachable := errors.New("no route to host")
	for name, fail := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return unreachable },
		"hanging": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			c, timing := &severed{Client: free(t)}, quick()
			timing.duration = 2 * time.Second
			l := mustAcquire(t, c, Self("shop", "replumb apply"), time.Now, timing)
			work := l.Context(t.Context())
			c.fail.Store(&fail)
			last := lease(t, c).Spec.RenewTime
			<-work.Done()
			var lost *LostError
			if err := context.Cause(work); !errors.As(err, &lost) || !strings.Contains(err.Error(), "could not be renewed for 2s") {
				t.Errorf("the cause is %v", err)
			}
			if name == "refused" && !errors.Is(lost, unreachable) {
				t.Errorf("the cause %v does not name the reason", lost)
			}
			if took := time.Since(last.Time); took < timing.duration-timing.renew {
				t.Errorf("lost after %s already", took)
			}
		})
	}
}

// TestOutlasts: others wait as long as the lock does, and one that cannot say so lasts as before.
func TestOutlasts(t *testing.T) {
	c, timing := &severed{Client: free(t)}, quick()
	timing.duration = 2 * time.Second
	l := mustAcquire(t, c, Self("shop", "replumb apply"), time.Now, timing)
	work := l.Context(t.Context())
	fail := func(context.Context) error { return errors.New("no route to host") }
	c.fail.Store(&fail)
	l.Outlast(t.Context(), time.Minute)
	if got := lease(t, c).Spec.LeaseDurationSeconds; *got != 2 || l.expires().After(time.Now().Add(timing.duration)) {
		t.Errorf("it was not written, lasts %d s, and until %s", *got, l.expires())
	}
	c.fail.Store(nil)
	l.Outlast(t.Context(), time.Minute)
	if got := lease(t, c).Spec.LeaseDurationSeconds; *got != 60 {
		t.Errorf("others wait for %d s", *got)
	}
	c.fail.Store(&fail)
	select {
	case <-work.Done():
		t.Errorf("it was lost: %v", context.Cause(work))
	case <-time.After(2 * timing.duration): // longer than it was held before
	}
	c.fail.Store(nil)
	l.Outlast(t.Context(), timing.duration)
	if got := lease(t, c).Spec.LeaseDurationSeconds; *got != 2 {
		t.Errorf("afterwards others wait for %d s", *got)
	}
}

// A short interruption costs nothing.
func TestRenewedAgainIsKept(t *testing.T) {
	c := &severed{Client: free(t)}
	l := mustAcquire(t, c, Self("shop", "replumb apply"), time.Now, quick())
	failed := make(chan struct{}, 1)
	fail := func(context.Context) error {
		select {
		case failed <- struct{}{}:
		default:
		}
		return errors.New("service unavailable")
	}
	c.fail.Store(&fail)
	<-failed
	c.fail.Store(nil)
	before := lease(t, c).Spec.RenewTime
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return lease(t, c).Spec.RenewTime.After(before.Time), nil
	})
	if err != nil || l.lost.Err() != nil {
		t.Errorf("%v, %v", err, context.Cause(l.lost))
	}
}

// counter counts the writes of the Lease.
type counter struct {
	client.Client
	updates atomic.Int64
}

func (c *counter) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.updates.Add(1)
	return c.Client.Update(ctx, o, opts...)
}

// TestFence: who has renewed the Lease a moment ago writes without asking; who has slept asks, and
// so does the final step.
func TestFence(t *testing.T) {
	s := &counter{Client: free(t)}
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	timing := timing{duration: 4 * time.Hour, renew: time.Hour, retry: time.Second} // nothing is renewed but by the fence
	l := mustAcquire(t, s, Self("shop", "replumb apply"), now, timing)
	ask := func(sure bool, updates int64) {
		t.Helper()
		before := s.updates.Load()
		if err := engine.MayWrite(l.Context(t.Context()), sure); err != nil || s.updates.Load()-before != updates {
			t.Errorf("sure %t: %v after %d writes, want %d", sure, err, s.updates.Load()-before, updates)
		}
	}
	ask(false, 0)
	ask(true, 1)
	ahead.Store(int64(2 * time.Hour))
	ask(false, 1)
	ask(false, 0)
	l.renewing.Lock()
	l.renewed = l.renewed.Add(-timing.watched())
	l.renewing.Unlock()
	ask(false, 1)

	if err := s.Delete(t.Context(), lease(t, s)); err != nil {
		t.Fatal(err)
	}
	other := mustAcquire(t, s.Client, Self("shop", "replumb rollback"), now, timing)
	ahead.Store(int64(4 * time.Hour))
	work := l.Context(t.Context())
	err := engine.MayWrite(work, false)
	<-work.Done()
	var lost *LostError
	if !errors.As(err, &lost) || !engine.Revoked(err) || !errors.As(context.Cause(work), &lost) {
		t.Errorf("another has the lock, and the first gets %v; its context ended with %v", err, context.Cause(work))
	}
	if err := engine.MayWrite(other.Context(t.Context()), true); err != nil {
		t.Errorf("the other: %v", err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := engine.MayWrite(engine.Fenced(t.Context(), other), false); !errors.As(err, &lost) {
		t.Errorf("after the release: %v", err)
	}
}
