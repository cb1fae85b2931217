package migration

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// TestReversible refuses a migration after its point of no return, with the way back of its kind.
func TestReversible(t *testing.T) {
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	if err := Reversible(m, "turn round"); err != nil {
		t.Fatalf("refused before its point of no return: %v", err)
	}
	m.Status.PointOfNoReturnPassed = true
	if err := Reversible(m, "turn round"); err == nil || fault.Advice(err) != "turn round" {
		t.Errorf("%v (%s)", err, fault.Advice(err))
	}
}

// holding is a Guard that has nothing begin.
type holding struct{ Guard }

func (holding) Hold(context.Context) error { return engine.NotYet("agents cannot measure") }

// TestGuardHoldsARun: no group of steps begins as long as the Guard says so, whatever it is of; a
// pause ends a run at once all the same.
func TestGuardHoldsARun(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	paused := m.DeepCopy()
	paused.Spec.Paused = true
	for name, tt := range map[string]struct {
		m     *v1alpha1.Migration
		guard Guard
		want  string
	}{
		"nothing in the way":      {m, nil, ""},
		"held":                    {m, holding{}, "agents cannot measure"},
		"paused":                  {paused, nil, engine.ErrPaused.Error()},
		"paused while it is held": {paused, holding{}, engine.ErrPaused.Error()},
	} {
		k := &Keeper{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.m).Build(), Name: "m", Guard: tt.guard}
		got := ""
		if err := k.mayGoOn(t.Context()); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestApprovalIsUsedUp: each attempt has a word of its own, and what was approved of one is of no
// use for the next.
func TestApprovalIsUsedUp(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	m := &v1alpha1.Migration{}
	m.Name, m.UID = "m", "u"
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(m).WithStatusSubresource(m).Build()
	k := &Keeper{Client: c, Name: "m"}
	look := func() *v1alpha1.Migration {
		m, err := Get(t.Context(), c, "m")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var words []string
	for _, phase := range []v1alpha1.Phase{
		v1alpha1.PhaseApplying, v1alpha1.PhaseApplying, v1alpha1.PhaseMoved, v1alpha1.PhaseRolledBack, v1alpha1.PhaseApplying, v1alpha1.PhaseMoved,
	} {
		settle := func() error { return k.Settle(t.Context(), phase, v1alpha1.Counts{}, nil) }
		if phase == v1alpha1.PhaseApplying {
			settle = func() error { return k.Status(t.Context(), func(st *v1alpha1.MigrationStatus) { st.Phase = phase }) }
		}
		if err := settle(); err != nil {
			t.Fatal(err)
		}
		m := look()
		if a, err := Approved(m); err != nil || a.Finish {
			t.Errorf("%s: approved: %+v, %v", phase, a, err)
		}
		if phase == v1alpha1.PhaseMoved {
			Approve(m, FinishWord(m), "losses:1")
			words = append(words, FinishWord(m))
			if err := c.Update(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if words[0] == words[1] || look().Annotations[v1alpha1.AnnotationApprove] != "losses:1,"+words[1] || look().Status.Attempt != 2 {
		t.Errorf("words %v, %v, attempt %d", words, look().Annotations, look().Status.Attempt)
	}
}
