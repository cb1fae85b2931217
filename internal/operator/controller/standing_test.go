package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestKstatus holds what Flux and Argo CD show to where a Migration stands.
func TestKstatus(t *testing.T) {
	note := func(d Decision) func(*v1alpha1.Migration) {
		return func(m *v1alpha1.Migration) {
			d.Note(&m.Status)
			m.Status.ObservedGeneration = m.Generation
		}
	}
	verdict := func(err error, failures int) func(*v1alpha1.Migration) {
		v := judge(err, failures)
		return note(Decision{Act: Rest, Standing: v.Standing, Reason: v.Reason, Message: v.Message})
	}
	blocked := &findings.BlockedError{Findings: findings.Findings{{Code: "RP1001", Message: "no", Fix: "do"}}}
	scene := func(m *v1alpha1.Migration) Scene {
		return Scene{Migration: m, Kinds: migrations.All(), Revisions: Revisions{8, 8}, Now: time.Unix(1, 0)}
	}
	decided := func(m *v1alpha1.Migration, change ...func(*Scene)) *v1alpha1.Migration {
		s := scene(m)
		for _, c := range change {
			c(&s)
		}
		note(Decide(s))(m)
		return m
	}
	shown := map[string]any{}
	for name, tt := range map[string]struct {
		m    *v1alpha1.Migration
		want status.Status
	}{
		"not seen yet":          {wish("m", v1alpha1.DesiredApplied, func(m *v1alpha1.Migration) { m.Status.ObservedGeneration = 1 }), status.InProgressStatus},
		"planning":              {decided(wish("m", v1alpha1.DesiredPlanned)), status.InProgressStatus},
		"planned":               {decided(wish("m", v1alpha1.DesiredPlanned), func(s *Scene) { s.Planned = Planned{"abc", 3} }), status.CurrentStatus},
		"applying":              {decided(wish("m", v1alpha1.DesiredApplied)), status.InProgressStatus},
		"moved":                 {decided(wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseMoved), says(migration.AsDesired, v1alpha1.ReasonAsDesired))), status.CurrentStatus},
		"rolled back":           {decided(wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseRolledBack), says(migration.AsDesired, v1alpha1.ReasonAsDesired))), status.CurrentStatus},
		"finished":              {decided(wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseFinished), returned)), status.CurrentStatus},
		"waits for an approval": {decided(wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved))), status.InProgressStatus},
		"paused":                {decided(wish("m", v1alpha1.DesiredApplied, pausing)), status.InProgressStatus},
		"second": {decided(wish("m", v1alpha1.DesiredApplied), func(s *Scene) {
			s.Others = []v1alpha1.Migration{*wish("a", v1alpha1.DesiredApplied, created(1))}
		}), status.InProgressStatus},
		"version":           {decided(wish("m", v1alpha1.DesiredApplied), func(s *Scene) { s.Revisions.Cluster = 9 }), status.FailedStatus},
		"calls":             {decided(wish("m", v1alpha1.DesiredApplied, calling)), status.FailedStatus},
		"not possible":      {decided(wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseFinished), returned)), status.FailedStatus},
		"blocked":           {wish("m", v1alpha1.DesiredApplied, verdict(blocked, 1)), status.FailedStatus},
		"invalid":           {wish("m", v1alpha1.DesiredApplied, verdict(&spec.Error{Field: "spec"}, 1)), status.FailedStatus},
		"lost":              {wish("m", v1alpha1.DesiredApplied, verdict(&lossguard.LossError{}, 1)), status.FailedStatus},
		"locked":            {wish("m", v1alpha1.DesiredApplied, verdict(&lease.HeldError{}, 9)), status.InProgressStatus},
		"failed once":       {wish("m", v1alpha1.DesiredApplied, verdict(errors.New("x"), 1)), status.InProgressStatus},
		"failed and failed": {wish("m", v1alpha1.DesiredApplied, verdict(errors.New("x"), 3)), status.FailedStatus},
		"recovered": {
			decided(wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseMoved), verdict(blocked, 1), says(migration.AsDesired, v1alpha1.ReasonAsDesired))), status.CurrentStatus,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tt.m.Status.Conditions {
				tt.m.Status.Conditions[i].LastTransitionTime = metav1.Time{} // the same in every run
			}
			body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(tt.m)
			if err != nil {
				t.Fatal(err)
			}
			got, err := status.Compute(&unstructured.Unstructured{Object: body})
			if err != nil || got.Status != tt.want {
				t.Errorf("%v, %v; conditions %+v", got, err, tt.m.Status.Conditions)
			}
			c := tt.m.Status.Conditions
			health := map[status.Status]string{
				status.CurrentStatus: "Healthy", status.FailedStatus: "Degraded", status.InProgressStatus: "Progressing",
			}[tt.want]
			if meta.IsStatusConditionTrue(c, v1alpha1.ConditionPaused) || meta.IsStatusConditionTrue(c, v1alpha1.ConditionGateWaiting) {
				health = "Suspended"
			}
			shown[name] = map[string]any{"health": health, "migration": body}
			if meta.IsStatusConditionTrue(c, v1alpha1.ConditionReconciling) && meta.IsStatusConditionTrue(c, v1alpha1.ConditionStalled) {
				t.Errorf("both: %+v", c)
			}
		})
	}
	all, err := json.MarshalIndent(shown, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, "testdata/health.json", append(all, '\n')) // test/argocd holds the script of Argo CD to it
}

