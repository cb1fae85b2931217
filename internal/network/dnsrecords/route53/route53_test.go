package route53

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsroute53 "github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// open is the zone behind the SDK's own client.
func open(t *testing.T, s *service, client *dnsrecords.Client) *Zone {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return New(awsroute53.New(awsroute53.Options{
		Region: defaultRegion, BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "SECRET"}, nil
		}),
	}), zoneID, client)
}

func api(typ v1alpha1.RecordType, ttl time.Duration, values ...string) dnsrecords.RecordSet {
	s, err := dnsrecords.NewSet("api.example.test", typ, ttl, values)
	if err != nil {
		panic(err)
	}
	return s
}

func TestGetAndReplace(t *testing.T) {
	for _, tt := range []struct {
		name      string
		have      []rrset
		was, want dnsrecords.RecordSet
		after     []string
	}{
		{
			"addresses",
			[]rrset{{Name: "api.example.test.", Type: "A", TTL: 300, Records: values("192.0.2.2", "192.0.2.1")}},
			api("A", 5*time.Minute, "192.0.2.1", "192.0.2.2"), api("A", time.Minute, "192.0.2.1", "198.51.100.1"),
			[]string{"api.example.test. A 60 [{192.0.2.1} {198.51.100.1}]"},
		},
		{
			"spelt in another way",
			[]rrset{{Name: "API.example.test.", Type: "CNAME", TTL: 300, Records: values("Old.example.net")}},
			api("CNAME", 5*time.Minute, "old.example.net"), api("CNAME", time.Minute, "new.example.net"),
			[]string{"api.example.test. CNAME 60 [{new.example.net.}]"},
		},
		{
			"created",
			[]rrset{{Name: "b.example.test.", Type: "A", TTL: 300, Records: values("192.0.2.1")}},
			api("A", 0), api("A", time.Minute, "192.0.2.1"),
			[]string{"b.example.test. A 300 [{192.0.2.1}]", "api.example.test. A 60 [{192.0.2.1}]"},
		},
		{
			"deleted",
			[]rrset{{Name: "api.example.test.", Type: "AAAA", TTL: 300, Records: values("2001:DB8::1")}},
			api("AAAA", 5*time.Minute, "2001:db8::1"), api("AAAA", 0),
			nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{records: tt.have}
			z := open(t, s, &dnsrecords.Client{})
			was, err := z.Get(t.Context(), "api.example.test", tt.was.Type)
			if err != nil || !was.Same(tt.was) || was.TTL != tt.was.TTL {
				t.Fatalf("it begins with %v, %s, %v", was.Values, was.TTL, err)
			}
			if err := z.Replace(t.Context(), was, tt.want); err != nil {
				t.Fatal(err)
			}
			var after []string
			for _, r := range s.records {
				after = append(after, fmt.Sprint(r.Name, " ", r.Type, " ", r.TTL, " ", r.Records))
			}
			if !slices.Equal(after, tt.after) {
				t.Errorf("the zone has %q, not %q", after, tt.after)
			}
		})
	}
}

// TestConflict: a change of others to the record, before the look at it or between that and the
// batch, is not overwritten.
func TestConflict(t *testing.T) {
	for _, tt := range []struct {
		name   string
		theirs []rrset
		early  bool
	}{
		{"other values", []rrset{{Name: "api.example.test.", Type: "A", TTL: 300, Records: values("203.0.113.9")}}, false},
		{"another time to live", []rrset{{Name: "api.example.test.", Type: "A", TTL: 60, Records: values("192.0.2.1")}}, false},
		{"deleted", nil, false},
		{"other values, early", []rrset{{Name: "api.example.test.", Type: "A", TTL: 300, Records: values("203.0.113.9")}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{records: []rrset{{Name: "api.example.test.", Type: "A", TTL: 300, Records: values("192.0.2.1")}}}
			z := open(t, s, &dnsrecords.Client{})
			s.before = func() { s.records = tt.theirs }
			if tt.early {
				s.records = tt.theirs
			}
			err := z.Replace(t.Context(), api("A", 5*time.Minute, "192.0.2.1"), api("A", time.Minute, "198.51.100.1"))
			var conflict *dnsrecords.ConflictError
			if !errors.As(err, &conflict) || conflict.Now == nil || !engine.Retryable(err) {
				t.Fatalf("got %v", err)
			}
			if len(s.records) != len(tt.theirs) || len(s.records) > 0 && !slices.Equal(s.records[0].Records, tt.theirs[0].Records) {
				t.Errorf("the zone has %v", s.records)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	plainOne := rrset{Name: "api.example.test.", Type: "A", TTL: 300, Records: values("192.0.2.1")}
	for _, tt := range []struct {
		name    string
		s       *service
		again   bool
		problem string
	}{
		{"forbidden", &service{status: 403, code: "AccessDenied"}, false, "AccessDenied"},
		{"another account's", &service{status: 404, code: "NoSuchHostedZone"}, false, "NoSuchHostedZone"},
		{"too fast", &service{status: 400, code: "Throttling"}, true, "Throttling"},
		{"busy", &service{status: 400, code: "PriorRequestNotComplete"}, true, "PriorRequestNotComplete"},
		{"broken", &service{status: 503, code: "ServiceUnavailable"}, true, "ServiceUnavailable"},
		{"an alias within the zone", &service{records: []rrset{{
			Name: "api.example.test.", Type: "A", AliasTarget: &aliasTarget{HostedZoneID: zoneID, DNSName: "lb.example.test."},
		}}}, false, "alias of lb.example.test., a record of the same hosted zone"},
		{"a weighted alias", &service{records: []rrset{{
			Name: "api.example.test.", Type: "A", SetIdentifier: "blue", Weight: aws.Int64(10),
			AliasTarget: &aliasTarget{HostedZoneID: "Z2", DNSName: "lb.example.net."},
		}}}, false, `set identifier "blue"`},
		{
			"weighted",
			&service{records: []rrset{{Name: "api.example.test.", Type: "A", TTL: 300, SetIdentifier: "blue", Records: plainOne.Records}}},
			false, `set identifier "blue"`,
		},
		{
			"a CNAME in the way",
			&service{records: []rrset{{Name: "api.example.test.", Type: "CNAME", TTL: 300, Records: values("lb.example.net")}}},
			false, "conflicting RRSet of type CNAME",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			z := open(t, tt.s, &dnsrecords.Client{})
			err := z.Replace(t.Context(), api("A", 0), api("A", time.Minute, "198.51.100.1"))
			var whole *dnsrecords.Error
			if err == nil || !strings.Contains(err.Error(), tt.problem) || engine.Retryable(err) != tt.again ||
				!tt.again && (!errors.As(err, &whole) || whole.Hint == "") {
				t.Errorf("again %v, %v", engine.Retryable(err), err)
			}
			if strings.Contains(err.Error(), "SECRET") {
				t.Error("the error tells a secret")
			}
		})
	}
}

func TestNoCredentials(t *testing.T) {
	z := New(awsroute53.New(awsroute53.Options{
		Region: defaultRegion, RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, errors.New("there are none")
		}),
	}), zoneID, &dnsrecords.Client{})
	_, err := z.Get(t.Context(), "api.example.test", v1alpha1.RecordA)
	var whole *dnsrecords.Error
	if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("got %v", err)
	}
}

