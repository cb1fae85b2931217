package route53

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

const (
	elbZone  = "Z35SXDOTRQ7X7K"
	oldAlias = "ALIAS " + elbZone + " dualstack.old.elb.test. health"
	newAlias = "ALIAS " + elbZone + " dualstack.new.elb.test."
)

// elb are the load balancers of these tests, and what addresses they have.
func elb() map[string][]string {
	return map[string][]string{
		"dualstack.old.elb.test.": {"192.0.2.1", "192.0.2.2", "192.0.2.3"},
		"dualstack.new.elb.test.": {"198.51.100.1", "198.51.100.2", "198.51.100.3"},
	}
}

func alias(name string, health bool) rrset {
	return rrset{Name: "api.example.test.", Type: "A", AliasTarget: &aliasTarget{
		HostedZoneID: elbZone, DNSName: name, EvaluateTargetHealth: health,
	}}
}

// resolvers answer for the zone as its servers do, for load balancers, and for all other names: two
// addresses of three at a time.
func resolvers(t *testing.T, s *service) *dnsrecords.Client {
	t.Helper()
	var mu sync.Mutex
	turn := 0
	fixed := []string{
		"ns1.example.net. 60 IN A 127.0.0.1", "ns2.example.net. 60 IN A 127.0.0.1", "lb.other.test. 60 IN A 203.0.113.7",
		"elb.test. 60 IN SOA ns1.example.net. root.elb.test. 1 1 1 1 1", "elb.test. 60 IN NS ns1.example.net.",
	}
	port := dnstest.FreePort(t, "127.0.0.1")
	dnstest.Serve(t, "127.0.0.1", port, nil, func(w dns.ResponseWriter, r *dns.Msg) {
		mu.Lock()
		defer mu.Unlock()
		m := new(dns.Msg).SetReply(r)
		m.Authoritative = true
		turn++
		all := append(slices.Clone(fixed), s.zoneFile()...)
		for name, addresses := range elb() {
			for i := range addresses[:2] {
				all = append(all, name+" 60 IN A "+addresses[(turn+i)%len(addresses)])
			}
			for i := range addresses[:2] { // what the alias says at the moment
				if s.leadsTo(name) {
					all = append(all, "api.example.test. 60 IN A "+addresses[(turn+i)%len(addresses)])
				}
			}
		}
		for _, text := range all {
			rr, err := dns.NewRR(text)
			if err != nil {
				panic(err)
			}
			h := rr.Header()
			if h.Name == dns.CanonicalName(r.Question[0].Name) && (h.Rrtype == r.Question[0].Qtype || h.Rrtype == dns.TypeCNAME) {
				m.Answer = append(m.Answer, rr)
			}
		}
		if len(m.Answer) == 0 && strings.HasSuffix(r.Question[0].Name, "elb.test.") {
			soa, err := dns.NewRR(fixed[3])
			if err != nil {
				panic(err)
			}
			m.Ns = append(m.Ns, soa)
		}
		_ = w.WriteMsg(m)
	})
	return &dnsrecords.Client{Port: port, Recursive: []string{net.JoinHostPort("127.0.0.1", port)}}
}

// zoneFile is all but aliases.
func (s *service) zoneFile() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, r := range s.records {
		for _, v := range r.Records {
			all = append(all, r.Name+" "+strconv.FormatInt(r.TTL, 10)+" IN "+r.Type+" "+v.Value)
		}
	}
	return all
}

func (s *service) leadsTo(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.records, func(r rrset) bool { return r.AliasTarget != nil && r.AliasTarget.DNSName == name })
}

// notes remember in memory.
type notes map[string]v1alpha1.RecordStatus

func (n notes) Recall(_ context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	if s, ok := n[name+string(typ)]; ok {
		return s.DeepCopy(), nil
	}
	return nil, nil
}

func (n notes) Remember(_ context.Context, s v1alpha1.RecordStatus) error {
	n[s.Name+string(s.Type)] = *s.DeepCopy()
	return nil
}

func (n notes) Change(name string, _ v1alpha1.RecordType) engine.Change {
	return engine.Change{Verb: "note", Object: name}
}

// drive brings steps to their proof by a clock of its own, and returns how long they took by it.
func drive(t *testing.T, now *time.Time, steps ...engine.Step) time.Duration {
	t.Helper()
	start := *now
	for _, s := range steps {
		for did := false; ; *now = now.Add(time.Second) {
			state, err := s.State(t.Context())
			if err == nil && state == engine.Done {
				break
			}
			if !did && err == nil {
				if err = s.Do(t.Context()); err == nil {
					did, err = true, s.Verify(t.Context())
				}
			}
			if err != nil && !engine.Retryable(err) {
				t.Fatalf("%s: %v", s.ID(), err)
			}
			if now.Sub(start) > time.Hour {
				t.Fatalf("%s takes for ever: %v", s.ID(), err)
			}
		}
	}
	return now.Sub(start)
}

