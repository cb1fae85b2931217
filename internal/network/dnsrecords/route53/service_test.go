package route53

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

const zoneID = "Z1D633PJN98FT9"

// service plays Route 53 over HTTP. What it answers, and refuses, is as in its API reference; that
// the real one does so cannot be tested here.
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
	// balancers are the hosted zones of load balancers, by their names.
	balancers map[string]string
	// batches counts those that were taken.
	batches int
	// before happens when a batch has arrived, before it is looked at.
	before func()
}

type rrset struct {
	Name, Type    string
	SetIdentifier string       `xml:",omitempty"`
	Weight        *int64       `xml:",omitempty"`
	TTL           int64        `xml:",omitempty"`
	Records       []value      `xml:"ResourceRecords>ResourceRecord,omitempty"`
	AliasTarget   *aliasTarget `xml:",omitempty"`
}

// equal reports whether a deletion names a record as it is.
func (r rrset) equal(other rrset) bool {
	one, two := r.AliasTarget, other.AliasTarget
	return slices.Equal(r.Records, other.Records) && r.TTL == other.TTL && r.SetIdentifier == other.SetIdentifier &&
		(one == nil && two == nil || one != nil && two != nil && *one == *two)
}

// wrongAlias is what Route 53 says of an alias that it does not take.
func (s *service) wrongAlias(r rrset) string {
	a := r.AliasTarget
	switch {
	case a == nil:
		return ""
	case r.TTL != 0 || len(r.Records) > 0:
		return "Invalid request: Expected exactly one of [AliasTarget, all of [TTL, and ResourceRecords], or TrafficPolicyInstanceId]"
	case s.balancers[a.DNSName] == "":
		return fmt.Sprintf("Tried to create an alias that targets %s, type %s in zone %s, but that target was not found",
			a.DNSName, r.Type, a.HostedZoneID)
	case s.balancers[a.DNSName] != a.HostedZoneID:
		return fmt.Sprintf("Tried to create an alias that targets %s, type %s in zone %s, but the alias target name does not lie "+
			"within the target zone", a.DNSName, r.Type, a.HostedZoneID)
	}
	return ""
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
		case c.Action == "DELETE" && !after[at].equal(c.Record):
			invalid(w, "Tried to delete resource record set [name='%s', type='%s'] but the values provided do not match the current values",
				c.Record.Name, c.Record.Type)
			return
		case c.Action == "DELETE":
			after = slices.Delete(after, at, at+1)
		case at >= 0:
			invalid(w, "Tried to create resource record set [name='%s', type='%s'] but it already exists", c.Record.Name, c.Record.Type)
			return
		case s.wrongAlias(c.Record) != "":
			invalid(w, "%s", s.wrongAlias(c.Record))
			return
		case slices.ContainsFunc(after, func(have rrset) bool {
			return c.Record.Type == "CNAME" && dns.CanonicalName(have.Name) == dns.CanonicalName(c.Record.Name)
		}):
			invalid(w, "RRSet of type CNAME with DNS name %s is not permitted as it conflicts with other records with the same DNS name",
				c.Record.Name)
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
	s.records, s.batches = after, s.batches+1
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
