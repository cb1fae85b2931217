package dnsrecords

import (
	"context"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Manual leaves changes to people, and looks at what the servers of the zone say.
type Manual struct {
	Client *Client
}

var (
	_ Provider = (*Manual)(nil)
	_ Guider   = (*Manual)(nil)
	_ Texter   = (*Manual)(nil)
)

func (m *Manual) Get(ctx context.Context, name string, typ v1alpha1.RecordType) (RecordSet, error) {
	answers, err := m.Authoritative(ctx, name, typ)
	if err != nil {
		return RecordSet{}, err
	}
	for _, a := range answers {
		if a.Err != nil {
			return RecordSet{}, engine.NotYet("%s: %s does not answer: %w", Title(name, typ), a.Server, a.Err)
		}
		if first := answers[0]; !a.Set.Same(first.Set) || a.Set.TTL != first.Set.TTL {
			return RecordSet{}, engine.NotYet("%s: %s says %s, and %s says %s",
				Title(name, typ), first.Server, describe(first.Set), a.Server, describe(a.Set))
		}
	}
	return answers[0].Set, nil
}

func (m *Manual) Replace(_ context.Context, was, want RecordSet) error {
	return engine.NotYet("%s is not yet as wanted: it is %s, and has to be %s", was, describe(was), describe(want))
}

func (m *Manual) Authoritative(ctx context.Context, name string, typ v1alpha1.RecordType) ([]Answer, error) {
	servers, err := m.Client.Find(ctx, name)
	if err != nil {
		return nil, engine.NotYet("%s: %w", Title(name, typ), err)
	}
	if len(servers) == 0 {
		return nil, engine.NotYet("%s: the zone has no name servers", Title(name, typ))
	}
	return m.Client.Ask(ctx, servers, name, typ), nil
}

// Texts implements Texter: all that any server of the zone says.
func (m *Manual) Texts(ctx context.Context, record, name string) ([]string, error) {
	zone, err := m.Client.zone(ctx, record)
	if err != nil {
		return nil, engine.NotYet("%s: %w", titleTXT(name), err)
	}
	if !dns.IsSubDomain(zone, dns.CanonicalName(name)) {
		return nil, nil
	}
	servers, err := m.Client.Find(ctx, record)
	if err != nil {
		return nil, engine.NotYet("%s: %w", titleTXT(name), err)
	}
	var all []string
	for _, s := range servers {
		r, err := m.Client.query(ctx, s.Addr, name, dns.TypeTXT, false)
		if err != nil {
			return nil, engine.NotYet("%s: %s does not answer: %w", titleTXT(name), s, err)
		}
		all = both(all, textsOf(name, r.Answer))
	}
	return all, nil
}

func (m *Manual) Guide(was, want RecordSet) string {
	lines := []string{"Change the " + want.String() + " where its zone is kept."}
	if len(want.Values) == 0 {
		lines = append(lines, "It has to go: delete it.")
	} else {
		lines = append(lines, fmt.Sprintf("It has to be, with a time to live of %d seconds:", seconds(want.TTL)))
		for _, v := range want.Values {
			lines = append(lines, "    "+v)
		}
	}
	lines = append(lines, fmt.Sprintf("It is %s. The run goes on when every server of the zone says so.", describe(was)))
	return strings.Join(lines, "\n")
}