func balancerZones() map[string]string {
	all := map[string]string{}
	for name := range maps.Keys(elb()) {
		all[name] = elbZone
	}
	return all
}

// TestAliasMoves: from whatever a record is to an alias or away from one, in one batch, and back to
// exactly what it was. What resolvers may remember of an alias, the 60 seconds of its load
// balancer, is waited for.
func TestAliasMoves(t *testing.T) {
	plain := rrset{Name: "api.example.test.", Type: "A", TTL: 20, Records: values("203.0.113.7")}
	cname := rrset{Name: "api.example.test.", Type: "CNAME", TTL: 20, Records: values("lb.other.test")}
	for _, tt := range []struct {
		name   string
		have   rrset
		former v1alpha1.RecordType
		to     string
		want   rrset
	}{
		{"one alias to another", alias("dualstack.old.elb.test.", true), "", newAlias, alias("dualstack.new.elb.test.", false)},
		{"an address to an alias", plain, "", oldAlias, alias("dualstack.old.elb.test.", true)},
		{
			"an alias to an address", alias("dualstack.old.elb.test.", true), "", "203.0.113.7",
			rrset{Name: "api.example.test.", Type: "A", TTL: 30, Records: values("203.0.113.7")},
		},
		{"a CNAME to an alias", cname, v1alpha1.RecordCNAME, newAlias, alias("dualstack.new.elb.test.", false)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{records: []rrset{tt.have}, balancers: balancerZones(), pending: 2}
			z := open(t, s, resolvers(t, s))
			now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
			m, err := dnsrecords.NewMove(v1alpha1.RecordSpec{
				Name: "api.example.test", Type: v1alpha1.RecordA, FromType: tt.former, To: []string{tt.to}, TTL: ptr.To(int32(30)),
				Drain: &metav1.Duration{Duration: 10 * time.Second},
			}, z, z.client, notes{})
			if err != nil {
				t.Fatal(err)
			}
			m.Now = func() time.Time { return now }
			if _, err := m.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			drive(t, &now, slices.Concat(m.Lower(), m.Widen())...)
			if s.batches > 0 {
				t.Errorf("%d batches before it moves", s.batches)
			}
			if took := drive(t, &now, m.Narrow()...); took < dnsrecords.AliasTTL+10*time.Second {
				t.Errorf("it was waited for only %s", took)
			}
			if !slices.EqualFunc(s.records, []rrset{tt.want}, rrset.equal) || s.batches != 1 {
				t.Errorf("after %d batches it is %s", s.batches, text(t, s.records))
			}
			drive(t, &now, m.Restore()...)
			if took := drive(t, &now, m.Back()...); took < dnsrecords.AliasTTL+10*time.Second {
				t.Errorf("back it was waited for only %s", took)
			}
			back := s.records[0]
			for i := range back.Records { // names have a dot at the end by then
				back.Records[i].Value = strings.TrimSuffix(back.Records[i].Value, ".")
			}
			if len(s.records) != 1 || back.Type != tt.have.Type || !back.equal(tt.have) {
				t.Errorf("back it is %s, not %s", text(t, s.records), text(t, tt.have))
			}
			batches := s.batches
			if drive(t, &now, m.Back()...); s.batches != batches {
				t.Error("another run back wrote something")
			}
		})
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestAliasIsProvenByItsServers: that Route 53 has the alias is not enough, the servers of the zone
// have to answer with addresses of its load balancer.
func TestAliasIsProvenByItsServers(t *testing.T) {
	s := &service{records: []rrset{alias("dualstack.old.elb.test.", false)}, balancers: balancerZones()}
	elsewhere := &service{records: []rrset{alias("dualstack.old.elb.test.", false)}} // what the zone's servers answer by
	z := open(t, s, resolvers(t, elsewhere))
	m, err := dnsrecords.NewMove(v1alpha1.RecordSpec{
		Name: "api.example.test", Type: v1alpha1.RecordA, To: []string{newAlias}, TTL: ptr.To(int32(30)), Drain: &metav1.Duration{},
	}, z, z.client, notes{})
	if err != nil {
		t.Fatal(err)
	}
	step := m.Narrow()[0]
	if err := step.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := step.Verify(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "still says 192.0.2.") {
		t.Errorf("the servers still have the former: %v", err)
	}
	elsewhere.mu.Lock()
	elsewhere.records = []rrset{alias("dualstack.new.elb.test.", false)}
	elsewhere.mu.Unlock()
	if err := step.Verify(t.Context()); err != nil {
		t.Errorf("the servers have the new one: %v", err)
	}
}

// TestAliasRefusals: what Route 53 does not take is said in one line, and what was there stays.
func TestAliasRefusals(t *testing.T) {
	for _, tt := range []struct{ name, to, problem string }{
		{"the zone of another region", "ALIAS Z215JYRZR1TBD5 dualstack.new.elb.test.", "does not lie within the target zone"},
		{"no such load balancer", "ALIAS " + elbZone + " gone.elb.test.", "that target was not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{records: []rrset{alias("dualstack.old.elb.test.", true)}, balancers: balancerZones()}
			z := open(t, s, &dnsrecords.Client{})
			was := api("A", dnsrecords.AliasTTL, oldAlias)
			err := z.Replace(t.Context(), was, api("A", dnsrecords.AliasTTL, tt.to))
			var whole *dnsrecords.Error
			if !errors.As(err, &whole) || !strings.Contains(whole.Hint, "CanonicalHostedZoneId") ||
				!strings.Contains(err.Error(), tt.problem) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
			if !slices.EqualFunc(s.records, []rrset{alias("dualstack.old.elb.test.", true)}, rrset.equal) {
				t.Errorf("it is %s", text(t, s.records))
			}
		})
	}
}

