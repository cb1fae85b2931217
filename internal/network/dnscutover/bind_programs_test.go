//go:build programs && long

package dnscutover

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

const (
	sourceAt = "127.0.0.10"
	targetAt = "127.0.0.20"
	zoneText = `
a.sub 3 IN A 127.0.0.10
b.sub 3 IN A 127.0.0.10
c.sub 3 IN A 127.0.0.10
d.sub 3 IN A 127.0.0.10
e.sub 3 IN A 127.0.0.10
f.sub 3 IN A 127.0.0.10
g.sub 3 IN A 127.0.0.10
h.sub 3 IN A 127.0.0.10
key.sub 3 IN A 127.0.0.10
low.sub 1 IN A 127.0.0.10
next.sub 1 IN A 127.0.0.10
owned.sub 3 IN A 127.0.0.10
a-owned.sub 3 IN TXT "heritage=external-dns,external-dns/owner=theirs,external-dns/resource=ingress/shop/cart"
*.wild.sub 3 IN A 127.0.0.10
own.wild.sub 3 IN A 127.0.0.10
`
)

// notebook remembers in memory.
type notebook struct {
	mu sync.Mutex
	of map[string]v1alpha1.RecordStatus
}

func (n *notebook) Recall(_ context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, ok := n.of[name+string(typ)]; ok {
		return s.DeepCopy(), nil
	}
	return nil, nil
}

func (n *notebook) Change(name string, _ v1alpha1.RecordType) engine.Change {
	return engine.Change{Verb: "note", Object: name}
}

func (n *notebook) Remember(_ context.Context, s v1alpha1.RecordStatus) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[string]v1alpha1.RecordStatus{}
	}
	n.of[s.Name+string(s.Type)] = *s.DeepCopy()
	return nil
}

// stage is a zone and two clusters' load balancers.
type stage struct {
	t              *testing.T
	dns            *dnstest.Servers
	source, target *balancer
	memory         *notebook
	key            string
	// patience is how long the other side may take to answer, gateWait how long servers and caches
	// may.
	patience, gateWait time.Duration
	owners             []string
}

func newStage(t *testing.T, lags bool) *stage {
	t.Helper()
	s := &stage{t: t, memory: &notebook{}, key: dnstest.KeyFile, patience: time.Minute, gateWait: time.Minute}
	s.dns = dnstest.Start(t, dnstest.Zone{Records: zoneText, Policy: "grant replumb subdomain sub.example.test. ANY;", Lags: lags})
	port := dnstest.FreePort(t, sourceAt, targetAt)
	s.source = newBalancer(t, net.JoinHostPort(sourceAt, port), "", 200, nil)
	s.target = newBalancer(t, net.JoinHostPort(targetAt, port), "", 200, nil)
	return s
}

// in is the same stage for a test that runs beside others, with names of its own.
func (s *stage) in(t *testing.T) *stage {
	t.Parallel()
	mine := *s
	mine.t, mine.memory = t, &notebook{}
	return &mine
}

// open is what a new process does.
func (s *stage) open(names ...string) []*PairedName {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(s.key), 0o600); err != nil {
		s.t.Fatal(err)
	}
	spec := v1alpha1.RedirectSpec{
		From: []string{sourceAt}, To: []string{targetAt}, TTL: ptr.To(int32(1)), Drain: &metav1.Duration{}, Owners: s.owners,
		Resolvers: []string{s.dns.Resolver},
		Probe:     v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeHTTP, Port: s.source.port()},
		Provider: &v1alpha1.RecordProvider{RFC2136: &v1alpha1.RFC2136Provider{
			Server: s.dns.Primary, Zone: dnstest.Name, TSIGKeyFile: file,
		}},
	}
	for _, n := range names {
		spec.Names = append(spec.Names, v1alpha1.RedirectName{Name: n + ".example.test"})
	}
	paired, problems := Pair(nil, nil, spec)
	for _, p := range problems {
		if !p.Warning {
			s.t.Fatal(p)
		}
	}
	leads, err := Open(s.t.Context(), Deps{
		Client: &dnsrecords.Client{Port: s.dns.Port, Recursive: []string{s.dns.Resolver}}, Memory: s.memory, GateWait: s.gateWait,
	}, paired, spec)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range leads {
		l.Patience = s.patience
	}
	return leads
}

