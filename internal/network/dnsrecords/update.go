package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// primaryTimeout allows the primary to write an update to disk.
	primaryTimeout = 10 * time.Second
	// fudge is by how many seconds the clocks may differ, as RFC 8945 recommends.
	fudge = 300
)

// Dynamic changes records by updates that are sent to the zone's primary (RFC 2136).
type Dynamic struct {
	// Server is host:port of the primary.
	Server string
	Zone   string
	// Key signs what is sent, and answers have to be signed by it. Without one nothing is signed.
	Key    *TSIGKey
	Client *Client
}

var (
	_ Provider = (*Dynamic)(nil)
	_ Texter   = (*Dynamic)(nil)
	_ Prover   = (*Dynamic)(nil)
)

func (d *Dynamic) Get(ctx context.Context, name string, typ v1alpha1.RecordType) (RecordSet, error) {
	r, err := d.ask(ctx, name, rrtype(typ))
	if err != nil {
		return RecordSet{}, d.explain(Title(name, typ), err)
	}
	return setOf(name, typ, r.Answer)
}

// Exists sends an update with a prerequisite alone: those see the zone without wildcards (RFC 2136,
// section 3.2; RFC 4592, section 2.2.1).
func (d *Dynamic) Exists(ctx context.Context, now RecordSet) (bool, error) {
	m := new(dns.Msg).SetUpdate(dns.Fqdn(d.Zone))
	m.Used(now.rrs())
	r, err := d.send(ctx, m)
	if err == nil {
		err = refusal(r)
	}
	var code *rcodeError
	if errors.As(err, &code) && (code.rcode == dns.RcodeNXRrset || code.rcode == dns.RcodeNameError) {
		return false, nil
	}
	if err != nil {
		return false, d.explain(now.String(), err)
	}
	return true, nil
}

func (d *Dynamic) Texts(ctx context.Context, _, name string) ([]string, error) {
	if !dns.IsSubDomain(dns.CanonicalName(d.Zone), dns.CanonicalName(name)) {
		return nil, nil
	}
	r, err := d.ask(ctx, name, dns.TypeTXT)
	if errors.Is(err, errLame) { // it is in a zone below
		return nil, nil
	}
	if err != nil {
		return nil, d.explain(titleTXT(name), err)
	}
	return textsOf(name, r.Answer), nil
}

func titleTXT(name string) string { return Title(name, "TXT") }

// Replace has was as a prerequisite (RFC 2136, section 2.4.2), which the server checks with the
// change. Prerequisites don't cover TTLs.
func (d *Dynamic) Replace(ctx context.Context, was, want RecordSet) error {
	if err := d.alone(ctx, was, want); err != nil {
		return err
	}
	r, err := d.send(ctx, d.update(was, want))
	if err == nil {
		err = refusal(r)
	}
	var code *rcodeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &code) && (code.rcode == dns.RcodeNXRrset || code.rcode == dns.RcodeYXRrset || code.rcode == dns.RcodeYXDomain):
		if now, err := d.Get(ctx, was.Name, was.Type); err == nil {
			return Conflict(was, &now)
		}
		return Conflict(was, nil)
	}
	return d.explain(want.String(), err)
}

// update names every obstacle as a prerequisite: servers silently skip an address beside a CNAME,
// and a CNAME beside anything (section 3.4.2.2). A message is atomic (section 3.7), so a change of
// type leaves no gap.
func (d *Dynamic) update(was, want RecordSet) *dns.Msg {
	m := new(dns.Msg).SetUpdate(dns.Fqdn(d.Zone))
	nothing := &dns.ANY{Hdr: dns.RR_Header{Name: want.Name, Rrtype: want.rrtype()}}
	former := &dns.ANY{Hdr: dns.RR_Header{Name: was.Name, Rrtype: was.rrtype()}}
	alias := &dns.ANY{Hdr: dns.RR_Header{Name: want.Name, Rrtype: dns.TypeCNAME}}
	switch {
	case len(was.Values) > 0:
		m.Used(was.rrs())
	case want.Type == v1alpha1.RecordCNAME:
		m.NameNotUsed([]dns.RR{nothing})
	default:
		m.RRsetNotUsed([]dns.RR{nothing, alias})
	}
	if len(was.Values) > 0 {
		if was.Type != want.Type && want.Type == v1alpha1.RecordCNAME {
			m.RRsetNotUsed(besides(was))
		}
		m.RemoveRRset([]dns.RR{former})
	}
	m.Insert(want.rrs())
	return m
}

// besides are usual types beside a future CNAME.
func besides(was RecordSet) []dns.RR {
	var all []dns.RR
	for _, typ := range []uint16{
		dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeNS, dns.TypeSRV, dns.TypeCAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeSSHFP,
		dns.TypeTLSA, dns.TypeNAPTR, dns.TypePTR, dns.TypeLOC, dns.TypeSPF, dns.TypeDS,
	} {
		if typ != was.rrtype() {
			all = append(all, &dns.ANY{Hdr: dns.RR_Header{Name: was.Name, Rrtype: typ}})
		}
	}
	return all
}

// alone fails for a future CNAME with other records: the server would remove the old one and skip
// the new one silently.
func (d *Dynamic) alone(ctx context.Context, was, want RecordSet) error {
	if len(was.Values) == 0 || was.Type == want.Type || want.Type != v1alpha1.RecordCNAME {
		return nil
	}
	r, err := d.ask(ctx, was.Name, dns.TypeANY)
	if err != nil {
		return d.explain(was.String(), err)
	}
	for _, rr := range r.Answer {
		switch h := rr.Header(); {
		case dns.CanonicalName(h.Name) != was.Name, h.Rrtype == was.rrtype():
		case slices.Contains([]uint16{dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeKEY}, h.Rrtype): // RFC 4034, section 2.5
		default:
			return &Error{
				Record: want.String(), Problem: fmt.Sprintf("the name has %s as well, beside which no CNAME can stand", Title(was.Name,
					v1alpha1.RecordType(dns.TypeToString[h.Rrtype]))),
				Hint: "delete it, or keep the type",
			}
		}
	}
	return nil
}

