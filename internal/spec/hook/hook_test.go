package hook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/safety/lease"
)

func occasion() Occasion {
	return Occasion{
		Migration: "shop", Run: Apply, Moment: v1alpha1.BeforeBatch, Phase: "move", Tier: "web", Batch: 3,
		Services: []string{"shop/cart", "shop/pay"}, Cluster: engine.Identity{UID: "u", Server: "s:1", Context: "c"},
	}
}

// program writes a hook that keeps what it was told, in a file beside it.
func program(t *testing.T, script string) v1alpha1.Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncat >> $0.in; echo >> $0.in\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return v1alpha1.Hook{
		Name: "slack", When: v1alpha1.BeforeBatch, Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{path}}},
	}
}

func told(t *testing.T, h v1alpha1.Hook) []string {
	t.Helper()
	text, err := os.ReadFile(h.Exec.Command[0] + ".in")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// run runs the hook as a plan and returns its last event of a step.
func run(t *testing.T, s engine.Step) (engine.Event, error) {
	t.Helper()
	var last engine.Event
	r := &engine.Runner{Sink: func(e engine.Event) {
		if e.Step != "" {
			last = e
		}
	}}
	plan := &engine.Plan{Name: "shop", Phases: []engine.Phase{{Name: "move", Groups: []engine.Group{{Steps: []engine.Step{s}}}}}}
	err := r.Run(t.Context(), plan)
	return last, err
}

func TestStepTellsTheHook(t *testing.T) {
	h := program(t, "echo 'anything at all'")
	if _, err := run(t, New(h, occasion())); err != nil {
		t.Fatal(err)
	}
	if _, err := run(
		t,
		New(h, Occasion{Migration: "shop", Cluster: occasion().Cluster, Run: Finish, Moment: v1alpha1.AfterPhase, Phase: "retire"}),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"apiVersion":"replumb.dev/v1alpha1","kind":"HookRequest","hook":"slack","migration":"shop","cluster":{"uid":"u","server":"s:1","context":"c"},"run":"apply",` +
			`"moment":"BeforeBatch","phase":"move","tier":"web","batch":3,"services":["shop/cart","shop/pay"]}`,
		`{"apiVersion":"replumb.dev/v1alpha1","kind":"HookRequest","hook":"slack","migration":"shop","cluster":{"uid":"u","server":"s:1","context":"c"},"run":"finish",` +
			`"moment":"AfterPhase","phase":"retire","services":[]}`,
	}
	if env := (Request{Migration: "shop", Cluster: occasion().Cluster, Run: Apply}).Environ(); !slices.Equal(env, []string{
		"REPLUMB_CLUSTER_UID=u", "REPLUMB_SERVER=s:1", "REPLUMB_CONTEXT=c", "REPLUMB_MIGRATION=shop", "REPLUMB_RUN=apply",
	}) {
		t.Errorf("environment %q", env)
	}
	if got := told(t, h); !slices.Equal(got, want) {
		t.Errorf("told %s\nwant %s", got, want)
	}
}

func TestStepStopsOrGoesOn(t *testing.T) {
	for _, tt := range []struct {
		policy v1alpha1.FailurePolicy
		kind   engine.EventKind
		text   string
	}{
		{"", engine.StepFailed, "hook slack: calling "},
		{v1alpha1.FailureStop, engine.StepFailed, "hook slack: calling "},
		{v1alpha1.FailureContinue, engine.StepDone, "the hook failed, and the run goes on: calling "},
	} {
		h := program(t, "echo no >&2; exit 3")
		h.OnFailure = tt.policy
		e, err := run(t, New(h, occasion()))
		if e.Kind != tt.kind || !strings.HasPrefix(e.Error+e.Note, tt.text) ||
			!strings.Contains(e.Error+e.Note, "exit status 3; its output is on") {
			t.Errorf("%q: event %+v", tt.policy, e)
		}
		if said := e.Private + fault.Private(err); said != "no" {
			t.Errorf("%q: said %q", tt.policy, said)
		}
		var failed *FailedError
		if errors.As(err, &failed) != (tt.kind == engine.StepFailed) {
			t.Errorf("%q: got %v", tt.policy, err)
		}
		if calls := told(t, h); len(calls) != 1 {
			t.Errorf("%q: called %d times", tt.policy, len(calls))
		}
	}
}

// TestStepCallsOnce: these are errors that the runner would try again by itself.
func TestStepCallsOnce(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls++
		if err := json.NewDecoder(r.Body).Decode(&Request{}); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	h := v1alpha1.Hook{Name: "late", Action: v1alpha1.Action{
		HTTP: &v1alpha1.HTTPAction{URL: s.URL}, Timeout: &metav1.Duration{Duration: 100 * time.Millisecond},
	}}
	_, err := run(t, New(h, occasion()))
	var failed *FailedError
	var call *callout.Error
	if !errors.As(err, &failed) || !errors.As(failed.Cause, &call) || !call.TimedOut {
		t.Errorf("got %v", err)
	}
	s.Close()
	if calls > 1 { // on a busy machine the time may be up before it is called at all
		t.Errorf("called %d times", calls)
	}
	start := time.Now()
	if _, err := run(t, New(h, occasion())); !errors.As(err, &failed) || time.Since(start) > 10*time.Second {
		t.Errorf("nothing there: got %v after %s", err, time.Since(start))
	}
}

func TestStepsOfAnOccasion(t *testing.T) {
	hooks := []v1alpha1.Hook{
		{Name: "all", When: v1alpha1.BeforeBatch},
		{Name: "web", When: v1alpha1.BeforeBatch, Of: []string{"pay", "web"}},
		{Name: "pay", When: v1alpha1.BeforeBatch, Of: []string{"pay"}},
		{Name: "later", When: v1alpha1.AfterBatch},
		{Name: "phase", When: v1alpha1.AfterPhase, Of: []string{"move"}},
		{Name: "tier", When: v1alpha1.AfterTier},
	}
	for _, tt := range []struct {
		change     func(*Occasion)
		ids, title []string
	}{
		{
			func(*Occasion) {},
			[]string{"hook/all/before-batch/move/web/3", "hook/web/before-batch/move/web/3"},
			[]string{"Call hook all before batch 3 of tier web", "Call hook web before batch 3 of tier web"},
		},
		{
			func(o *Occasion) { o.Moment, o.Tier, o.Batch = v1alpha1.AfterPhase, "", 0 },
			[]string{"hook/phase/after-phase/move"},
			[]string{"Call hook phase after phase move"},
		},
		{
			func(o *Occasion) { o.Moment, o.Batch = v1alpha1.AfterTier, 0 },
			[]string{"hook/tier/after-tier/move/web"},
			[]string{"Call hook tier after tier web"},
		},
		{func(o *Occasion) { o.Moment = v1alpha1.BeforeTier }, nil, nil},
	} {
		o := occasion()
		tt.change(&o)
		var ids, titles []string
		for _, s := range Steps(hooks, o) {
			ids, titles = append(ids, s.ID()), append(titles, s.Title())
		}
		if !slices.Equal(ids, tt.ids) || !slices.Equal(titles, tt.title) {
			t.Errorf("got %v, %v", ids, titles)
		}
	}
}

func TestDeadlineIsBeyondTheTimeout(t *testing.T) {
	h := v1alpha1.Hook{}
	if d := New(h, Occasion{}).Deadline(); d <= callout.DefaultTimeout {
		t.Errorf("got %s", d)
	}
	h.Timeout = &metav1.Duration{Duration: 5 * time.Minute}
	if d := New(h, Occasion{}).Deadline(); d <= 5*time.Minute {
		t.Errorf("got %s", d)
	}
}

// lost is the fence of a run whose lock is another's.
type lost struct{}

func (lost) MayWrite(context.Context, bool) error {
	return &lease.LostError{Why: errors.New("it is another's")}
}

// TestHookBehindAFence: a hook whose failures are passed over passes over no lost lock.
func TestHookBehindAFence(t *testing.T) {
	h := program(t, "true")
	h.OnFailure = v1alpha1.FailureContinue
	if err := New(h, occasion()).Do(engine.Fenced(t.Context(), lost{})); !engine.Revoked(err) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(h.Exec.Command[0] + ".in"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was called: %v", err)
	}
}
