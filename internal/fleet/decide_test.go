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
		action ClusterAction
		state  ClusterState
		want   bool
	}{
		{Apply, ClusterState{}, false},
		{Apply, ClusterState{Phase: v1alpha1.PhaseMoved}, false},
		{Apply, ClusterState{Phase: v1alpha1.PhaseFinished}, true},
		{Apply, ClusterState{Phase: v1alpha1.PhaseRolledBack}, false},
		{Apply, ClusterState{Error: "no answer"}, false},
		{Rollback, ClusterState{}, true},
		{Rollback, ClusterState{Error: "no answer"}, false},
		{Rollback, ClusterState{Phase: v1alpha1.PhaseApplying}, false},
		{Rollback, ClusterState{Phase: v1alpha1.PhaseRolledBack}, true},
		{Finish, ClusterState{Phase: v1alpha1.PhaseFinishing, Final: true}, false},
		{Finish, ClusterState{Phase: v1alpha1.PhaseFinished}, true},
	} {
		if got := tt.action.Spared(tt.state); (got != "") != tt.want {
			t.Errorf("%s, %+v: %q", tt.action, tt.state, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	moved, begun := ClusterState{Cluster: "a", Phase: v1alpha1.PhaseMoved}, ClusterState{Cluster: "b", Phase: v1alpha1.PhaseApplying, Stage: "move"}
	final := ClusterState{Cluster: "c", Phase: v1alpha1.PhaseFinishing, Final: true}
	away, locked := ClusterState{Cluster: "d", Error: "no\nanswer", ExitCode: 1}, ClusterState{Cluster: "e", Error: "held", ExitCode: 5}
	for name, tt := range map[string]struct {
		action ClusterAction
		states []ClusterState
		code   int
		want   string
	}{
		"apply looks later":     {Apply, []ClusterState{away, begun, final}, 0, ""},
		"finish":                {Finish, []ClusterState{moved, final}, 0, ""},
		"finish, too early":     {Finish, []ClusterState{moved, begun, {Cluster: "n"}}, 3, "b is Applying (move), n is not begun"},
		"finish, unknown":       {Finish, []ClusterState{moved, away, locked}, 1, "d is not known (no answer), e is not known (held)"},
		"rollback":              {Rollback, []ClusterState{moved, begun, {}}, 0, ""},
		"rollback, too late":    {Rollback, []ClusterState{moved, final}, 3, "c has passed the point of no return"},
		"rollback, unreachable": {Rollback, []ClusterState{away}, 1, "d is not known"},
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
	ago := func(d time.Duration) ClusterState {
		at := now.Add(-d)
		return ClusterState{SettledAt: &at}
	}
	for name, tt := range map[string]struct {
		states []ClusterState
		want   time.Duration
	}{
		"just now":           {[]ClusterState{ago(0), ago(time.Hour)}, 30 * time.Minute},
		"part of it is over": {[]ClusterState{ago(20 * time.Minute), ago(25 * time.Minute)}, 10 * time.Minute},
		"long ago":           {[]ClusterState{ago(time.Hour)}, 0},
		"not known":          {[]ClusterState{ago(time.Hour), {}}, 30 * time.Minute},
		"a clock ahead":      {[]ClusterState{ago(-time.Hour)}, 30 * time.Minute},
	} {
		if got := soakLeft(30*time.Minute, tt.states, now); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestRead(t *testing.T) {
	s := ClusterState{Cluster: "a"}
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
