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

	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// quick is a timing for tests that wait for renewals. Its Leases say that they last a second.
func quick() timing {
	return timing{duration: 400 * time.Millisecond, renew: 20 * time.Millisecond, retry: 10 * time.Millisecond}
}

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
	if err := c.Get(t.Context(), key(), l); err != nil {
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
	hence := func() time.Time { return time.Now().Add(time.Minute) }
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
	patient.renew = 100 * time.Millisecond
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
			timing := quick()
			timing.duration = 15 * time.Second
			wantHeld(t, s, Self("shop", "replumb apply"), timing, test.want)
			hence := func() time.Time { return time.Now().Add(time.Minute) }
			mustAcquire(t, s, Self("shop", "replumb apply"), hence, quick())
		})
	}
}

func TestRenewalKeepsIt(t *testing.T) {
	s := free(t)
	timing := quick()
	timing.duration = 3 * time.Second // a busy machine may hold up an answer for longer than that of the others
	l := mustAcquire(t, s, Self("shop", "replumb apply"), time.Now, timing)
	first := lease(t, s)
	labelled := first.DeepCopy()
	labelled.Labels = map[string]string{"other": "was-here"}
	if err := s.Patch(t.Context(), labelled, client.MergeFrom(first)); err != nil {
		t.Fatal(err)
	}
	enough := first.Spec.RenewTime.Add(2 * timing.duration)
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return lease(t, s).Spec.RenewTime.After(enough), nil
	})
	if err != nil || l.lost.Err() != nil || lease(t, s).Labels["other"] == "" {
		t.Errorf("%v, %v, labels %v", err, context.Cause(l.lost), lease(t, s).Labels)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Get(t.Context(), key(), first); client.IgnoreNotFound(err) != nil || err == nil {
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
			c := &severed{Client: free(t)}
			l := mustAcquire(t, c, Self("shop", "replumb apply"), time.Now, quick())
			work := l.Context(t.Context())
			c.fail.Store(&fail)
			last := lease(t, c).Spec.RenewTime
			<-work.Done()
			var lost *LostError
			if err := context.Cause(work); !errors.As(err, &lost) || !strings.Contains(err.Error(), "could not be renewed for 400ms") {
				t.Errorf("the cause is %v", err)
			}
			if name == "refused" && !errors.Is(lost, unreachable) {
				t.Errorf("the cause %v does not name the reason", lost)
			}
			if took := time.Since(last.Time); took < quick().duration-quick().renew {
				t.Errorf("lost after %s already", took)
			}
		})
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
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return lease(t, c).Spec.RenewTime.After(before.Time), nil
	})
	if err != nil || l.lost.Err() != nil {
		t.Errorf("%v, %v", err, context.Cause(l.lost))
	}
}
