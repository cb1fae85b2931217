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
