package fleet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

func TestWorse(t *testing.T) {
	order := []int{0, 130, 2, 5, 3, 1, 6, 4}
	for i, a := range order {
		for j, b := range order {
			if got, want := Worse(a, b), order[max(i, j)]; got != want {
				t.Errorf("of %d and %d: %d, want %d", a, b, got, want)
			}
		}
	}
	for _, killed := range []int{-1, 137} {
		if Worse(killed, 3) != fault.ExitError || Worse(4, killed) != fault.ExitBudget || Worse(0, killed) != fault.ExitError {
			t.Errorf("%d is no error", killed)
		}
	}
}

func TestSpared(t *testing.T) {
	for _, tt := range []struct {
		action Action
		state  State
		want   bool
	}{
		{Apply, State{}, false},
		{Apply, State{Phase: v1alpha1.PhaseMoved}, false},
		{Apply, State{Phase: v1alpha1.PhaseFinished}, true},
		{Apply, State{Phase: v1alpha1.PhaseRolledBack}, false},
		{Apply, State{Error: "no answer"}, false},
		{Rollback, State{}, true},
		{Rollback, State{Error: "no answer"}, false},
		{Rollback, State{Phase: v1alpha1.PhaseApplying}, false},
		{Rollback, State{Phase: v1alpha1.PhaseRolledBack}, true},
		{Finish, State{Phase: v1alpha1.PhaseFinishing, Final: true}, false},
		{Finish, State{Phase: v1alpha1.PhaseFinished}, true},
	} {
		if got := tt.action.Spared(tt.state); (got != "") != tt.want {
			t.Errorf("%s, %+v: %q", tt.action, tt.state, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	moved, begun := State{Cluster: "a", Phase: v1alpha1.PhaseMoved}, State{Cluster: "b", Phase: v1alpha1.PhaseApplying, Stage: "move"}
	final := State{Cluster: "c", Phase: v1alpha1.PhaseFinishing, Final: true}
	away, locked := State{Cluster: "d", Error: "no\nanswer", ExitCode: 1}, State{Cluster: "e", Error: "held", ExitCode: 5}
	for name, tt := range map[string]struct {
		action Action
		states []State
		code   int
		want   string
	}{
		"apply looks later":     {Apply, []State{away, begun, final}, 0, ""},
		"finish":                {Finish, []State{moved, final}, 0, ""},
		"finish, too early":     {Finish, []State{moved, begun, {Cluster: "n"}}, 3, "b is Applying (move), n is not begun"},
		"finish, unknown":       {Finish, []State{moved, away, locked}, 1, "d is not known (no answer), e is not known (held)"},
		"rollback":              {Rollback, []State{moved, begun, {}}, 0, ""},
		"rollback, too late":    {Rollback, []State{moved, final}, 3, "c has passed the point of no return"},
		"rollback, unreachable": {Rollback, []State{away}, 1, "d is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.action.Refusal(tt.states)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if code, _ := fault.ExitCode(
				err,
			); err == nil || code != tt.code || !strings.Contains(err.Error(), tt.want) ||
				fault.Advice(err) == "" {
				t.Errorf("got %v with exit code %d", err, code)
			}
		})
	}
}

func TestSoakLeft(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) State {
		at := now.Add(-d)
		return State{SettledAt: &at}
	}
	for name, tt := range map[string]struct {
		states []State
		want   time.Duration
	}{
		"just now":           {[]State{ago(0), ago(time.Hour)}, 30 * time.Minute},
		"part of it is over": {[]State{ago(20 * time.Minute), ago(25 * time.Minute)}, 10 * time.Minute},
		"long ago":           {[]State{ago(time.Hour)}, 0},
		"not known":          {[]State{ago(time.Hour), {}}, 30 * time.Minute},
		"a clock ahead":      {[]State{ago(-time.Hour)}, 30 * time.Minute},
	} {
		if got := SoakLeft(30*time.Minute, tt.states, now); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestRead(t *testing.T) {
	s := State{Cluster: "a"}
	if err := s.Read([]byte("\n")); err != nil || s.Phase != "" || s.PhaseText() != "not begun" {
		t.Errorf("nothing: %+v, %v", s, err)
	}
	err := s.Read([]byte(`{"kind":"MigrationStatus","phase":"Applying","stage":"move","paused":true,"lastError":"no",
		"counts":{"total":9,"moved":4},
		"proof":{"sent":120,"failed":1},"gates":[{"title":"restart"}],"settledAt":"2026-03-01T12:00:00Z","services":[{}]}`))
	if err != nil || s.Moved != 4 || s.Total != 9 || s.Requests != 120 || s.Failed != 1 || s.Gates[0] != "restart" || s.SettledAt == nil ||
		s.PhaseText() != "Applying (move), paused" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := s.Read([]byte("[")); err == nil {
		t.Error("garbage is read")
	}
}

func TestHaltedErrorSaysAll(t *testing.T) {
	e := &HaltedError{
		Fleet: "prod", Wave: "eu", Action: Apply, Left: []string{"us-1", "us-2"},
		Ended: []Result{{"eu-1", Outcome{Code: 4, Error: "lost 3 requests"}}, {"eu-2", Outcome{Code: 130, Error: "interrupted"}}},
	}
	const want = "fleet prod halted in wave eu; eu-1 ended with exit code 4: lost 3 requests; eu-2 ended with exit code 130: interrupted; " +
		"2 clusters did not begin: us-1, us-2"
	if e.Error() != want || e.ExitCode() != fault.ExitBudget {
		t.Errorf("%d: %s", e.ExitCode(), e)
	}
	sick := &HaltedError{Fleet: "prod", Wave: "eu", Action: Apply, Health: errors.New("503")}
	if sick.ExitCode() != fault.ExitError || !strings.HasSuffix(sick.Error(), "it is not healthy: 503") || sick.Advice() == "" {
		t.Errorf("%d: %s", sick.ExitCode(), sick)
	}
}
