package dnsrecords

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

var (
	oldOnes = []string{"192.0.2.1", "192.0.2.2"}
	newOnes = []string{"198.51.100.1", "198.51.100.2"}
)

func record(values []string, ttl time.Duration) RecordSet {
	return RecordSet{Name: "api.example.com.", Type: v1alpha1.RecordA, TTL: ttl, Values: values}
}

// TestOriginAndFamiliar is about what may be touched, and what it is taken to have had before.
func TestOriginAndFamiliar(t *testing.T) {
	all := both(oldOnes, newOnes)
	remembered := &v1alpha1.RecordStatus{Values: oldOnes, TTL: 300}
	for _, tt := range []struct {
		name    string
		now     []string
		written []string
		memory  *v1alpha1.RecordStatus
		to      engine.Direction
		from    []string
		problem string
	}{
		{name: "what is there", now: oldOnes, from: oldOnes},
		{name: "as it was written", now: oldOnes, written: oldOnes, from: oldOnes},
		{name: "remembered", now: all, memory: remembered, from: oldOnes},
		{name: "remembered, and there already", now: newOnes, memory: remembered, from: oldOnes},
		{name: "there already", now: newOnes, from: newOnes},
		{name: "memory lost, from written", now: all, written: oldOnes, from: oldOnes},
		{name: "memory lost", now: all, problem: "nothing is remembered"},
		{name: "half of to is there, memory lost", now: []string{oldOnes[0], newOnes[0]}, problem: "nothing is remembered"},
		{name: "absent", problem: "there is no such record"},
		{name: "absent, as it was written", written: []string{}, from: nil},
		{name: "absent, but it was written otherwise", written: oldOnes, problem: "neither from"},
		{name: "there, though written to be absent", now: oldOnes, written: []string{}, problem: "in neither from nor to"},
		{name: "others have one more", now: append([]string{"203.0.113.9"}, all...), memory: remembered, problem: "it has 203.0.113.9,"},
		{name: "another owner's, way back", now: []string{"203.0.113.9"}, memory: remembered, to: engine.Backward, problem: "it has 203.0.113.9,"},
		{name: "not what was written", now: []string{"203.0.113.9"}, written: oldOnes, problem: "it has 203.0.113.9,"},
		{name: "one was taken out", now: oldOnes[:1], memory: remembered, problem: "neither from"},
		{name: "one was taken out of both", now: all[:3], memory: remembered, problem: "neither from"},
		{name: "deleted", memory: remembered, problem: "neither from"},
		{name: "back, nothing remembered", now: newOnes, to: engine.Backward},
		{name: "back, nothing remembered, from written", now: newOnes, written: oldOnes, to: engine.Backward, from: oldOnes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &situation{now: record(tt.now, time.Minute), to: newOnes, memory: tt.memory, low: 30 * time.Second}
			err := s.origin(tt.written, tt.to)
			if err == nil {
				err = s.familiar()
			}
			switch {
			case tt.problem == "" && err != nil:
				t.Fatal(err)
			case tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)):
				t.Fatalf("got %v", err)
			case tt.problem == "" && !s.set(s.from).Same(s.set(tt.from)):
				t.Errorf("from is %v", s.from)
			}
			var whole *Error
			if errors.As(err, &whole) && (whole.Hint == "" || strings.Contains(err.Error(), "\n")) {
				t.Errorf("no hint, or more than a line: %v", err)
			}
		})
	}
}

func TestWant(t *testing.T) {
	const hour, low = time.Hour, 30 * time.Second
	all := both(oldOnes, newOnes)
	memory := &v1alpha1.RecordStatus{Values: oldOnes, TTL: 3600}
	for _, tt := range []struct {
		name  string
		now   RecordSet
		stage stage
		to    engine.Direction
		want  RecordSet
	}{
		{"lower", record(oldOnes, hour), lower, engine.Forward, record(oldOnes, low)},
		{"lower what is low", record(oldOnes, time.Second), lower, engine.Forward, record(oldOnes, time.Second)},
		{"widen", record(oldOnes, low), widen, engine.Forward, record(all, low)},
		{"widen what others have raised", record(oldOnes, hour), widen, engine.Forward, record(all, low)},
		{"narrow", record(all, low), narrow, engine.Forward, record(newOnes, low)},
		{"narrow when it is over", record(newOnes, hour), narrow, engine.Forward, record(newOnes, hour)},
		{"restore", record(newOnes, low), restore, engine.Forward, record(newOnes, hour)},
		{"back: widen", record(newOnes, low), widen, engine.Backward, record(all, low)},
		{"back: narrow", record(all, low), narrow, engine.Backward, record(oldOnes, low)},
		{"back: restore", record(oldOnes, low), restore, engine.Backward, record(oldOnes, hour)},
	} {
		s := &situation{now: tt.now, from: oldOnes, known: true, to: newOnes, memory: memory, low: low}
		if got := s.want(tt.stage, tt.to); !got.Same(tt.want) || got.TTL != tt.want.TTL {
			t.Errorf("%s: %s, not %s", tt.name, describe(got), describe(tt.want))
		}
	}
}

func TestWantOfARecordThatWasNotThere(t *testing.T) {
	s := &situation{now: record(nil, 0), known: true, to: newOnes, memory: &v1alpha1.RecordStatus{}, low: 30 * time.Second}
	if got := s.want(widen, engine.Forward); !got.Same(record(newOnes, 0)) || got.TTL != 30*time.Second {
		t.Errorf("it is created as %s", describe(got))
	}
	s.now = record(newOnes, 30*time.Second)
	if got := s.want(restore, engine.Forward); got.TTL != 30*time.Second {
		t.Errorf("there is nothing to restore, but %s", describe(got))
	}
	if got := s.want(narrow, engine.Backward); len(got.Values) != 0 {
		t.Errorf("it goes back to %s", describe(got))
	}
}

