package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const defaultPatience = time.Hour

// RecordMove is one record on its way between values. Its steps may be in different phases, in
// order.
type RecordMove struct {
	// Patience bounds the wait for servers, caches and, with a manual provider, people; an hour by
	// default. Waits by the clock come on top.
	Patience time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// Straight replaces all values in one change, as for a CNAME: they must not answer side by
	// side.
	Straight bool
	// Answer, if set, gates a change of all values: it fails until each of them answers clients.
	Answer func(ctx context.Context, values []string) error
	// Allowed, if set, fails with an *Error before writes if the record must not change.
	Allowed func(ctx context.Context) error

	name      string
	typ       v1alpha1.RecordType
	former    v1alpha1.RecordType // typ, unless it changes
	written   []string            // nil, if from was left open
	to        []string
	then      []string            // nil, if to is the end
	last      v1alpha1.RecordType // typ, unless then is of another one
	low       time.Duration
	drain     time.Duration
	resolvers []string
	provider  Provider
	client    *Client
	memory    Memory

	// looked is what was there when the plan was made.
	looked *situation
}

// NewMove makes the move that a spec describes. The spec has to be defaulted and valid.
func NewMove(spec v1alpha1.RecordSpec, provider Provider, client *Client, memory Memory) (*RecordMove, error) {
	to, err := NewSet(spec.Name, spec.Type, 0, spec.To)
	if err != nil {
		return nil, fmt.Errorf("to of %s: %w", Title(spec.Name, spec.Type), err)
	}
	former := formerType(&spec)
	from, err := NewSet(spec.Name, former, 0, spec.From)
	if err != nil {
		return nil, fmt.Errorf("from of %s: %w", Title(spec.Name, former), err)
	}
	m := &RecordMove{
		name:      to.Name,
		typ:       spec.Type,
		last:      spec.Type,
		former:    former,
		to:        to.Values,
		low:       time.Duration(*spec.TTL) * time.Second,
		drain:     spec.Drain.Duration,
		resolvers: spec.Resolvers,
		provider:  provider,
		client:    client,
		memory:    memory,
	}
	if spec.From != nil {
		m.written = append([]string{}, from.Values...)
	}
	if then := spec.Then; then != nil {
		end, err := NewSet(spec.Name, then.Type, 0, then.To)
		if err != nil {
			return nil, fmt.Errorf("then of %s: %w", Title(spec.Name, then.Type), err)
		}
		m.then, m.last = end.Values, then.Type
	}
	return m, nil
}

func (m *RecordMove) Title() string { return Title(m.name, m.typ) }

// Load reads the record, and fails with an *Error if it cannot move. Previews are exact afterwards.
func (m *RecordMove) Load(ctx context.Context) (RecordSet, error) {
	s, err := m.load(ctx, engine.Forward)
	if err != nil {
		return RecordSet{}, err
	}
	m.looked = s
	return s.now, m.allowed(ctx)
}

func (m *RecordMove) allowed(ctx context.Context) error {
	if m.Allowed == nil {
		return nil
	}
	return m.Allowed(ctx)
}

// direct reports whether the two ends have no stage in between.
func (m *RecordMove) direct() bool {
	return m.Straight || m.typ == v1alpha1.RecordCNAME || m.former != m.typ || aliased(m.to) || aliased(m.written) ||
		m.looked != nil && aliased(m.looked.from)
}

func (m *RecordMove) Changes() bool { return m.former != m.typ }

// Swaps reports whether the record becomes another type or an alias, in one atomic change.
func (m *RecordMove) Swaps() bool {
	return m.Changes() || m.direct() && m.typ != v1alpha1.RecordCNAME && !m.Straight
}

func (m *RecordMove) Ends() bool     { return m.then != nil }
func (m *RecordMove) Last() []string { return m.then }

// Ended reports whether the record had its last values when read, or has none to go on to.
func (m *RecordMove) Ended() bool { return !m.Ends() || m.looked != nil && m.looked.beyond() }

// get is the present record of any type; a CNAME stands alone.
func (m *RecordMove) get(ctx context.Context) (RecordSet, error) {
	if m.former == m.typ && m.last == m.typ {
		return m.provider.Get(ctx, m.name, m.typ)
	}
	now, err := m.provider.Get(ctx, m.name, v1alpha1.RecordCNAME)
	if err != nil || len(now.Values) > 0 {
		return now, err
	}
	address := m.typ
	for _, typ := range []v1alpha1.RecordType{m.former, m.last} {
		if address == v1alpha1.RecordCNAME {
			address = typ
		}
	}
	return m.provider.Get(ctx, m.name, address)
}

// Lower shortens the time to live, and waits until no one remembers the long one.
func (m *RecordMove) Lower() []engine.Step {
	return []engine.Step{m.change(lower, engine.Forward), m.wait(expire, engine.Forward)}
}

// Widen adds the new values to the old ones, and waits until all have heard. CNAMEs and straight
// moves have nothing to do.
func (m *RecordMove) Widen() []engine.Step {
	if m.direct() {
		return nil
	}
	return []engine.Step{m.change(widen, engine.Forward), m.wait(settle, engine.Forward)}
}

