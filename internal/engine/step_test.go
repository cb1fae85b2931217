package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRoles(t *testing.T) {
	never := func(context.Context) error { return NotYet("later") }
	for _, tt := range []struct {
		step Step
		want StepRole
	}{
		{&Wait{For: never}, RoleWait},
		{&Wait{For: never, As: RoleBarrier}, RoleBarrier},
		{&Gate{Wait: Wait{For: never}}, RoleGate},
		{&Write{Holds: never}, RoleWrite},
		{&Write{Holds: never, As: RoleOwn}, RoleOwn},
		{Interruptible{&Write{Holds: never}}, RoleWrite},
		{&Observed[int]{As: RoleMove}, RoleMove},
	} {
		if got := RoleOf(tt.step); got != tt.want {
			t.Errorf("%T: got %s, want %s", tt.step, got, tt.want)
		}
	}
}

// TestObservedWritesByItsOwnLook shows that a write is given what the look right before it has
// seen, attempt by attempt.
func TestObservedWritesByItsOwnLook(t *testing.T) {
	looks, given := 0, []int(nil)
	s := &Observed[int]{
		Name: "count",
		Look: func(context.Context) (State, int, error) {
			looks++
			if len(given) == 2 {
				return Done, looks, nil
			}
			return Pending, looks, nil
		},
		Write: func(_ context.Context, seen int) error {
			given = append(given, seen)
			if len(given) == 1 {
				return NotYet("a conflict")
			}
			return nil
		},
	}
	if err := Drive(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if len(given) != 2 || given[0] != 1 || given[1] != 2 {
		t.Errorf("writes were given looks %v", given)
	}
}

// TestWhatOthersDeleteIsLookedAtAgain: between a step's look and its write others delete what it
// was about, and nothing is left to do. That there is no such kind is the control: another look
// helps with nothing.
func TestWhatOthersDeleteIsLookedAtAgain(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	for name, tt := range map[string]struct {
		answer error
		passes bool
	}{
		"the object":    {fmt.Errorf("service shop/cart: %w", apierrors.NewNotFound(services, "cart")), true},
		"the kind":      {apierrors.NewGenericServerResponse(404, "patch", services, "", "the server could not find the requested resource", 0, true), false},
		"not an answer": {errors.New("not found"), false},
	} {
		t.Run(name, func(t *testing.T) {
			there := true
			s := &Observed[struct{}]{
				Name: "release",
				Look: func(context.Context) (State, struct{}, error) {
					if there {
						return Pending, struct{}{}, nil
					}
					return Done, struct{}{}, nil
				},
				Write: func(context.Context, struct{}) error {
					there = false
					return tt.answer
				},
			}
			if err := Drive(t.Context(), s); (err == nil) != tt.passes {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestCurrent shows that what a step does can be told from what others do.
func TestCurrent(t *testing.T) {
	var s *Write
	done := false
	s = &Write{
		Name: "write",
		Holds: func(ctx context.Context) error {
			if Current(ctx) != Step(s) {
				return errors.New("the look belongs to another step")
			}
			if !done {
				return NotYet("not done")
			}
			return nil
		},
		Write: func(ctx context.Context) error {
			done = Current(ctx) == Step(s)
			return nil
		},
	}
	if err := Drive(t.Context(), s); err != nil {
		t.Error(err)
	}
	if Current(t.Context()) != nil {
		t.Error("a context outside of runs has a step")
	}
}

// TestCertain shows that a plan is run up to the phase after which it is planned again.
func TestCertain(t *testing.T) {
	p := &Plan{Phases: []Phase{{Name: "a"}, {Name: "b", Replan: true}, {Name: "c"}}}
	certain, partial := p.Certain()
	if !partial || len(certain.Phases) != 2 || certain.Phases[1].Name != "b" {
		t.Errorf("got %v, %v", certain.Names(), partial)
	}
	p.Phases[1].Replan = false
	if certain, partial = p.Certain(); partial || len(certain.Phases) != 3 {
		t.Errorf("got %v, %v", certain.Names(), partial)
	}
}
