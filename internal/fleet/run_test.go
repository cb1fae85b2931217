package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// fake is clusters without one. Those in ends end so; those in held go on until they are
// interrupted.
type fake struct {
	states map[string]ClusterState
	ends   map[string]Outcome
	held   map[string]bool
	// meet is how many have to run at the same time before one goes on.
	meet map[string]*sync.WaitGroup

	mu          sync.Mutex
	begun       []string
	interrupted []string
}

func (f *fake) Status(_ context.Context, t *ClusterTarget) ClusterState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states[t.Name]
}

func (f *fake) Do(ctx context.Context, t *ClusterTarget, _ ClusterAction) Outcome {
	f.mu.Lock()
	f.begun = append(f.begun, t.Name)
	f.mu.Unlock()
	if all := f.meet[t.Name]; all != nil {
		all.Done()
		all.Wait()
	}
	if f.held[t.Name] {
		<-ctx.Done()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.interrupted = append(f.interrupted, t.Name)
		return Outcome{Code: fault.ExitInterrupted, Error: "interrupted"}
	}
	return f.ends[t.Name]
}

// runnerOf waves, each with its clusters, on a clock that only Wait moves.
func runnerOf(f *fake, action ClusterAction, waves ...Wave) (r *WaveRunner, events *[]string, waited *time.Duration) {
	events, waited = new([]string), new(time.Duration)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r = &WaveRunner{
		Fleet: &Fleet{Name: "prod", Spec: Spec{Waves: waves}}, Action: action, Replumb: f,
		Now:     func() time.Time { return now.Add(*waited) },
		OnEvent: func(e Event) { *events = append(*events, strings.TrimSpace(e.Kind+" "+e.Wave+" "+e.Cluster)) },
		Wait: func(ctx context.Context, d time.Duration) error {
			*waited += d
			return ctx.Err()
		},
	}
	for _, w := range waves {
		for _, name := range w.Clusters {
			r.Targets = append(r.Targets, &ClusterTarget{Cluster: Cluster{Name: name}, Wave: w.Name})
		}
	}
	return r, events, waited
}

func wave(name string, parallel int, clusters ...string) Wave {
	return Wave{Name: name, Parallel: parallel, Clusters: clusters}
}

func TestWavesRunInOrder(t *testing.T) {
	for action, want := range map[ClusterAction][]string{
		Apply: {"a", "b", "c"}, Finish: {"a", "b", "c"}, Rollback: {"c", "a", "b"},
	} {
		moved := ClusterState{Phase: v1alpha1.PhaseMoved}
		f := &fake{states: map[string]ClusterState{"a": moved, "b": moved, "c": moved}}
		r, _, _ := runnerOf(f, action, wave("one", 1, "a", "b"), wave("two", 1, "c"))
		if err := r.Run(t.Context()); err != nil || !slices.Equal(f.begun, want) {
			t.Errorf("%s: %v, %v", action, f.begun, err)
		}
	}
}

// TestFirstLossHaltsTheFleet: what runs beside it is interrupted, and nothing further begins. The
// control: without the loss, all run.
func TestFirstLossHaltsTheFleet(t *testing.T) {
	for _, lost := range []bool{true, false} {
		both := &sync.WaitGroup{}
		both.Add(2)
		f := &fake{meet: map[string]*sync.WaitGroup{"a": both, "b": both}}
		if lost {
			f.ends, f.held = map[string]Outcome{"a": {Code: fault.ExitBudget, Error: "lost 3 requests"}}, map[string]bool{"b": true}
		}
		r, events, _ := runnerOf(f, Apply, wave("one", 2, "a", "b", "c"), wave("two", 1, "d"))
		err := r.Run(t.Context())
		slices.Sort(f.begun)
		if !lost {
			if err != nil || !slices.Equal(f.begun, []string{"a", "b", "c", "d"}) {
				t.Errorf("control: %v, %v", f.begun, err)
			}
			continue
		}
		var halted *HaltedError
		if code, _ := fault.ExitCode(err); !errors.As(err, &halted) || code != fault.ExitBudget {
			t.Fatalf("got %v", err)
		}
		if !slices.Equal(f.begun, []string{"a", "b"}) || !slices.Equal(f.interrupted, []string{"b"}) ||
			!slices.Equal(halted.Left, []string{"c", "d"}) {
			t.Errorf("begun %v, interrupted %v, left %v", f.begun, f.interrupted, halted.Left)
		}
		if slices.Contains(*events, "WaveDone one") || !slices.Contains(*events, "ClusterFailed one a") {
			t.Errorf("%v", *events)
		}
	}
}

// TestNoMoreThanSoManyAtATime: a wave of one at a time never runs two.
func TestNoMoreThanSoManyAtATime(t *testing.T) {
	f := &fake{ends: map[string]Outcome{"b": {Code: fault.ExitError}}}
	r, events, _ := runnerOf(f, Apply, wave("one", 1, "a", "b", "c"))
	if err := r.Run(t.Context()); err == nil || !slices.Equal(f.begun, []string{"a", "b"}) {
		t.Errorf("%v, %v", f.begun, err)
	}
	want := []string{"WaveStarted one", "ClusterStarted one a", "ClusterDone one a", "ClusterStarted one b", "ClusterFailed one b"}
	if !slices.Equal(*events, want) {
		t.Errorf("%v", *events)
	}
}

