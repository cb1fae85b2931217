package lossguard

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// TestMeasuring: a stop of some seconds is over when a minute lies behind it; one that goes on is
// not.
func TestMeasuring(t *testing.T) {
	host := Agent{"n", v1alpha1.FromHost}
	for _, tt := range []struct {
		name string
		// missed is how many requests each report could not measure.
		missed func(report int) int64
		// able is whether the agent can measure after so many reports of ten requests each, two
		// seconds apart.
		able map[int]bool
		// unable is for how long it could not at the end.
		unable time.Duration
		known  bool
	}{
		{"all is measured", func(int) int64 { return 0 }, map[int]bool{3: true, 90: true}, 0, true},
		{"before it was looked at", func(i int) int64 { return map[int]int64{1: 50}[i] }, map[int]bool{1: true, 90: true}, 0, true},
		{"a stop", func(i int) int64 { return map[int]int64{10: 30}[i] }, map[int]bool{9: true, 10: false, 39: false, 40: true, 90: true}, 0, false},
		{"while it is not steady yet", func(i int) int64 { return map[int]int64{2: 30}[i] }, map[int]bool{2: false, 31: false, 32: true, 90: true}, 0, true},
		{"one in a hundred", func(i int) int64 { return int64(i % 10 / 9) }, map[int]bool{8: true, 9: false, 90: false}, 164 * time.Second, false},
		{"nothing is", func(int) int64 { return 10 }, map[int]bool{2: false, 90: false}, 178 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			for i := 1; i <= 90; i++ {
				s.missed += tt.missed(i)
				s.tick(0, true)
				unable := s.tally.Unmeasuring([]Agent{host})
				if want, ok := tt.able[i]; ok && (len(unable) == 0) != want {
					t.Errorf("report %d: %q", i, unable)
				}
			}
			if got := s.tally.Unable(host, begin, s.now); got != tt.unable {
				t.Errorf("unable for %s, want %s", got, tt.unable)
			}
			if got := s.tally.unmeasured("n"); (got == "") != tt.known {
				t.Errorf("since the run began: %q", got)
			}
			if s.tally.Failed != 0 || s.tally.Late != 0 || len(s.tally.Losses) > 0 {
				t.Errorf("%d lost, %d late: %v", s.tally.Failed, s.tally.Late, s.tally.Losses)
			}
		})
	}
}

// TestUnmeasuringIsNoSilence: an agent that cannot measure is named as that, in whatever waits for
// it.
func TestUnmeasuringIsNoSilence(t *testing.T) {
	s := newScript(t)
	both := []Agent{{"n", v1alpha1.FromHost}, {"n", v1alpha1.FromPod}}
	for range 4 {
		s.tick(0, true)
	}
	since := s.now
	s.missed += 40
	s.tick(0, true)
	if got := s.tally.Unarmed(
		both,
	); len(got) != 2 ||
		!strings.Contains(got[0], "node n: its agent in the network of hosts could not measure 40 of ") {
		t.Errorf("unsettled: %q", got)
	}
	if got := s.tally.Unheard(since, both); len(got) != 2 {
		t.Errorf("unheard: %q", got)
	}
	if got := s.tally.Silence(both[0], begin, s.now); got != 0 {
		t.Errorf("silent for %s", got)
	}
	w := watchedNodes{nodes: []corev1.Node{readyNode()}}
	st := w.status(s.tally)
	if st.Nodes != 0 || len(st.Silent) != 1 || !strings.Contains(st.Silent[0], "nothing can be said of what was lost") ||
		st.NotMeasured != 80 {
		t.Errorf("status %+v", st)
	}
}

