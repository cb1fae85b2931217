package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/operator/controller"
)

const (
	followPause = time.Second
	// staleFor is for how long a condition from before the operator was asked is passed over.
	staleFor = 20 * time.Second
)

type follower struct {
	*command.App
	format command.Format
	c      *command.Connection
	asked  *v1alpha1.Migration
	since  time.Time
	// files are those of the command, as typed.
	files string

	shown statusChange
	alone bool
}

type statusChange struct {
	Time      time.Time       `json:"time"`
	Migration string          `json:"migration"`
	Phase     v1alpha1.Phase  `json:"phase,omitempty"`
	Stage     string          `json:"stage,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Message   string          `json:"message,omitempty"`
	Gate      string          `json:"gate,omitempty"`
	Counts    v1alpha1.Counts `json:"counts"`
}

func (f *follower) follow(ctx context.Context) error {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for {
		m, err := migration.Get(ctx, f.c.Cluster, f.asked.Name)
		switch {
		case ctx.Err() != nil:
		case err != nil && !engine.Retryable(err):
			return err
		case err != nil:
		case m == nil || m.UID != f.asked.UID:
			return &fault.Hinted{
				Err:  fmt.Errorf("migration %s was deleted by someone else", f.asked.Name),
				Hint: "what had moved stays where it is; " + f.Name + " apply " + f.files + " takes it up again",
			}
		default:
			f.show(m)
			if done, err := f.evaluate(m); done || err != nil {
				return err
			}
			f.warnWithoutOperator(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &command.Failure{
				Problem: "no longer following migration " + f.asked.Name + "; the operator goes on with it",
				Hint:    fmt.Sprintf("%[1]s status %[2]s --watch follows it again, %[1]s pause %[2]s stops it", f.Name, f.asked.Name),
				Code:    fault.ExitInterrupted,
			}
		}
	}
}

func (f *follower) evaluate(m *v1alpha1.Migration) (done bool, err error) {
	if m.Status.ObservedGeneration < f.asked.Generation {
		return false, nil
	}
	if m.Spec.Desired != f.asked.Spec.Desired {
		return false, &fault.Hinted{
			Err:  fmt.Errorf("migration %s was given another end meanwhile: spec.desired is %s", m.Name, m.Spec.Desired),
			Hint: f.Name + " status " + m.Name,
		}
	}
	if m.Spec.Paused {
		return false, &fault.Hinted{
			Err: fmt.Errorf("migration %s is %w", m.Name, engine.ErrPaused), Hint: f.Name + " resume " + m.Name + " carries on",
		}
	}
	ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration >= f.asked.Generation && there(m) {
		return true, nil
	}
	stalled := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionStalled)
	if stalled == nil || stalled.Status != metav1.ConditionTrue || f.stale(stalled) {
		return false, nil
	}
	return false, &StalledError{Name: m.Name, Reason: stalled.Reason, Message: printable.Text(stalled.Message)}
}

func (f *follower) stale(c *metav1.Condition) bool {
	was := meta.FindStatusCondition(f.asked.Status.Conditions, c.Type)
	return was != nil && was.Status == c.Status && was.LastTransitionTime.Equal(&c.LastTransitionTime) && time.Since(f.since) < staleFor
}

func there(m *v1alpha1.Migration) bool {
	switch m.Spec.Desired {
	case v1alpha1.DesiredApplied:
		return m.Status.Phase == v1alpha1.PhaseMoved
	case v1alpha1.DesiredRolledBack:
		return m.Status.Phase == v1alpha1.PhaseRolledBack || m.Status.Phase == ""
	case v1alpha1.DesiredFinished:
		return m.Status.Phase == v1alpha1.PhaseFinished
	}
	return true
}

func (f *follower) show(m *v1alpha1.Migration) {
	now := statusChange{Migration: m.Name, Phase: m.Status.Phase, Stage: m.Status.Stage, Counts: m.Status.Counts}
	if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
		now.Reason, now.Message = c.Reason, c.Message
	}
	if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionGateWaiting); c != nil && c.Status == metav1.ConditionTrue {
		now.Gate = c.Message
	}
	was := f.shown
	was.Time = time.Time{}
	if now == was {
		return
	}
	now.Time = time.Now().UTC().Truncate(time.Millisecond)
	f.shown = now
	if f.format.Name == "json" {
		if body, err := json.Marshal(now); err == nil {
			fmt.Fprintf(f.Out.Verbatim(), "%s\n", body)
		}
		return
	}
	f.print(now, was)
}

func (f *follower) print(now, was statusChange) {
	line := string(now.Phase)
	if now.Stage != "" {
		line += " (" + now.Stage + ")"
	}
	if now.Counts.Total > 0 {
		line += fmt.Sprintf(": %d of %d moved", now.Counts.Moved, now.Counts.Total)
	}
	if f.Settings.Quiet {
		line = ""
	}
	if line != "" && (now.Phase != was.Phase || now.Stage != was.Stage || now.Counts != was.Counts) {
		fmt.Fprintln(f.Err, strings.TrimPrefix(line, " "))
	}
	if now.Gate != "" && now.Gate != was.Gate {
		fmt.Fprintf(f.Err, "waits for you: %s\n", printable.Indented(now.Gate, "  "))
	}
	if now.Message != "" && now.Message != was.Message && now.Gate == "" && !f.Settings.Quiet {
		fmt.Fprintf(f.Err, "%s: %s\n", now.Reason, printable.Indented(now.Message, "  "))
	}
}

func (f *follower) warnWithoutOperator(ctx context.Context) {
	leader, err := controller.Alive(ctx, f.c.Cluster, controller.Namespace, time.Now().Add(f.c.Skew()))
	switch {
	case err != nil && !apierrors.IsForbidden(err), errors.Is(ctx.Err(), context.Canceled):
		return
	case leader == "" && !f.alone:
		fmt.Fprintln(f.Err, "warning: no operator is alive; the migration goes on when one is, or with --local")
	}
	f.alone = leader == ""
}