// Authoritative implements Provider: the primary, and each server that it names for the zone.
func (d *Dynamic) Authoritative(ctx context.Context, name string, typ v1alpha1.RecordType) ([]Answer, error) {
	first := Answer{Server: NameServer{Name: "primary", Addr: d.Server}}
	first.Set, first.Err = d.Get(ctx, name, typ)
	servers, err := d.servers(ctx)
	if err != nil {
		return nil, d.explain(Title(name, typ), err)
	}
	return append([]Answer{first}, d.Client.Ask(ctx, servers, name, typ)...), nil
}

func (d *Dynamic) servers(ctx context.Context) ([]NameServer, error) {
	r, err := d.ask(ctx, d.Zone, dns.TypeNS)
	if err != nil {
		return nil, err
	}
	var all []NameServer
	for _, host := range nameServers(d.Zone, r.Answer) {
		at, err := d.locate(ctx, host)
		if err != nil {
			return nil, err
		}
		for _, s := range at {
			if s.Addr != d.Server {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// locate asks the primary, which knows best, for servers in its zone.
func (d *Dynamic) locate(ctx context.Context, host string) ([]NameServer, error) {
	if !dns.IsSubDomain(dns.CanonicalName(d.Zone), host) {
		return d.Client.Locate(ctx, []string{host})
	}
	var all []NameServer
	for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		r, err := d.ask(ctx, host, rrtype)
		if errors.Is(err, errLame) { // it is in a zone below
			return d.Client.Locate(ctx, []string{host})
		}
		if err != nil {
			return nil, err
		}
		for _, a := range addresses(r.Answer) {
			all = append(all, d.Client.at(host, a))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("name server %s has no address", host)
	}
	return all, nil
}

// ask queries the primary, signed as updates are: some answer to no one else.
func (d *Dynamic) ask(ctx context.Context, name string, rrtype uint16) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(dns.CanonicalName(name), rrtype)
	m.RecursionDesired = false
	r, err := d.send(ctx, m)
	switch {
	case err != nil:
		return nil, err
	case r.Rcode == dns.RcodeNameError && r.Authoritative:
		return r, nil
	}
	if err := refusal(r); err != nil {
		return nil, err
	}
	if !r.Authoritative {
		return nil, errLame
	}
	return r, asked(m, r)
}

func (d *Dynamic) send(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	c := &dns.Client{Net: "tcp", Timeout: primaryTimeout}
	if d.Key != nil {
		c.TsigSecret = map[string]string{d.Key.name: d.Key.secret}
		m.SetTsig(d.Key.name, d.Key.algorithm, fudge, time.Now().Unix())
	}
	r, _, err := c.ExchangeContext(ctx, m, d.Server)
	switch {
	case r != nil && r.Rcode == dns.RcodeNotAuth && r.IsTsig() != nil && r.IsTsig().Error != 0:
		return nil, &keyError{code: int(r.IsTsig().Error)} // such answers are not signed, or cannot be
	case err != nil:
		return nil, err
	case d.Key != nil && r.IsTsig() == nil && r.Rcode == dns.RcodeSuccess:
		return nil, errUnsigned
	}
	return r, nil
}

var errUnsigned = errors.New("its answer is not signed")

type keyError struct{ code int }

func (e *keyError) Error() string { return "it answered " + dns.RcodeToString[e.code] }

func refusal(r *dns.Msg) error {
	if r.Rcode != dns.RcodeSuccess {
		return &rcodeError{rcode: r.Rcode}
	}
	return nil
}

func (d *Dynamic) explain(record string, err error) error {
	var key *keyError
	var code *rcodeError
	problem := fmt.Sprintf("primary %s of %s: %v", d.Server, dns.Fqdn(d.Zone), err)
	var hint string
	switch {
	case errors.As(err, &key):
		problem = fmt.Sprintf("primary %s refused %s: %v", d.Server, d.Key, err)
		hint = "compare name, algorithm and secret of the key with those of the server"
		if key.code == dns.RcodeBadTime {
			hint = "set the clocks of the server and of the machine that runs replumb"
		}
	case errors.Is(err, dns.ErrSig), errors.Is(err, dns.ErrTime), errors.Is(err, dns.ErrKeyAlg), errors.Is(err, errUnsigned):
		hint = "something between replumb and the server changes or answers messages, or the server has another key of that name"
	case errors.As(err, &code) && code.rcode == dns.RcodeRefused:
		hint = "allow it at the server: updates of this record by the key (update-policy or allow-update), and questions (allow-query)"
	case errors.As(err, &code) && (code.rcode == dns.RcodeNotAuth || code.rcode == dns.RcodeNotZone), errors.Is(err, errLame):
		hint = "server has to be the primary of zone, and the name has to be in it"
	case errors.As(err, &code) && code.rcode == dns.RcodeNotImplemented:
		hint = "the server takes no dynamic updates; use provider manual"
	default:
		return engine.NotYet("%s: %w", record, fmt.Errorf("primary %s: %w", d.Server, err))
	}
	return &Error{Record: record, Problem: problem, Hint: hint, Err: err}
}
