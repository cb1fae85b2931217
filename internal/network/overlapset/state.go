package overlapset

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/network/overlap"
)

// State is how what keeps bridges in step fares.
type State struct {
	// Enabled says that the Migration wants it, There that the Deployment exists.
	Enabled bool `json:"enabled"`
	There   bool `json:"there"`
	// Replicas is how many there are to be, Alive how many have reported lately.
	Replicas int    `json:"replicas"`
	Alive    int    `json:"alive"`
	Leader   string `json:"leader,omitempty"`
	// InStep is when all bridges were last in step with their Services, by the replica that knows
	// best.
	InStep  *time.Time `json:"inStep,omitempty"`
	Problem string     `json:"problem,omitempty"`

	now time.Time
}

// State reads how it fares; nil, if the user may not look. A nil Set is one that is not to be
// there.
func (s *Set) State(ctx context.Context) (*State, error) {
	d, err := s.get(ctx)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	leases, err := s.leases(ctx)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return (&view{leases: leases}).state(d != nil, s), nil
}

func (v *view) state(there bool, s *Set) *State {
	st := &State{Enabled: s.Image.Name != "", There: there, Replicas: Replicas, now: s.now()}
	if who, at := v.lead(); s.fresh("", at) {
		st.Leader = who
	}
	for i := range v.leases {
		h, ok := overlap.Heard(&v.leases[i])
		if !ok || !s.fresh("", h.At) {
			continue
		}
		st.Alive++
		if st.Problem == "" {
			st.Problem = h.Problem
		}
		if !h.InStep.IsZero() && (st.InStep == nil || h.InStep.After(*st.InStep)) {
			st.InStep = &h.InStep
		}
	}
	return st
}

// Well reports whether bridges are kept in step.
func (st *State) Well() bool {
	return st.Alive > 0 && st.Leader != "" && st.InStep != nil && st.now.Sub(*st.InStep) < overlap.Silence
}

// String is one line for people.
func (st *State) String() string {
	switch {
	case !st.There && !st.Enabled:
		return "bridges are kept in step only while a command runs (spec.serviceCIDR.follower)"
	case !st.There:
		return fmt.Sprintf("deployment %s is not there", Name)
	}
	text := fmt.Sprintf("%d of %d replicas alive", min(st.Alive, st.Replicas), st.Replicas)
	if st.Leader != "" {
		text += ", leader " + st.Leader
	}
	if st.InStep == nil {
		text += ", never in step"
	} else {
		text += fmt.Sprintf(", last in step %s ago", max(0, st.now.Sub(*st.InStep)).Round(time.Second))
	}
	if st.Problem != "" {
		text += ": " + st.Problem
	}
	return text
}