func TestFinishedClustersAreSpared(t *testing.T) {
	f := &fake{states: map[string]ClusterState{"a": {Phase: v1alpha1.PhaseFinished}, "b": {Error: "no answer", ExitCode: 1}}}
	r, events, _ := runnerOf(f, Apply, wave("one", 1, "a", "b"))
	if err := r.Run(t.Context()); err != nil || !slices.Equal(f.begun, []string{"b"}) || !slices.Contains(*events, "ClusterSpared one a") {
		t.Errorf("%v, %v, %v", f.begun, *events, err)
	}
}

// TestInterrupted: Ctrl-C interrupts what runs, once, and nothing begins after it.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	both := &sync.WaitGroup{}
	both.Add(3)
	f := &fake{held: map[string]bool{"a": true, "b": true}, meet: map[string]*sync.WaitGroup{"a": both, "b": both}}
	go func() {
		both.Done()
		both.Wait()
		cancel()
	}()
	r, _, _ := runnerOf(f, Apply, wave("one", 2, "a", "b"), wave("two", 1, "c"))
	err := r.Run(ctx)
	if !errors.Is(err, engine.ErrInterrupted) || len(f.begun) != 2 || len(f.interrupted) != 2 {
		t.Errorf("%v; begun %v, interrupted %v", err, f.begun, f.interrupted)
	}
	if err := r.Run(ctx); !errors.Is(err, engine.ErrInterrupted) || len(f.begun) != 2 {
		t.Errorf("again: %v; %v", err, f.begun)
	}
}

// TestLossOutweighsCtrlC: who interrupts a fleet that has just lost requests hears of the loss.
func TestLossOutweighsCtrlC(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{ends: map[string]Outcome{"a": {Code: fault.ExitBudget}}}
	r, _, _ := runnerOf(f, Apply, wave("one", 1, "a"))
	tell := r.OnEvent
	r.OnEvent = func(e Event) {
		if tell(e); e.Kind == ClusterFailed {
			cancel()
		}
	}
	if code, _ := fault.ExitCode(r.Run(ctx)); code != fault.ExitBudget {
		t.Errorf("exit code %d", code)
	}
}

// TestSoak: what is left of it is waited for, by what the clusters say, so that one that was
// interrupted is not begun again, nor left out.
func TestSoak(t *testing.T) {
	at := time.Date(2026, 3, 1, 11, 50, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		state ClusterState
		want  time.Duration
	}{
		"in the midst of it": {ClusterState{Phase: v1alpha1.PhaseMoved, SettledAt: &at}, 20 * time.Minute},
		"at its beginning":   {ClusterState{}, 30 * time.Minute},
	} {
		f := &fake{states: map[string]ClusterState{"a": tt.state}}
		w := wave("one", 1, "a")
		w.soak = 30 * time.Minute
		r, events, waited := runnerOf(f, Apply, w, wave("two", 1, "b"))
		if err := r.Run(t.Context()); err != nil || *waited != tt.want || !slices.Contains(*events, "Soaking one") {
			t.Errorf("%s: waited %s, %v, %v", name, *waited, *events, err)
		}
	}
	w := wave("one", 1, "a")
	w.soak = 30 * time.Minute
	f := &fake{states: map[string]ClusterState{"a": {Phase: v1alpha1.PhaseMoved}}}
	r, _, waited := runnerOf(f, Rollback, w)
	if err := r.Run(t.Context()); err != nil || *waited != 0 {
		t.Errorf("rollback waited %s, %v", *waited, err)
	}
}

// TestHealthHaltsTheFleet: it is asked after each wave, with where the clusters stand. The control:
// while it is well, all run.
func TestHealthHaltsTheFleet(t *testing.T) {
	for _, well := range []bool{false, true} {
		f := &fake{states: map[string]ClusterState{"a": {Cluster: "a", Requests: 120}}}
		r, _, _ := runnerOf(f, Apply, wave("one", 1, "a"), wave("two", 1, "b"))
		var asked []HealthRequest
		r.Health = func(_ context.Context, of HealthRequest) error {
			if asked = append(asked, of); well {
				return nil
			}
			return errors.New("503")
		}
		err := r.Run(t.Context())
		if asked[0].Wave != "one" || asked[0].Clusters[0].Requests != 120 || asked[0].Kind != "FleetHealthRequest" {
			t.Errorf("%+v", asked[0])
		}
		if well != (err == nil) || well != slices.Contains(f.begun, "b") || well != (len(asked) == 2) {
			t.Errorf("well %t: %v, begun %v, asked %d times", well, err, f.begun, len(asked))
		}
	}
}
