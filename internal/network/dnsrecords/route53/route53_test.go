package route53

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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

const zoneID = "Z1D633PJN98FT9"

// service plays Route 53 over HTTP. What it answers, and refuses, is as in its API reference; that the real one does so
// cannot be tested here.
type service struct {
	mu      sync.Mutex
	records []rrset
	private bool
	// pending is how often a change is said to be on its way.
	pending int
	// fails, if set, is what every call is answered with.
	status int
	code   string
	calls  []string
	// before happens when a batch has arrived, before it is looked at.
	before func()
}

type rrset struct {
	Name, Type    string
	SetIdentifier string       `xml:",omitempty"`
	TTL           int64        `xml:",omitempty"`
	Records       []value      `xml:"ResourceRecords>ResourceRecord,omitempty"`
	AliasTarget   *aliasTarget `xml:",omitempty"`
}

type value struct{ Value string }

func values(all ...string) []value {
	var out []value
	for _, v := range all {
		out = append(out, value{Value: v})
	}
	return out
}

type aliasTarget struct {
	HostedZoneID         string `xml:"HostedZoneId"`
	DNSName              string
	EvaluateTargetHealth bool
}

func (r rrset) key() string { return spelled(&r.Name) + r.Type }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/2013-04-01/")
	s.calls = append(s.calls, r.Method+" "+path)
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKID/") {
		fail(w, http.StatusForbidden, "MissingAuthenticationToken", "not signed")
		return
	}
	if s.code != "" {
		fail(w, s.status, s.code, "this is a test")
		return
	}
	switch {
	case r.Method == http.MethodPost && path == "hostedzone/"+zoneID+"/rrset":
		s.change(w, r)
	case path == "hostedzone/"+zoneID+"/rrset":
		s.list(w, r)
	case path == "hostedzone/"+zoneID:
		s.zone(w)
	case path == "change/C1":
		status := "INSYNC"
		if s.pending--; s.pending >= 0 {
			status = "PENDING"
		}
		write(w, "GetChangeResponse", changeInfo{ID: "/change/C1", Status: status, SubmittedAt: "2026-11-06T12:00:00Z"})
	default:
		fail(w, http.StatusNotFound, "NoSuchHostedZone", "No hosted zone found with ID")
	}
}

type changeInfo struct {
	XMLName     xml.Name `xml:"ChangeInfo"`
	ID          string   `xml:"Id"`
	Status      string
	SubmittedAt string
}

// change makes all changes of a batch or none. A deletion has to name what is there as it is there.
func (s *service) change(w http.ResponseWriter, r *http.Request) {
	if s.before != nil {
		s.before()
		s.before = nil
	}
	var batch struct {
		Changes []struct {
			Action string
			Record rrset `xml:"ResourceRecordSet"`
		} `xml:"ChangeBatch>Changes>Change"`
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = xml.Unmarshal(body, &batch)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "InvalidInput", err.Error())
		return
	}
	after := slices.Clone(s.records)
	for _, c := range batch.Changes {
		at := slices.IndexFunc(after, func(have rrset) bool { return have.key() == c.Record.key() })
		switch {
		case c.Action == "DELETE" && at < 0:
			invalid(w, "Tried to delete resource record set [name='%s', type='%s'] but it was not found", c.Record.Name, c.Record.Type)
			return
		case c.Action == "DELETE" && (!slices.Equal(after[at].Records, c.Record.Records) || after[at].TTL != c.Record.TTL):
			invalid(w, "Tried to delete resource record set [name='%s', type='%s'] but the values provided do not match the current values",
				c.Record.Name, c.Record.Type)
			return
		case c.Action == "DELETE":
			after = slices.Delete(after, at, at+1)
		case at >= 0:
			invalid(w, "Tried to create resource record set [name='%s', type='%s'] but it already exists", c.Record.Name, c.Record.Type)
			return
		case slices.ContainsFunc(after, func(have rrset) bool {
			return have.Type == "CNAME" && dns.CanonicalName(have.Name) == dns.CanonicalName(c.Record.Name)
		}):
			invalid(
				w,
				"RRSet of type %s with DNS name %s is not permitted because a conflicting RRSet of type CNAME",
				c.Record.Type,
				c.Record.Name,
			)
			return
		default:
			after = append(after, c.Record)
		}
	}
	s.records = after
	write(w, "ChangeResourceRecordSetsResponse", changeInfo{ID: "/change/C1", Status: "PENDING", SubmittedAt: "2026-11-06T12:00:00Z"})
}