func TestPast(t *testing.T) {
	memory := &v1alpha1.RecordStatus{Values: oldOnes, TTL: 300}
	for _, tt := range []struct {
		name   string
		now    []string
		known  bool
		memory *v1alpha1.RecordStatus
		to     engine.Direction
		past   []stage
	}{
		{"begun", oldOnes, true, memory, engine.Forward, nil},
		{"beside", both(oldOnes, newOnes), true, memory, engine.Forward, nil},
		{"arrived", newOnes, true, memory, engine.Forward, []stage{lower, expire, widen, settle}},
		{"never left, nothing known", oldOnes, false, nil, engine.Backward, []stage{widen, settle, narrow, drain, restore}},
		{"never left, from written", oldOnes, true, nil, engine.Backward, []stage{widen, settle, narrow, drain, restore}},
		{"only the time to live was lowered", oldOnes, true, memory, engine.Backward, []stage{widen, settle, drain}},
	} {
		s := &situation{now: record(tt.now, time.Minute), from: oldOnes, known: tt.known, to: newOnes, memory: tt.memory}
		for _, st := range []stage{widen, settle, narrow, drain, restore} {
			want := false
			for _, p := range tt.past {
				want = want || p == st
			}
			if s.past(st, tt.to) != want {
				t.Errorf("%s: %s is past: %v", tt.name, st, !want)
			}
		}
	}
}

// TestUntil is the arithmetic of what may be remembered.
func TestUntil(t *testing.T) {
	t0 := time.Date(2026, 11, 6, 12, 0, 0, 0, time.UTC)
	stamp := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: t0.Add(after)} }
	seen := func(values []string, longest int32) *v1alpha1.RecordSeen {
		return &v1alpha1.RecordSeen{Values: values, At: *stamp(0), Longest: longest}
	}
	all := both(oldOnes, newOnes)
	const begun, notBegun = true, false
	for _, tt := range []struct {
		name   string
		memory *v1alpha1.RecordStatus
		now    []string
		stage  stage
		end    time.Duration
		begun  bool
	}{
		{"nothing remembered", nil, oldOnes, expire, 0, notBegun},
		{"not lowered yet", &v1alpha1.RecordStatus{TTL: 3600}, oldOnes, expire, 0, notBegun},
		{"short before", &v1alpha1.RecordStatus{TTL: 30}, oldOnes, expire, -1, begun},
		{"lowered", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0)}, oldOnes, expire, time.Hour, begun},
		{"absurdly long", &v1alpha1.RecordStatus{TTL: 1 << 30, LoweredAt: stamp(0)}, oldOnes, expire, longest, begun},
		{"not seen yet", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0)}, all, settle, 0, notBegun},
		{"seen", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0), Seen: seen(all, 30)}, all, settle, 30 * time.Second, begun},
		{"something else was seen", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0), Seen: seen(newOnes, 30)}, all, settle, 0, notBegun},
		{
			"a resolver stretches", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0), Seen: seen(all, 300)}, all, settle,
			5 * time.Minute, begun,
		},
		{"drained", &v1alpha1.RecordStatus{TTL: 3600, LoweredAt: stamp(0), Seen: seen(newOnes, 30)}, newOnes, drain, 90 * time.Second, begun},
		{
			"it had been raised", &v1alpha1.RecordStatus{TTL: 3600, Seen: seen(newOnes, 30)}, newOnes, drain,
			time.Hour + time.Minute, begun,
		},
	} {
		s := &situation{now: record(tt.now, 30*time.Second), from: oldOnes, known: true, to: newOnes, memory: tt.memory, low: 30 * time.Second}
		end, ok := s.until(tt.stage, engine.Forward, time.Minute)
		if ok != tt.begun || ok && tt.end >= 0 && !end.Equal(t0.Add(tt.end)) || tt.end < 0 && !end.IsZero() {
			t.Errorf("%s: until %s (%v)", tt.name, end, ok)
		}
	}
}

func TestAgreed(t *testing.T) {
	const low = 30 * time.Second
	want := record(newOnes, low)
	ns := func(s RecordSet, err error) Answer {
		return Answer{Server: NameServer{Name: "ns2.example.com.", Addr: "192.0.2.53:53"}, Set: s, Err: err}
	}
	for _, tt := range []struct {
		name                     string
		stage                    stage
		authoritative, resolvers []Answer
		problem                  string
	}{
		{"all", narrow, []Answer{ns(want, nil), ns(want, nil)}, []Answer{ns(record(newOnes, time.Second), nil)}, ""},
		{"a secondary is behind", narrow, []Answer{ns(want, nil), ns(record(oldOnes, low), nil)}, nil, "ns2.example.com (192.0.2.53:53) still says 192.0.2.1"},
		{"a secondary has the values, and the old time to live", narrow, []Answer{ns(record(newOnes, time.Hour), nil)}, nil, "a time to live of 1h0m0s"},
		{"a secondary is down", narrow, []Answer{ns(RecordSet{}, errors.New("timeout"))}, nil, "does not say: timeout"},
		{"a resolver remembers", narrow, []Answer{ns(want, nil)}, []Answer{ns(record(oldOnes, low), nil)}, "still says 192.0.2.1"},
		{"a resolver stretches", narrow, []Answer{ns(want, nil)}, []Answer{ns(record(newOnes, time.Hour), nil)}, ""},
		{"restored only in part", restore, []Answer{ns(record(newOnes, time.Second), nil)}, nil, "a time to live of 1s"},
	} {
		err := agreed(want, tt.stage, tt.authoritative, tt.resolvers)
		if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
