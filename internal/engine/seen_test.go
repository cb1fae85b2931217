package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
)

// TestLookAndProofOfOneFunction: what is seen goes to the write, and what is missing is said as the
// function says it.
func TestLookAndProofOfOneFunction(t *testing.T) {
	value := 1
	read := func(context.Context) (int, error) {
		switch value {
		case 2:
			return value, nil
		case 3:
			return value, errors.New("it is three")
		}
		return value, engine.NotYet("it is %d", value)
	}
	s := &engine.Observed[int]{
		Name: "a", Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(_ context.Context, seen int) error { value = seen + 1; return nil },
	}
	if err := s.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "it is 1") {
		t.Errorf("verify: %v", err)
	}
	if err := engine.Drive(t.Context(), s); err != nil || value != 2 {
		t.Errorf("drive: %v, value %d", err, value)
	}
	value = 3
	if state, err := s.State(t.Context()); state != engine.Unknown || err == nil {
		t.Errorf("state: %v, %v", state, err)
	}
}

// TestAnUnansweredLookWritesNothing: an API server that is away for a moment has shown nothing that
// a write could go by. The step looks again.
func TestAnUnansweredLookWritesNothing(t *testing.T) {
	away, value := 2, 0
	read := func(context.Context) (*int, error) {
		if away > 0 {
			away--
			return nil, apierrors.NewServiceUnavailable("it restarts")
		}
		if value == 0 {
			return &value, engine.NotYet("it is zero")
		}
		return &value, nil
	}
	s := &engine.Observed[*int]{
		Name: "a", Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(_ context.Context, seen *int) error {
			if seen == nil {
				return errors.New("written without a look")
			}
			*seen = 1
			return nil
		},
	}
	if err := engine.Drive(t.Context(), s); err != nil || value != 1 {
		t.Errorf("drive: %v, value %d", err, value)
	}
}
