package controller

import (
	"cmp"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
)

// begun reports whether changes were made for a Migration, and not all of them taken back.
func begun(m *v1alpha1.Migration) bool {
	return m.Status.Phase != "" && m.Status.Phase != v1alpha1.PhaseRolledBack
}

func over(m *v1alpha1.Migration) bool { return m.Status.Phase == v1alpha1.PhaseFinished }

// arrived reports whether the latest run got to its end, and what it went by is still asked for.
func arrived(m *v1alpha1.Migration) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == m.Generation
}

// Lost reports whether a loss that no one has looked at has stopped a Migration.
func Lost(m *v1alpha1.Migration) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionStalled)
	return c != nil && c.Status == metav1.ConditionTrue &&
		(c.Reason == v1alpha1.ReasonLossBudgetExceeded || c.Reason == v1alpha1.ReasonLateBudgetExceeded)
}

// RepairWord is what a person approves to have a Migration go on that a loss or a node has stopped;
// empty if neither has. Each such stop has its own.
func RepairWord(m *v1alpha1.Migration) string {
	if Lost(m) {
		return "losses:" + digest(string(m.UID), m.Status.LastError)
	}
	c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionStalled)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonNodeReturned {
		return ""
	}
	return "returned:" + digest(string(m.UID), m.Status.LastError, c.LastTransitionTime.UTC().String())
}

func stallReason(m *v1alpha1.Migration) string {
	c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionStalled)
	if c == nil {
		return ""
	}
	return c.Reason
}

// midway reports whether a run has begun and not got to its end.
func midway(m *v1alpha1.Migration) bool {
	switch m.Status.Phase {
	case v1alpha1.PhaseApplying, v1alpha1.PhaseRollingBack, v1alpha1.PhaseFinishing:
		return true
	}
	c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReconciling)
	if c == nil || c.Status != metav1.ConditionTrue {
		return false
	}
	switch c.Reason {
	case v1alpha1.ReasonApplying, v1alpha1.ReasonRollingBack, v1alpha1.ReasonFinishing:
		return true
	}
	return false
}

// contends reports whether a Migration has a claim to the lock: it is half way, or about to begin.
func (s Scene) contends(m *v1alpha1.Migration) bool {
	if !m.DeletionTimestamp.IsZero() {
		return false
	}
	if midway(m) {
		return true
	}
	d := Scene{Migration: m, Kinds: s.Kinds}.course()
	if d.Act == Rest || d.Act == Plan || atRest(m) {
		return false
	}
	ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
	return ready == nil || ready.Reason != v1alpha1.ReasonApprovalNeeded
}

// ahead is the Migration that comes before this one, nil for none: by being half way, then by age.
func (s Scene) ahead() *v1alpha1.Migration {
	m, others := s.Migration, s.Others
	first := m
	for i := range others {
		if o := &others[i]; o.Name != m.Name && s.contends(o) && precedes(o, first) && (midway(o) || !waits(s.Kinds, o, with(m, others))) {
			first = o
		}
	}
	if first == m {
		return nil
	}
	return first
}

func with(m *v1alpha1.Migration, others []v1alpha1.Migration) []v1alpha1.Migration {
	return append([]v1alpha1.Migration{*m}, others...)
}

func precedes(a, b *v1alpha1.Migration) bool {
	if midway(a) != midway(b) {
		return midway(a)
	}
	if midway(a) && atRest(a) != atRest(b) {
		return atRest(b)
	}
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	return cmp.Less(a.Name, b.Name)
}

func atRest(m *v1alpha1.Migration) bool {
	return m.Spec.Paused || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionStalled)
}

func doing(m *v1alpha1.Migration) string {
	switch {
	case m.Spec.Paused:
		return "has begun and is paused"
	case meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionStalled):
		return "has begun and is stalled"
	case midway(m):
		return "is under way"
	}
	return "was created before"
}

func encoded(value any) string {
	body, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("a Migration that is no JSON: %v", err)) // it was read from JSON
	}
	return string(body)
}

// Note writes what a decision says to a status.
func (d Decision) Note(st *v1alpha1.MigrationStatus) {
	if d.Standing != "" {
		d.Standing.Say(st, d.Reason, d.Message)
	}
	migration.Await(st, v1alpha1.ReasonApprovalNeeded, d.Gate)
	paused := metav1.Condition{
		Type: v1alpha1.ConditionPaused, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonResumed, Message: "runs may go on",
	}
	if d.Paused {
		paused.Status, paused.Reason, paused.Message = metav1.ConditionTrue, v1alpha1.ReasonPaused, "a pause was asked for"
	}
	if d.Paused || meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionPaused) != nil {
		meta.SetStatusCondition(&st.Conditions, paused)
	}
}
