package journal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// History is what the journal of a migration holds, each kind of record in the order of time.
type History struct {
	Runs       []Run
	Events     []Event
	Samples    []Sample
	Losses     []v1alpha1.Loss
	Moves      []Move
	Findings   []Finding
	Stragglers []Straggler
	Thinned    bool
	Damaged    []string
}

// Load reads a journal, maybe an empty one. Damaged parts are named in the rest.
func Load(ctx context.Context, c client.Client, migration string) (*History, error) {
	m := &v1alpha1.Migration{}
	err := c.Get(ctx, client.ObjectKey{Name: migration}, m)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("migration %s: %w", migration, err)
	}
	all, err := list(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	h := &History{}
	for i := range all {
		cm := &all[i]
		if m.UID != "" && !ownedBy(cm, m.UID) {
			continue
		}
		h.take(cm)
	}
	h.sort()
	return h, nil
}

func (h *History) add(r *record) {
	switch {
	case r.Begin != nil:
		h.Runs = append(h.Runs, *r.Begin)
	case r.Event != nil:
		h.Events = append(h.Events, Event{Event: *r.Event, Run: r.Run})
	case r.Sample != nil:
		h.Samples = append(h.Samples, *r.Sample)
	case r.Loss != nil:
		h.Losses = append(h.Losses, *r.Loss)
	case r.Move != nil:
		h.Moves = append(h.Moves, *r.Move)
	case r.Finding != nil:
		h.Findings = append(h.Findings, Finding{Finding: *r.Finding, Run: r.Run})
	case r.Straggler != nil:
		h.Stragglers = append(h.Stragglers, *r.Straggler)
	}
}

func (h *History) sort() {
	byTime(h.Runs, func(r Run) time.Time { return r.Start })
	byTime(h.Events, func(e Event) time.Time { return e.Time })
	byTime(h.Losses, func(l v1alpha1.Loss) time.Time { return l.Start.Time })
	byTime(h.Moves, func(m Move) time.Time { return m.At })
	slices.SortStableFunc(h.Samples, func(a, b Sample) int { return cmp.Compare(a.Start, b.Start) })
}

func byTime[T any](all []T, of func(T) time.Time) {
	slices.SortStableFunc(all, func(a, b T) int { return of(a).Compare(of(b)) })
}