// list begins at the name and type that are asked for, and goes on with whatever follows.
func (s *service) list(w http.ResponseWriter, r *http.Request) {
	all := slices.SortedFunc(slices.Values(s.records), func(a, b rrset) int { return strings.Compare(a.key(), b.key()) })
	start := dns.CanonicalName(r.URL.Query().Get("name")) + r.URL.Query().Get("type")
	all = slices.DeleteFunc(all, func(have rrset) bool { return have.key() < start })
	type sets struct {
		XMLName xml.Name `xml:"ResourceRecordSets"`
		Sets    []rrset  `xml:"ResourceRecordSet"`
	}
	most, err := strconv.Atoi(r.URL.Query().Get("maxitems"))
	if err != nil {
		invalid(w, "maxitems: %v", err)
		return
	}
	write(w, "ListResourceRecordSetsResponse", sets{Sets: all[:min(len(all), most)]})
}

func (s *service) zone(w http.ResponseWriter) {
	type config struct{ PrivateZone bool }
	type hosted struct {
		XMLName         xml.Name `xml:"HostedZone"`
		ID              string   `xml:"Id"`
		Name            string
		CallerReference string
		Config          config
	}
	type delegation struct {
		XMLName     xml.Name `xml:"DelegationSet"`
		NameServers []string `xml:"NameServers>NameServer"`
	}
	parts := []any{hosted{ID: "/hostedzone/" + zoneID, Name: "example.test.", CallerReference: "x", Config: config{PrivateZone: s.private}}}
	if !s.private {
		parts = append(parts, delegation{NameServers: []string{"ns1.example.net", "ns2.example.net"}})
	}
	write(w, "GetHostedZoneResponse", parts...)
}

func write(w http.ResponseWriter, name string, parts ...any) {
	_, _ = fmt.Fprintf(w, `<?xml version="1.0"?><%s xmlns="https://route53.amazonaws.com/doc/2013-04-01/">`, name)
	for _, p := range parts {
		out, err := xml.Marshal(p)
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(out)
	}
	_, _ = fmt.Fprintf(w, "</%s>", name)
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0"?><ErrorResponse xmlns="https://route53.amazonaws.com/doc/2013-04-01/">`+
		`<Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>1</RequestId></ErrorResponse>`, code, message)
}

func invalid(w http.ResponseWriter, format string, args ...any) {
	w.WriteHeader(http.StatusBadRequest)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0"?><InvalidChangeBatch xmlns="https://route53.amazonaws.com/doc/2013-04-01/">`+
		`<Messages><Message>%s</Message></Messages><RequestId>1</RequestId></InvalidChangeBatch>`, fmt.Sprintf(format, args...))
}

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

func api(typ v1alpha1.RecordType, ttl time.Duration, values ...string) dnsrecords.Set {
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
		was, want dnsrecords.Set
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

// TestConflict: a change of others to the record, before the look at it or between that and the batch, is not overwritten.
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
		{"an alias", &service{records: []rrset{{
			Name: "api.example.test.", Type: "A", AliasTarget: &aliasTarget{HostedZoneID: "Z2", DNSName: "lb.example.net."},
		}}}, false, "alias of lb.example.net."},
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

// TestAuthoritative: the API says whether the change is everywhere, and the zone's servers are asked themselves.
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

// TestPrivateZone: its servers answer within its networks only, so that what is asked has to be its clients' resolvers.
func TestPrivateZone(t *testing.T) {
	s := &service{private: true, records: []rrset{{Name: "api.example.test.", Type: "A", TTL: 60, Records: values("192.0.2.1")}}}
	z := open(t, s, &dnsrecords.Client{})
	answers, err := z.Authoritative(t.Context(), "api.example.test", v1alpha1.RecordA)
	if err != nil || len(answers) != 1 || answers[0].Server.Addr != "" || answers[0].Err != nil {
		t.Errorf("%v, %v", answers, err)
	}
}