func readyNode() corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// TestRunWaitsForMeasuringAgents: an agent that stands still for some seconds delays the next group
// of a run; one that does so all the time ends it, with an exit code of its own, and before
// anything else is begun. A way back goes on.
func TestRunWaitsForMeasuringAgents(t *testing.T) {
	for _, tt := range []struct {
		name string
		// stopped is whether the agent stands still so long after the run began.
		stopped func(time.Duration) bool
		lenient bool
		code    int
		after   time.Duration
	}{
		{"it measures", func(time.Duration) bool { return false }, false, fault.ExitDone, 0},
		{"a hiccup", func(d time.Duration) bool { return d < 5*time.Second }, false, fault.ExitDone, time.Minute},
		{"all the time", func(time.Duration) bool { return true }, false, fault.ExitNotMeasured, 3 * time.Minute},
		{"on the way back", func(time.Duration) bool { return true }, true, fault.ExitDone, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(t)
				w := &Watch{Migration: "m", Patience: 2 * time.Minute, Lenient: tt.lenient}
				w.seen().tally = s.tally
				w.nodes.set([]corev1.Node{readyNode()})
				w.Expect()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				report := func(stopped bool) {
					w.seen().read(func(*Tally) {
						if stopped {
							s.missed += 10
						}
						s.now = time.Now().Add(-2 * time.Second) // which a tick is later
						s.tick(0, true)
					})
				}
				for range 5 {
					time.Sleep(2 * time.Second) //nolint:forbidigo // of fake time
					report(false)
				}
				began := time.Now()
				var reporting sync.WaitGroup
				reporting.Go(func() {
					for ctx.Err() == nil {
						report(tt.stopped(time.Since(began)))
						w.seen().read(func(t *Tally) { w.nodes.silent(t, w.now(), w.Patience) })
						w.measure(cancel)
						time.Sleep(2 * time.Second) //nolint:forbidigo // of fake time
					}
				})
				synctest.Wait()
				err := runOne(ctx, w)
				took := time.Since(began)
				cancel(nil)
				reporting.Wait()
				code := fault.ExitDone
				if err != nil {
					code, _ = fault.ExitCode(err)
				}
				if code != tt.code || took < tt.after || took > tt.after+20*time.Second {
					t.Errorf("exit code %d after %s: %v", code, took, err)
				}
				if code == fault.ExitNotMeasured && (!strings.Contains(err.Error(), "node n: its agent") || fault.Advice(err) == "") {
					t.Errorf("says %v; %s", err, fault.Advice(err))
				}
			})
		})
	}
}

// runOne runs a step when the Watch lets it begin.
func runOne(ctx context.Context, w *Watch) error {
	step := &engine.Wait{Name: "next", About: "Do what is next", For: func(context.Context) error { return nil }, Again: true}
	plan := &engine.Plan{
		Name:   "p",
		Phases: []engine.Phase{{Name: "one", Title: "One", Groups: []engine.Group{{Steps: []engine.Step{step}}}}},
	}
	began := false
	r := &engine.Runner{Hold: w.Hold, HoldLimit: w.HoldLimit(), Sink: func(e engine.Event) { began = began || e.Step == "next" }}
	err := r.Run(ctx, plan)
	if err != nil && began {
		return errors.New("something was begun")
	}
	return err
}

// TestLateBudget: late answers are counted apart from losses, and end a run only beyond a budget of
// their own.
func TestLateBudget(t *testing.T) {
	two := 2
	for _, tt := range []struct {
		name    string
		budget  *int
		lenient bool
		// late and failed are those of each of both probes.
		late, failed int
		want         string
		reason       string
	}{
		{"no limit", nil, false, 7, 0, "", ""},
		{"within it", &two, false, 1, 0, "", ""},
		{"beyond it", &two, false, 2, 0, "4 answers were late, and spec.proof.lateBudget is 2; they are no losses: probe Pod/name on node n to " +
			"probe:80 had 2 late answers; probe Host/name on node n to probe:80 had 2 late answers", v1alpha1.ReasonLateBudgetExceeded},
		{"a loss as well", &two, false, 2, 1, "2 requests failed: ", v1alpha1.ReasonLossBudgetExceeded},
		{"on the way back", &two, true, 2, 0, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.late = 3 // before its losses count
			for range 2 {
				s.tick(0, true)
			}
			s.unsettled(0)
			s.late = 0
			s.tick(0, true)
			if s.tally.Late != 0 {
				t.Fatalf("%d late answers of before count", s.tally.Late)
			}
			s.late = tt.late
			fresh := s.tick(tt.failed, true)
			s.late = 0
			if s.tally.Late != int64(2*tt.late) || s.tally.Failed != int64(2*tt.failed) {
				t.Errorf("%d late, %d failed", s.tally.Late, s.tally.Failed)
			}
			var cause error
			w := &Watch{Migration: "m", LateBudget: tt.budget, Lenient: tt.lenient}
			w.arrived(s.report, news{
				losses: fresh, failed: s.tally.Failed, late: s.tally.Late, latest: s.tally.Losses, lates: s.tally.Lates,
			}, func(err error) { cause = err })
			if tt.want == "" {
				if cause != nil {
					t.Errorf("ended with %v", cause)
				}
				return
			}
			var loss *LossError
			if !errors.As(cause, &loss) || !strings.HasPrefix(loss.Error(), tt.want) || loss.Stalls() != tt.reason ||
				loss.ExitCode() != fault.ExitBudget || loss.Advice() == "" || loss.hungUp() {
				t.Errorf("ended with %v", cause)
			}
		})
	}
}

// TestAgentsOfBefore: what an agent that knows nothing of them does not report is none, and it can
// measure.
func TestAgentsOfBefore(t *testing.T) {
	s := newScript(t)
	for range 4 {
		s.tick(0, true)
	}
	s.unsettled(0)
	if s.tally.Late != 0 || s.tally.NotMeasured != 0 || s.tally.unmeasured("n") != "" {
		t.Errorf("%d late, %d not measured", s.tally.Late, s.tally.NotMeasured)
	}
}
