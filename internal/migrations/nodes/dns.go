package nodes

import (
	"context"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/network/dnsrecords/provider"
)

// moves are the records of a list on their way.
func (t Tools) moves(ctx context.Context, s Spec, all []v1alpha1.RecordSpec) ([]*dnsrecords.Move, error) {
	out, err := provider.Moves(
		ctx,
		all,
		&dnsrecords.Client{},
		migration.Secrets(t.Cluster),
		migration.RecordMemory{Client: t.Cluster, Name: s.Name},
	)
	for _, m := range out {
		m.Patience, m.Now = s.GateWait, t.Now
	}
	return out, err
}

// looked asks for every record whether it can be moved. What it finds is a finding.
func looked(ctx context.Context, all []*dnsrecords.Move) map[string]error {
	problems := map[string]error{}
	for _, m := range all {
		if _, err := m.Look(ctx); err != nil {
			problems[m.Title()] = err
		}
	}
	return problems
}

// traffic takes names over to new load balancers: all of them at once, each by way of both.
func traffic(all []*dnsrecords.Move) []engine.Group {
	var groups []engine.Group
	for _, part := range []struct {
		title string
		steps func(*dnsrecords.Move) []engine.Step
	}{
		{"time to live", (*dnsrecords.Move).Lower}, {"both", (*dnsrecords.Move).Widen}, {"new", (*dnsrecords.Move).Narrow},
	} {
		groups = append(groups, dnsrecords.Together(part.title, parallel, all, part.steps)...)
	}
	return groups
}

// trafficBack takes names back to where they led.
func (p *Planner) trafficBack() []engine.Group {
	if !p.Whole() {
		return nil
	}
	return dnsrecords.Together("back", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.Move).Back)
}

// restoreTTL gives records their time to live back.
func (p *Planner) restoreTTL() []engine.Group {
	return dnsrecords.Together("time to live", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.Move).Restore)
}