func TestConditions(t *testing.T) {
	m := wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), pausing)
	Decide(Scene{Migration: m, Kinds: migrations.All(), Revisions: Revisions{8, 8}}).Note(&m.Status)
	if !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPaused) {
		t.Errorf("not paused: %+v", m.Status.Conditions)
	}
	m.Spec.Paused = false
	Decide(Scene{Migration: m, Kinds: migrations.All(), Revisions: Revisions{8, 8}}).Note(&m.Status)
	gate := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionGateWaiting)
	if meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPaused) || gate == nil ||
		gate.Reason != v1alpha1.ReasonApprovalNeeded {
		t.Errorf("%+v", m.Status.Conditions)
	}
	migration.Approve(m, migration.FinishWord(m))
	Decide(Scene{Migration: m, Kinds: migrations.All(), Revisions: Revisions{8, 8}}).Note(&m.Status)
	if meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionGateWaiting) {
		t.Errorf("%+v", m.Status.Conditions)
	}
}

// TestBackoff: pauses grow, and have an end.
func TestBackoff(t *testing.T) {
	var was time.Duration
	for n := 1; n < 50; n++ {
		now := judge(errors.New("x"), n).After
		if now < was || now < firstPause || now > longestPause {
			t.Errorf("%d: %s after %s", n, now, was)
		}
		was = now
	}
	if was != longestPause {
		t.Errorf("ends at %s", was)
	}
}

// TestNotMeasured: agents that cannot measure are tried again, and named as that when it goes on;
// late answers are not, nor is a loss or a node that returned.
func TestNotMeasured(t *testing.T) {
	busy := &lossguard.NotMeasuredError{Agents: []string{"node a"}}
	for name, tt := range map[string]struct {
		err      error
		failures int
		standing migration.Condition
		reason   string
	}{
		"not measured":       {busy, 1, migration.UnderWay, v1alpha1.ReasonRetrying},
		"not measured still": {busy, patience, migration.Stalled, v1alpha1.ReasonNotMeasured},
		"late":               {&lossguard.LossError{Late: 3}, 1, migration.Stalled, v1alpha1.ReasonLateBudgetExceeded},
		"lost":               {&lossguard.LossError{Failed: 3}, 1, migration.Stalled, v1alpha1.ReasonLossBudgetExceeded},
		"a node returned":    {&noderanges.ReturnedError{Err: errors.New("no agent")}, 1, migration.Stalled, v1alpha1.ReasonNodeReturned},
	} {
		if got := judge(
			tt.err,
			tt.failures,
		); got.Standing != tt.standing || got.Reason != tt.reason ||
			!strings.Contains(got.Message, "hint: ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestEnded: that a run was asked to end says nothing of the Migration; that it lost requests does,
// though that ends it in the same way.
func TestEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"asked":     {fmt.Errorf("%w: %w", engine.ErrInterrupted, engine.ErrSuperseded), true},
		"paused":    {engine.ErrPaused, true},
		"lock lost": {&lease.LostError{Why: errors.New("taken")}, true},
		"loss":      {fmt.Errorf("%w: %w", engine.ErrInterrupted, &lossguard.LossError{}), false},
		"not measured": {
			fmt.Errorf("%w: %w", engine.ErrInterrupted, &lossguard.NotMeasuredError{Agents: []string{"node a"}}), false,
		},
		"any failure": {errors.New("x"), false},
	} {
		if got := Ended(tt.err); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestFindingsAreDescribed: a condition has codes, and what to do.
func TestFindingsAreDescribed(t *testing.T) {
	all := findings.Findings{{Code: "RP1001", Message: "it is not so", Fix: "make it so"}, {Code: "RP1002", Claim: "it is so"}}
	want := "RP1001: it is not so\nfix: make it so\nRP1002: it is so"
	if got := judge(&findings.BlockedError{Findings: all}, 1); got.Message != want || got.Reason != v1alpha1.ReasonBlocked {
		t.Errorf("got %+v", got)
	}
}
