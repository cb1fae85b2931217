package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

var errKilled = errors.New("killed")

// world is a zone with a secondary that lags, and caches that ask and remember, by a clock of its
// own.
type world struct {
	t       testing.TB
	random  *rand.Rand
	now     time.Time
	primary RecordSet
	// arrives is when the secondary has what the primary has.
	secondary RecordSet
	arrives   time.Time
	caches    []cached
	memory    notebook

	// kill ends the run at one of the next writes, before or after it.
	kill int
	// writes counts.
	writes int
	// strange, if set, happens before the next write.
	strange func()
	// to is what moves lead to, straight if so asked.
	to       []string
	straight bool
	// typ that the record is to have, if it is another one than it has at the beginning.
	typ, former v1alpha1.RecordType
	// then is what it is to have at last, if to is not that.
	then   *v1alpha1.RecordEnd
	client *Client
}

type cached struct {
	set   RecordSet
	until time.Time
}

func newWorld(t testing.TB, seed uint64, values []string, ttl time.Duration) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), now: time.Date(2026, 11, 6, 12, 0, 0, 0, time.UTC),
		primary: record(values, ttl), caches: make([]cached, 20), kill: -1, to: newOnes, client: &Client{},
	}
	w.secondary = w.primary
	w.memory.fails = w.death
	w.tick(0)
	return w
}

// death is asked at every write.
func (w *world) death() error {
	w.kill--
	if w.kill == 0 {
		return errKilled
	}
	return nil
}

// tick lets time pass. Caches ask again when they have to, or have forgotten.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	if !w.now.Before(w.arrives) {
		w.secondary = w.primary
	}
	for i := range w.caches {
		if c := &w.caches[i]; !w.now.Before(c.until) && w.random.IntN(3) > 0 {
			c.set = w.primary
			if w.random.IntN(2) == 0 {
				c.set = w.secondary
			}
			c.until = w.now.Add(c.set.TTL)
		}
	}
}

// remembered are the values that some client may still use.
func (w *world) remembered() []string {
	var all []string
	for _, c := range w.caches {
		if w.now.Before(c.until) {
			all = append(all, c.set.Values...)
		}
	}
	return both(all, nil)
}

func (w *world) Get(_ context.Context, name string, typ v1alpha1.RecordType) (RecordSet, error) {
	switch {
	case typ == w.primary.Type:
		return w.primary, nil
	case w.primary.Type == v1alpha1.RecordCNAME:
		return RecordSet{}, &Error{Record: Title(name, typ), Problem: "the name is a CNAME"}
	}
	return RecordSet{Name: w.primary.Name, Type: typ}, nil
}

func (w *world) Replace(_ context.Context, was, want RecordSet) error {
	if w.strange != nil {
		w.strange()
		w.strange = nil
	}
	if !w.primary.Same(was) {
		now := w.primary
		return Conflict(was, &now)
	}
	if err := w.death(); err != nil {
		return err
	}
	w.primary, w.arrives = want, w.now.Add(time.Duration(w.random.IntN(5))*time.Second)
	w.writes++
	return w.death()
}

func (w *world) Authoritative(context.Context, string, v1alpha1.RecordType) ([]Answer, error) {
	return []Answer{
		{Server: NameServer{Name: "ns1.example.com.", Addr: "192.0.2.53:53"}, Set: w.primary},
		{Server: NameServer{Name: "ns2.example.com.", Addr: "192.0.2.54:53"}, Set: w.secondary},
	}, nil
}

func (w *world) move(from []string) *RecordMove {
	spec := v1alpha1.RecordSpec{
		Name: "api.example.com", Type: w.primary.Type, FromType: w.former, From: from, To: w.to, Then: w.then, TTL: ptr.To(int32(30)),
		Drain: &metav1.Duration{Duration: 10 * time.Second},
	}
	if w.typ != "" {
		spec.Type = w.typ
	}
	m, err := NewMove(spec, w, w.client, &w.memory)
	if err != nil {
		w.t.Fatal(err)
	}
	m.Now, m.Straight = func() time.Time { return w.now }, w.straight
	return m
}

// drive does what the engine does, by the clock of this world.
func (w *world) drive(steps ...[]engine.Step) error {
	for _, s := range slices.Concat(steps...) {
		did := false
		for limit := w.now.Add(24 * time.Hour); ; w.tick(time.Second) {
			err := w.attempt(s, &did)
			if err == nil {
				w.settled(s)
				break
			}
			if !engine.Retryable(err) {
				return err
			}
			if w.now.After(limit) {
				return fmt.Errorf("%s takes for ever: %w", s.ID(), err)
			}
		}
	}
	return nil
}

// settled fails if a step is done by which every client should know all values, and one does not.
func (w *world) settled(s engine.Step) {
	if !strings.HasSuffix(s.ID(), "/settle") || !slices.Contains(w.primary.Values, w.to[0]) || len(w.primary.Values) == len(w.to) {
		return
	}
	for _, c := range w.caches {
		if w.now.Before(c.until) && !c.set.Same(w.primary) {
			w.t.Errorf("%s is done, and a client remembers %v", s.ID(), c.set.Values)
		}
	}
}

func (w *world) attempt(s engine.Step, did *bool) error {
	ctx := w.t.Context()
	if !*did {
		state, err := s.State(ctx)
		if err != nil || state == engine.Done {
			return err
		}
		if err := s.Do(ctx); err != nil {
			return err
		}
		*did = true
	}
	return s.Verify(ctx)
}
