package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

const (
	oldAlias = "ALIAS Z35SXDOTRQ7X7K old.elb.example. health"
	newAlias = "ALIAS Z35SXDOTRQ7X7K new.elb.example."
)

func TestParseAlias(t *testing.T) {
	for _, tt := range []struct{ value, want, problem string }{
		{"ALIAS Z35SXDOTRQ7X7K Dualstack.New.elb.example", "ALIAS Z35SXDOTRQ7X7K dualstack.new.elb.example.", ""},
		{"ALIAS  Z35SXDOTRQ7X7K new.elb.example.  health", "ALIAS Z35SXDOTRQ7X7K new.elb.example. health", ""},
		{"ALIAS new.elb.example", "", "is no alias"},
		{"ALIAS Z35SXDOTRQ7X7K new.elb.example yes", "", "is no alias"},
		{"ALIAS /hostedzone/Z35 new.elb.example", "", `"/hostedzone/Z35" is not the ID of a hosted zone`},
		{"ALIAS new.elb.example Z35SXDOTRQ7X7K", "", `"new.elb.example" is not the ID of a hosted zone`},
		{"ALIAS Z35SXDOTRQ7X7K new", "", `"new" is not a name in full`},
	} {
		got, err := ParseAlias(tt.value)
		if tt.problem == "" && (err != nil || got.String() != tt.want) ||
			tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: got %q, %v", tt.value, got, err)
		}
	}
	if _, err := NewSet("a.b", v1alpha1.RecordCNAME, 0, []string{newAlias}); err == nil {
		t.Error("a CNAME has an alias")
	}
	for value, want := range map[string]string{
		newAlias: "new.elb.example", "192.0.2.1": "192.0.2.1", "lb.example.net": "lb.example.net",
	} {
		if got := Host(value); got != want {
			t.Errorf("%s leads to %s", value, got)
		}
	}
}

func TestFollow(t *testing.T) {
	server := NameServer{Name: "ns1", Addr: "192.0.2.53:53"}
	leads := []string{"198.51.100.1", "198.51.100.2"}
	for _, tt := range []struct {
		name   string
		server NameServer
		values []string
		alias  bool
	}{
		{"all addresses", server, leads, true},
		{"one of them", server, leads[1:], true},
		{"others", server, []string{"192.0.2.1"}, false},
		{"others as well", server, append([]string{"192.0.2.1"}, leads...), false},
		{"none", server, nil, false},
		{"an API", NameServer{Name: "Route 53"}, leads, false},
	} {
		all := []Answer{{Server: tt.server, Set: record(tt.values, 0)}}
		if got := follow(all, []string{newAlias}, leads)[0].Set.Values; slices.Equal(got, []string{newAlias}) != tt.alias {
			t.Errorf("%s: taken for %v", tt.name, got)
		}
		if !slices.Equal(all[0].Set.Values, tt.values) {
			t.Errorf("%s: the answer itself was changed", tt.name)
		}
	}
}

// balancers resolves the names of load balancers.
func balancers(t *testing.T) *Client {
	t.Helper()
	at := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		q := r.Question[0]
		if rr, err := dns.NewRR(q.Name + " 60 IN A 198.51.100.7"); err == nil && q.Qtype == dns.TypeA {
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	})
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	return &Client{Recursive: []string{at}, Port: port}
}

// TestSwapsSurviveKills: a record that changes its type, or goes from and to an alias, in whichever
// direction, killed at whichever write. The wait at the end covers what resolvers remember, the 60
// seconds of an alias included, and back again it is what it was.
func TestSwapsSurviveKills(t *testing.T) {
	client := balancers(t)
	name, a := v1alpha1.RecordCNAME, v1alpha1.RecordA
	for i, tt := range []struct {
		name        string
		former, typ v1alpha1.RecordType
		from, to    []string
	}{
		{"a CNAME becomes addresses", name, a, []string{"old.example.net."}, newOnes},
		{"addresses become a CNAME", a, name, oldOnes, []string{"new.example.net."}},
		{"from one alias to another", a, a, []string{oldAlias}, []string{newAlias}},
		{"an alias becomes addresses", a, a, []string{oldAlias}, newOnes},
		{"addresses become an alias", a, a, oldOnes, []string{newAlias}},
		{"a CNAME becomes an alias", name, a, []string{"old.example.net."}, []string{newAlias}},
	} {
		for seed := range uint64(40) {
			ttl := []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour}[seed%3]
			if aliased(tt.from) {
				ttl = AliasTTL
			}
			w := newWorld(t, seed+uint64(i)*100, tt.from, ttl)
			w.primary.Type, w.former, w.typ, w.to, w.client = tt.former, tt.former, tt.typ, tt.to, client
			w.secondary = w.primary
			w.tick(ttl)
			survive(t, w, fmt.Sprintf("%s, seed %d", tt.name, seed))
			if t.Failed() {
				return
			}
		}
	}
}

