package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const secret = "T0P53CRET"

// fake is a step made of a function.
type fake struct {
	id, note string
	verify   func() error
}

func (f *fake) ID() string                                  { return f.id }
func (f *fake) Title() string                               { return "Do " + f.id }
func (f *fake) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (f *fake) Do(context.Context) error                    { return nil }
func (f *fake) Note() string                                { return f.note }
func (f *fake) Verify(context.Context) error {
	if f.verify == nil {
		return nil
	}
	return f.verify()
}

// plan has a gate that asks for two things one after another, a hook that failed, an empty phase,
// and then last.
func plan(last error) *engine.Plan {
	asked := 0
	gate := &engine.Gate{
		Wait: engine.Wait{Name: "nodes", About: "Move nodes", Again: true, For: func(context.Context) error {
			if asked++; asked < 4 {
				return engine.NotYet("%d nodes are missing", 4-asked)
			}
			return nil
		}},
		Instructions: func() string { // as long as they are on their own way, there is nothing to do
			if asked < 2 {
				return ""
			}
			return "add nodes"
		},
	}
	waits := 0
	barrier := &fake{id: "barrier/1", verify: func() error {
		if waits++; waits < 2 {
			return engine.NotYet("later")
		}
		return nil
	}}
	group := func(steps ...engine.Step) []engine.Group { return []engine.Group{{Steps: steps}} }
	return &engine.Plan{Name: "shop", Phases: []engine.Phase{
		{Name: "move", Title: "Move <all> & sundry", Groups: group(&fake{id: "hook/a", note: "called in vain"}, barrier)},
		{Name: "nothing", Title: "Nothing to do"},
		{Name: "kubelet-gate", Title: "Wait for kubelets", Groups: group(gate)},
		{Name: "end", Title: "End", Groups: group(&fake{id: "last", verify: func() error { return last }})},
	}}
}

// board keeps what was posted to it.
type board struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
}