// TestAuthoritative: the API says whether the change is everywhere, and the zone's servers are
// asked themselves.
func TestAuthoritative(t *testing.T) {
	address := "192.0.2.1"
	var mu sync.Mutex
	server := func(w dns.ResponseWriter, r *dns.Msg) { // both a resolver for the names of servers and one of these
		mu.Lock()
		defer mu.Unlock()
		m := new(dns.Msg).SetReply(r)
		m.Authoritative = true
		q := r.Question[0]
		text := map[string]string{
			"ns1.example.net.": "ns1.example.net. 60 IN A 127.0.0.1", "ns2.example.net.": "ns2.example.net. 60 IN A 127.0.0.1",
			"api.example.test.": "api.example.test. 60 IN A " + address,
		}[q.Name]
		if rr, err := dns.NewRR(text); err == nil && rr != nil && q.Qtype == dns.TypeA {
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	}
	var l net.ListenConfig
	conn, err := l.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan struct{})
	d := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(server), NotifyStartedFunc: func() { close(up) }}
	go func() { _ = d.ActivateAndServe() }()
	<-up
	t.Cleanup(func() { _ = d.Shutdown() })
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}

	s := &service{records: []rrset{{Name: "api.example.test.", Type: "A", TTL: 60, Records: values("192.0.2.1")}}, pending: 1}
	z := open(t, s, &dnsrecords.Client{Port: port, Recursive: []string{conn.LocalAddr().String()}})
	if err := z.Replace(t.Context(), api("A", time.Minute, "192.0.2.1"), api("A", time.Minute, "198.51.100.1")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"Route 53: the change is PENDING; ns1.example.net: 192.0.2.1; ns2.example.net: 192.0.2.1",
		"Route 53: 198.51.100.1; ns1.example.net: 198.51.100.1; ns2.example.net: 198.51.100.1",
	} {
		answers, err := z.Authoritative(t.Context(), "api.example.test", v1alpha1.RecordA)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range answers {
			text := a.Server.Name + ": " + strings.Join(a.Set.Values, " ")
			if a.Err != nil {
				text = a.Server.Name + ": " + a.Err.Error()
			}
			got = append(got, text)
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("look %d: %s", i, strings.Join(got, "; "))
		}
		mu.Lock()
		address = "198.51.100.1"
		mu.Unlock()
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.calls), func(c string) bool { return c != "GET hostedzone/"+zoneID })); n != 1 {
		t.Errorf("the zone's servers were asked for %d times", n)
	}
}

// TestPrivateZone: its servers answer within its networks only, so that what is asked has to be its
// clients' resolvers.
func TestPrivateZone(t *testing.T) {
	s := &service{private: true, records: []rrset{{Name: "api.example.test.", Type: "A", TTL: 60, Records: values("192.0.2.1")}}}
	z := open(t, s, &dnsrecords.Client{})
	answers, err := z.Authoritative(t.Context(), "api.example.test", v1alpha1.RecordA)
	if err != nil || len(answers) != 1 || answers[0].Server.Addr != "" || answers[0].Err != nil {
		t.Errorf("%v, %v", answers, err)
	}
}