// run brings groups to their end; kill, if it is not zero, ends the run after so many events.
func (s *stage) run(groups []engine.Group, kill int) error {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	r := &engine.Runner{Sink: func(engine.Event) {
		if kill--; kill == 0 {
			cancel()
		}
	}}
	return r.Run(ctx, &engine.Plan{Name: "test", Phases: []engine.Phase{{Name: "redirect", Groups: groups}}})
}

// check compares records, as their primary has them, with address and time to live.
func (s *stage) check(address string, ttl time.Duration, names ...string) {
	s.t.Helper()
	for _, l := range s.open(names...) {
		now, err := l.Move.Provider().Get(s.t.Context(), l.Name.Name, l.Name.Type)
		if err != nil || !slices.Equal(now.Values, []string{address}) || now.TTL != ttl {
			s.t.Errorf("%s has %v for %s (%v), not %s for %s", l.Name.Name, now.Values, now.TTL, err, address, ttl)
		}
	}
}

func (s *stage) serving(want v1alpha1.ServingSide, names ...string) {
	s.t.Helper()
	seen := map[dnsrecords.Position]bool{}
	for _, l := range s.open(names...) {
		place, err := l.Move.Position(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		seen[place] = true
	}
	got := v1alpha1.ServingSource
	switch {
	case seen[dnsrecords.Between] || seen[dnsrecords.AtOld] && seen[dnsrecords.AtNew]:
		got = v1alpha1.ServingBoth
	case seen[dnsrecords.AtNew]:
		got = v1alpha1.ServingTarget
	}
	if got != want {
		s.t.Errorf("names lead to %s, not to %s", got, want)
	}
}

func TestRedirect(t *testing.T) {
	s := newStage(t, false)
	all := []string{"a.sub", "b.sub", "c.sub", "d.sub"}
	two := Options{Migration: "m", Parallel: 2}

	t.Run("another owner's is left alone", func(t *testing.T) { s.in(t).foreign() })
	t.Run("wrong key", func(t *testing.T) { s.in(t).wrongKey() })
	t.Run("wildcards", func(t *testing.T) { s.in(t).wildcards() })
	t.Run("a name that the target does not serve, and a whole round twice", func(t *testing.T) {
		s := s.in(t)
		s.target.ill.Store("c.sub.example.test")
		s.patience = 3 * time.Second
		err := s.run(slices.Concat(Lower(s.open(all...)), There(s.open(all...), two)), 0)
		var asked *Error
		if !errors.As(err, &asked) || asked.Hint == "" || !strings.Contains(err.Error(), "c.sub.example.test: "+targetAt) {
			t.Fatalf("got %v", err)
		}
		s.check(targetAt, time.Second, "a.sub", "b.sub")
		s.check(sourceAt, time.Second, "c.sub", "d.sub")
		s.serving(v1alpha1.ServingBoth, all...)
		s.target.ill.Store("")
		s.patience = time.Minute
		s.round(all, two)
		s.round(all, Options{})
	})
	t.Run("killed anywhere", func(t *testing.T) {
		s.in(t).killed([]string{"e.sub", "f.sub", "g.sub", "h.sub"}, two)
	})
}

// round leads names there and home again, from wherever they are.
func (s *stage) round(all []string, o Options) {
	s.t.Helper()
	if err := s.run(There(s.open(all...), o), 0); err != nil {
		s.t.Fatal(err)
	}
	s.check(targetAt, time.Second, all...)
	s.serving(v1alpha1.ServingTarget, all...)
	if err := s.run(LeadBack(s.open(all...), o), 0); err != nil {
		s.t.Fatal(err)
	}
	s.check(sourceAt, time.Second, all...)
	s.serving(v1alpha1.ServingSource, all...)
	if err := s.run(Restore(s.open(all...)), 0); err != nil {
		s.t.Fatal(err)
	}
	s.check(sourceAt, 3*time.Second, all...)
}

// killed ends runs after ever more events, there and home, and takes each up by a new process.
func (s *stage) killed(all []string, o Options) {
	for _, kill := range []int{4, 17, 30} {
		err := s.run(There(s.open(all...), o), kill)
		if !errors.Is(err, engine.ErrInterrupted) {
			s.t.Fatalf("after %d events: %v", kill, err)
		}
		if kill%2 == 0 { // otherwise home from half of the way
			if err := s.run(There(s.open(all...), o), 0); err != nil {
				s.t.Fatal(err)
			}
			s.check(targetAt, time.Second, all...)
		}
		if err := s.run(LeadBack(s.open(all...), o), kill); err != nil && !errors.Is(err, engine.ErrInterrupted) {
			s.t.Fatalf("home, after %d events: %v", kill, err)
		}
		if err := s.run(append(LeadBack(s.open(all...), o), Restore(s.open(all...))...), 0); err != nil {
			s.t.Fatal(err)
		}
		s.check(sourceAt, 3*time.Second, all...)
	}
}

func (s *stage) foreign() {
	t := s.t
	leads := s.open("owned.sub")
	problem := Looked(t.Context(), leads)["A record owned.sub.example.test"]
	var whole *dnsrecords.Error
	if !errors.As(problem, &whole) || !strings.Contains(problem.Error(), `belongs to "theirs" of external-dns (for ingress/shop/cart)`) {
		t.Errorf("looked at: %v", problem)
	}
	if err := s.run(There(leads, Options{}), 0); !errors.As(err, &whole) || !strings.Contains(err.Error(), "theirs") {
		t.Errorf("led: %v", err)
	}
	s.check(sourceAt, 3*time.Second, "owned.sub")
	if len(s.memory.of) > 0 {
		t.Errorf("something is remembered: %v", s.memory.of)
	}
	s.owners = []string{"ours", "theirs"}
	s.round([]string{"owned.sub"}, Options{})
	zone := s.open("owned.sub")[0].Move.Provider().(dnsrecords.Texter)
	texts, err := zone.Texts(t.Context(), "owned.sub.example.test", "a-owned.sub.example.test")
	if err != nil || len(texts) != 1 || !strings.Contains(texts[0], "owner=theirs") {
		t.Errorf("the TXT record became %v (%v)", texts, err)
	}
}

func (s *stage) wrongKey() {
	t := s.t
	s.key = strings.Replace(dnstest.KeyFile, dnstest.Secret, "YW5vdGhlciBzZWNyZXQ=", 1)
	err := s.run(There(s.open("key.sub"), Options{}), 0)
	var whole *dnsrecords.Error
	if !errors.As(err, &whole) || !strings.Contains(err.Error(), "refused key replumb") || strings.Contains(err.Error(), "YW5v") {
		t.Errorf("got %v", err)
	}
	s.key = dnstest.KeyFile
	s.check(sourceAt, 3*time.Second, "key.sub")
}

// wildcards: what one makes of a name has no record to lead.
func (s *stage) wildcards() {
	t := s.t
	leads, problems, err := Existing(t.Context(), s.open("*.wild.sub", "own.wild.sub", "made.wild.sub", "none.sub"))
	if err != nil || len(leads) != 2 || len(problems) != 2 || !strings.Contains(problems[0].String(), "made.wild.sub.example.test") ||
		!strings.Contains(problems[0].Problem, "wildcard") || !strings.Contains(problems[1].String(), "no A record none.sub") {
		t.Fatalf("%d leads, %v, %v", len(leads), problems, err)
	}
	s.round([]string{"*.wild.sub", "own.wild.sub"}, Options{})
}

// TestALaggingServer: a name is not there before every server says so, and comes home all the same.
func TestALaggingServer(t *testing.T) {
	t.Parallel()
	s := newStage(t, true)
	s.gateWait = 5 * time.Second
	o := Options{Parallel: 1}
	err := s.run(There(s.open("low.sub", "next.sub"), o), 0)
	var late *engine.DeadlineError
	if !errors.As(err, &late) || !strings.Contains(err.Error(), "still says "+sourceAt) {
		t.Fatalf("got %v", err)
	}
	s.check(targetAt, time.Second, "low.sub")
	s.check(sourceAt, time.Second, "next.sub")
	s.gateWait = time.Minute
	if err := s.run(LeadBack(s.open("low.sub", "next.sub"), o), 0); err != nil {
		t.Fatal(err)
	}
	s.check(sourceAt, time.Second, "low.sub", "next.sub")
}