func newBoard(t *testing.T, h http.HandlerFunc) *board {
	t.Helper()
	b := &board{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		b.bodies = append(b.bodies, string(body))
		b.mu.Unlock()
		if h != nil {
			h(w, r)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *board) to(policy v1alpha1.FailurePolicy, format v1alpha1.NotifyFormat) v1alpha1.Notifier {
	return v1alpha1.Notifier{HTTPAction: v1alpha1.HTTPAction{URL: b.URL + "/" + secret}, OnFailure: policy, Format: format}
}

func TestNotifierPostsWhatIsWorthTelling(t *testing.T) {
	asJSON, slack := newBoard(t, nil), newBoard(t, nil)
	t.Setenv("NOTIFY_URL", slack.URL)
	n := New([]v1alpha1.Notifier{
		asJSON.to("", v1alpha1.NotifyJSON),
		{HTTPAction: v1alpha1.HTTPAction{URLFromEnv: "NOTIFY_URL"}, Format: v1alpha1.NotifySlack},
	}, nil)
	n.About(engine.Identity{UID: "u", Server: "s:1", Context: "c"})
	begin := time.Unix(0, 0)
	r := &engine.Runner{Sink: n.Event, Now: func() time.Time { return begin }}
	if err := r.Run(t.Context(), plan(errors.New("broken"))); err == nil {
		t.Fatal("the plan did not fail")
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, body := range asJSON.bodies {
		var e engine.Event
		if err := json.Unmarshal([]byte(body), &e); err != nil || e.Plan != "shop" ||
			!strings.Contains(body, `"cluster":{"uid":"u","server":"s:1","context":"c"}`) {
			t.Errorf("%s: %v", body, err)
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Phase, " ", e.Step)))
	}
	want := []string{
		"RunStarted", "PhaseStarted move", "StepDone move hook/a", "PhaseDone move", "PhaseStarted kubelet-gate",
		"StepWaiting kubelet-gate nodes", "PhaseDone kubelet-gate", "PhaseStarted end", "StepFailed end last", "RunFailed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	texts := []string{
		`{"text":"replumb shop on c (s:1): the run has begun"}`,
		`{"text":"replumb shop on c (s:1): phase move has begun: Move &lt;all&gt; &amp; sundry"}`,
		`{"text":"replumb shop on c (s:1): in phase move: Do hook/a: called in vain"}`,
		`{"text":"replumb shop on c (s:1): phase move is done: Move &lt;all&gt; &amp; sundry (0s)"}`,
		`{"text":"replumb shop on c (s:1): phase kubelet-gate has begun: Wait for kubelets"}`,
		`{"text":"replumb shop on c (s:1): waits in phase kubelet-gate: Move nodes: 2 nodes are missing"}`,
		`{"text":"replumb shop on c (s:1): phase kubelet-gate is done: Wait for kubelets (0s)"}`,
		`{"text":"replumb shop on c (s:1): phase end has begun: End"}`,
		`{"text":"replumb shop on c (s:1): failed in phase end: Do last: broken"}`,
		`{"text":"replumb shop on c (s:1): the run failed after 0s: step last: broken"}`,
	}
	for i, body := range slack.bodies { // json.Marshal writes <, > and & by their numbers
		var want map[string]string
		if err := json.Unmarshal([]byte(texts[min(i, len(texts)-1)]), &want); err != nil {
			t.Fatal(err)
		}
		var is map[string]string
		if err := json.Unmarshal([]byte(body), &is); err != nil || is["text"] != want["text"] || len(is) != 1 {
			t.Errorf("got %s\nwant %s", body, texts[i])
		}
	}
	if len(slack.bodies) != len(texts) {
		t.Errorf("%d notifications", len(slack.bodies))
	}
}

func TestNotifierNeverHoldsUpARun(t *testing.T) {
	hold := make(chan struct{})
	b := newBoard(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	})
	n := New([]v1alpha1.Notifier{b.to("", "")}, func(err error) { t.Errorf("stopped: %v", err) })
	if err := (&engine.Runner{Sink: n.Event}).Run(t.Context(), plan(nil)); err != nil {
		t.Fatal(err)
	}
	for range 2 * capacity {
		n.Event(engine.Event{Kind: engine.RunStarted})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := n.Close(ctx)
	close(hold)
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Events < 2*capacity || failed.Target != b.URL || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
	n.Event(engine.Event{Kind: engine.RunStarted}) // too late, but no reason to panic
}

func TestNotifierStopsTheRunIfAskedTo(t *testing.T) {
	for _, tt := range []struct {
		policy v1alpha1.FailurePolicy
		stops  bool
	}{{"", false}, {v1alpha1.FailureContinue, false}, {v1alpha1.FailureStop, true}} {
		b := newBoard(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.URL.Path, http.StatusForbidden) })
		ctx, cancel := context.WithCancelCause(t.Context())
		n := New([]v1alpha1.Notifier{b.to(tt.policy, "")}, cancel)
		step := &fake{id: "a", verify: func() error {
			if tt.stops && ctx.Err() == nil {
				return engine.NotYet("waiting to be stopped")
			}
			return nil
		}}
		next := &fake{id: "b"}
		p := &engine.Plan{
			Name:   "shop",
			Phases: []engine.Phase{{Name: "a", Groups: []engine.Group{{Steps: []engine.Step{step}}, {Steps: []engine.Step{next}}}}},
		}
		err := (&engine.Runner{Sink: n.Event}).Run(ctx, p)
		if errors.Is(err, engine.ErrInterrupted) != tt.stops || (err != nil) != tt.stops {
			t.Errorf("%s: the run ended with %v", tt.policy, err)
		}
		var failed *FailedError
		if errors.As(context.Cause(ctx), &failed) != tt.stops {
			t.Errorf("%s: stopped because of %v", tt.policy, context.Cause(ctx))
		}
		if err := n.Close(
			t.Context(),
		); !errors.As(err, &failed) || failed.Events != len(b.bodies) ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("%s: closed with %v after %d calls", tt.policy, err, len(b.bodies))
		}
	}
}

func TestNotifierKeepsToItsTimeout(t *testing.T) {
	b := newBoard(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	spec := b.to("", "")
	spec.Timeout = &metav1.Duration{Duration: 20 * time.Millisecond}
	n := New([]v1alpha1.Notifier{spec}, nil)
	n.Event(engine.Event{Kind: engine.RunStarted})
	if err := n.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Errorf("got %v", err)
	}
}

func TestAnInterruptedStepIsNoNews(t *testing.T) {
	var n news
	if n.is(engine.Event{Kind: engine.StepFailed, Interrupted: true, Error: "interrupted: the lock was lost"}) {
		t.Error("it is")
	}
	if !n.is(engine.Event{Kind: engine.StepFailed, Error: "broken"}) {
		t.Error("and a broken one is not")
	}
}