// Narrow removes the old values and waits for caches; their targets can go then.
func (m *RecordMove) Narrow() []engine.Step {
	return []engine.Step{m.change(narrow, engine.Forward), m.wait(drain, engine.Forward)}
}

// End moves the record on to its last values, once both answer, and waits for caches.
func (m *RecordMove) End() []engine.Step {
	if !m.Ends() {
		return nil
	}
	return []engine.Step{m.change(turn, engine.Forward), m.wait(forget, engine.Forward)}
}

// Restore gives the record, which is where it is at last, its time to live back.
func (m *RecordMove) Restore() []engine.Step { return []engine.Step{m.change(restore, engine.Forward)} }

// Leave restores the TTL wherever the record is, for a move that ends half way.
func (m *RecordMove) Leave() []engine.Step { return []engine.Step{m.change(leave, engine.Forward)} }

// Back restores the record from wherever it is, with the same waits; nothing to do if it was never
// written.
func (m *RecordMove) Back() []engine.Step {
	return slices.Concat(m.SwitchBack(), m.RestoreBack())
}

// Switch leads the record to the new values, and waits until no one remembers the old ones.
func (m *RecordMove) Switch() []engine.Step { return append(m.Widen(), m.Narrow()...) }

// SwitchBack is Back with a low TTL, for records that will move again.
func (m *RecordMove) SwitchBack() []engine.Step {
	steps := []engine.Step{m.change(narrow, engine.Backward), m.wait(drain, engine.Backward)}
	if m.direct() {
		return steps
	}
	return append([]engine.Step{m.change(widen, engine.Backward), m.wait(settle, engine.Backward)}, steps...)
}

// RestoreBack gives the record, which has come back, its time to live back.
func (m *RecordMove) RestoreBack() []engine.Step {
	return []engine.Step{m.change(restore, engine.Backward)}
}

// Position is where a record is on its way.
type Position string

// The places. Between is a record with some of both.
const (
	AtOld   Position = "old"
	Between Position = "between"
	AtNew   Position = "new"
)

// Position says where the record is now, at the place where it is kept. It fails as Look does.
func (m *RecordMove) Position(ctx context.Context) (Position, error) {
	s, err := m.load(ctx, engine.Backward)
	switch {
	case err != nil:
		return "", err
	case s.now.Same(s.set(s.to)), s.beyond():
		return AtNew, nil
	case !s.known, s.now.Same(s.set(s.from)):
		return AtOld, nil
	}
	return Between, nil
}

func (m *RecordMove) load(ctx context.Context, d engine.Direction) (*situation, error) {
	memory, err := m.memory.Recall(ctx, m.name, m.typ)
	if err != nil {
		return nil, fmt.Errorf("recalling %s: %w", Title(m.name, m.typ), err)
	}
	now, err := m.get(ctx)
	if err != nil {
		return nil, err
	}
	s := &situation{
		now: now, to: m.to, then: m.then, memory: memory, low: m.low, straight: m.Straight, own: m.typ, former: m.former, last: m.last,
	}
	if err := s.origin(m.written, d); err != nil {
		return nil, err
	}
	return s, m.familiar(s)
}

func (m *RecordMove) familiar(s *situation) error {
	err := s.familiar()
	var half *halfError
	if !errors.As(err, &half) {
		return err
	}
	if _, people := m.provider.(Guider); people {
		return nil
	}
	return half.is
}

func (m *RecordMove) proof(ctx context.Context, want RecordSet, st stage) ([]Answer, error) {
	authoritative, err := m.provider.Authoritative(ctx, m.name, want.Type)
	if err != nil {
		return nil, err
	}
	var resolvers []Answer
	if !slices.Contains([]stage{lower, expire, restore, leave}, st) {
		resolvers = m.client.AskResolvers(ctx, m.resolvers, m.name, want.Type)
	}
	if len(m.resolvers) == 0 && !slices.ContainsFunc(authoritative, func(a Answer) bool { return a.Server.Addr != "" }) {
		return nil, &Error{
			Record: want.String(), Problem: "the servers of its zone cannot be asked from here, so nothing can be proven",
			Hint: "name the resolvers of its clients under resolvers",
		}
	}
	if aliased(want.Values) {
		alias, err := ParseAlias(want.Values[0])
		if err != nil {
			return nil, err
		}
		leads, err := m.client.Leads(ctx, alias.Name, want.Type, m.resolvers)
		if err != nil {
			return nil, engine.NotYet("%s: %w", want, err)
		}
		authoritative, resolvers = follow(authoritative, want.Values, leads), follow(resolvers, want.Values, leads)
	}
	if err := agreed(want, st, authoritative, resolvers); err != nil {
		return nil, engine.NotYet("%s: %w", want, err)
	}
	return append(authoritative, resolvers...), nil
}

func (m *RecordMove) clock() time.Time {
	if m.Now != nil {
		return m.Now()
	}
	return time.Now()
}

func (m *RecordMove) patience() time.Duration {
	if m.Patience > 0 {
		return m.Patience
	}
	return defaultPatience
}

func (m *RecordMove) id(st stage, d engine.Direction) string {
	id := "record/" + m.name[:len(m.name)-1] + "/" + string(m.typ) + "/" + string(st)
	if d == engine.Backward {
		return "back/" + id
	}
	return id
}

func (m *RecordMove) Provider() Provider { return m.provider }