// TestSwapWithoutWait is the control of the wait: without it resolvers remember the alias that the
// record has left.
func TestSwapWithoutWait(t *testing.T) {
	client, lost := balancers(t), 0
	for seed := range uint64(20) {
		w := newWorld(t, seed, []string{oldAlias}, AliasTTL)
		w.to, w.client = []string{newAlias}, client
		m := w.move(nil)
		if err := w.drive(m.Lower()[:1], m.Narrow()[:1]); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(w.remembered(), oldAlias) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing is lost without the wait")
	}
}

// TestSwapShowsBoth: the plan has the record that goes and the one that comes, in both directions.
func TestSwapShowsBoth(t *testing.T) {
	w := newWorld(t, 1, []string{"old.example.net."}, time.Hour)
	w.primary.Type, w.former, w.typ = v1alpha1.RecordCNAME, v1alpha1.RecordCNAME, v1alpha1.RecordA
	m := w.move(nil)
	if _, err := m.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		step  engine.Step
		title string
		want  []string
	}{
		{
			m.Narrow()[0], "Replace CNAME record api.example.com by A: 198.51.100.1, 198.51.100.2, in one change",
			[]string{"delete CNAME record api.example.com [old.example.net.]", "create A record api.example.com [198.51.100.1 198.51.100.2]"},
		},
		{
			m.SwitchBack()[0], "Have api.example.com be a CNAME again, in one change",
			[]string{"delete A record api.example.com [198.51.100.1 198.51.100.2]", "create CNAME record api.example.com [old.example.net.]"},
		},
	} {
		changes, err := engine.Preview(tt.step)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes[1:] {
			body, ok := c.Body.(map[string]any)
			if !ok {
				t.Fatalf("%v", c)
			}
			got = append(got, fmt.Sprint(c.Verb, " ", c.Object, " ", body["values"]))
		}
		if !slices.Equal(got, tt.want) || tt.step.Title() != tt.title {
			t.Errorf("%s: %q", tt.step.Title(), got)
		}
	}
	if len(m.Widen()) > 0 {
		t.Error("there is a step between the two types")
	}
}

// TestSwapNeedsBothEnds: nothing is written as long as what the record leads to, or is to lead to,
// does not answer.
func TestSwapNeedsBothEnds(t *testing.T) {
	w := newWorld(t, 1, []string{"old.example.net."}, 10*time.Second)
	w.primary.Type, w.former, w.typ = v1alpha1.RecordCNAME, v1alpha1.RecordCNAME, v1alpha1.RecordA
	m := w.move(nil)
	silent := errors.New("it does not answer")
	var asked []string
	m.Answer = func(_ context.Context, values []string) error {
		asked = values
		return silent
	}
	for _, back := range []bool{false, true} {
		steps := slices.Concat(m.Lower(), m.Narrow())
		if back {
			steps = m.SwitchBack()
		}
		before := w.primary
		if err := w.drive(steps); !errors.Is(err, silent) || !w.primary.Same(before) || w.primary.Type != before.Type {
			t.Errorf("back %t: %v, it is %s", back, err, describe(w.primary))
		}
		if want := both([]string{"old.example.net."}, newOnes); !slices.Equal(asked, want) {
			t.Errorf("back %t: asked are %v", back, asked)
		}
		silent = nil
		if err := w.drive(steps); err != nil {
			t.Fatal(err)
		}
		silent = errors.New("it does not answer")
	}
}

func TestSwapOfAnotherType(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Minute)
	w.former, w.typ = v1alpha1.RecordCNAME, v1alpha1.RecordA
	var whole *Error
	if _, err := w.move(nil).Load(t.Context()); !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), "fromType") {
		t.Errorf("it is no CNAME: %v", err)
	}
}
