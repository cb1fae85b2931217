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

// recordMoves are the records of a list on their way.
func (l live) recordMoves(ctx context.Context, all []v1alpha1.RecordSpec) ([]*dnsrecords.Move, error) {
	memory := migration.RecordMemory{Client: l.Cluster, Name: l.spec.Name}
	out, err := provider.Moves(ctx, all, &dnsrecords.Client{}, migration.Secrets(l.Cluster), memory)
	for _, m := range out {
		m.Patience, m.Now = l.spec.GateWait, l.Now
	}
	return out, err
}

// pointToNew takes records over to the values of the new network: all of them at once, each by way of both.
func pointToNew(all []*dnsrecords.Move) []engine.Group {
	return slices.Concat(
		dnsrecords.Together("time to live", parallel, all, (*dnsrecords.Move).Lower),
		dnsrecords.Together("both", parallel, all, (*dnsrecords.Move).Widen),
		dnsrecords.Together("new", parallel, all, (*dnsrecords.Move).Narrow),
	)
}

func (p *Planner) moveRecords() []engine.Group { return pointToNew(p.Records) }

// moveRecordsBack gives records the values that they had.
func (p *Planner) moveRecordsBack() []engine.Group {
	if !p.Whole() {
		return nil
	}
	return dnsrecords.Together("back", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.Move).Back)
}

// restoreTTL gives records their time to live back.
func (p *Planner) restoreTTL() []engine.Group {
	return dnsrecords.Together("time to live", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.Move).Restore)
}