// TestTypeChangesTwice: a CNAME becomes an address and then a CNAME or an alias of another load
// balancer, each in one batch, and goes back from there to exactly what it was.
func TestTypeChangesTwice(t *testing.T) {
	have := rrset{Name: "api.example.test.", Type: "CNAME", TTL: 30, Records: values("old.elb.test.")}
	for _, tt := range []struct {
		name string
		then v1alpha1.RecordEnd
		want rrset
	}{
		{
			"a CNAME",
			v1alpha1.RecordEnd{Type: v1alpha1.RecordCNAME, To: []string{"new.elb.test"}},
			rrset{Name: "api.example.test.", Type: "CNAME", TTL: 30, Records: values("new.elb.test.")},
		},
		{"an alias", v1alpha1.RecordEnd{Type: v1alpha1.RecordA, To: []string{newAlias}}, alias("dualstack.new.elb.test.", false)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{records: []rrset{have}, balancers: balancerZones(), pending: 2}
			z := open(t, s, resolvers(t, s))
			now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
			m, err := dnsrecords.NewMove(v1alpha1.RecordSpec{
				Name:     "api.example.test",
				Type:     v1alpha1.RecordA,
				FromType: v1alpha1.RecordCNAME,
				To:       []string{"203.0.113.7"},
				Then:     &tt.then,
				TTL:      ptr.To(int32(30)),
				Drain:    &metav1.Duration{Duration: 10 * time.Second},
			}, z, z.client, notes{})
			if err != nil {
				t.Fatal(err)
			}
			m.Now = func() time.Time { return now }
			drive(t, &now, append(m.Lower(), m.Switch()...)...)
			if took := drive(t, &now, m.End()...); took < 40*time.Second {
				t.Errorf("it was waited for only %s", took)
			}
			if !slices.EqualFunc(s.records, []rrset{tt.want}, rrset.equal) || s.batches != 2 {
				t.Errorf("after %d batches it is %s", s.batches, text(t, s.records))
			}
			drive(t, &now, m.Back()...)
			if !slices.EqualFunc(s.records, []rrset{have}, rrset.equal) || s.batches != 3 {
				t.Errorf("back, after %d batches, it is %s", s.batches, text(t, s.records))
			}
		})
	}
}

// TestTypeChangesInOneBatch: from a CNAME to an address and back, and not at all beside something
// else.
func TestTypeChangesInOneBatch(t *testing.T) {
	s := &service{records: []rrset{{Name: "api.example.test.", Type: "CNAME", TTL: 30, Records: values("lb.example.net")}}}
	z := open(t, s, &dnsrecords.Client{})
	name, address := api("CNAME", 30*time.Second, "lb.example.net"), api("A", 30*time.Second, "192.0.2.1")
	if err := z.Replace(t.Context(), name, address); err != nil || s.batches != 1 || s.records[0].Type != "A" {
		t.Fatalf("%v, after %d batches it is %s", err, s.batches, text(t, s.records))
	}
	if err := z.Replace(t.Context(), address, name); err != nil || s.batches != 2 || s.records[0].Type != "CNAME" {
		t.Fatalf("%v, after %d batches it is %s", err, s.batches, text(t, s.records))
	}
	if err := z.Replace(t.Context(), name, address); err != nil {
		t.Fatal(err)
	}
	s.records = append(s.records, rrset{Name: "api.example.test.", Type: "TXT", TTL: 30, Records: values(`"x"`)})
	var whole *dnsrecords.Error
	err := z.Replace(t.Context(), address, name)
	if !errors.As(err, &whole) || !strings.Contains(whole.Hint, "other types") || len(s.records) != 2 || s.records[0].Type != "A" {
		t.Errorf("%v, it is %s", err, text(t, s.records))
	}
}
