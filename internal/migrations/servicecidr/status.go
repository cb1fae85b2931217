package servicecidr

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// StatusBody is what status prints of a migration of Services.
type StatusBody struct {
	Tiers    []v1alpha1.TierStatus `json:"tiers,omitempty"`
	Services []StatusLine          `json:"services"`
	Holds    []string              `json:"holds,omitempty"`
	// Late are Services that were made in the target range since the migration began.
	Late []CreatedDuring `json:"late,omitempty"`
	// Clients still use old addresses, as far as nodes report; they had no room for MoreClients.
	Clients     []lossguard.OldAddressClient `json:"clients,omitempty"`
	MoreClients int                          `json:"moreClients,omitempty"`

	Overlap *overlapset.State `json:"overlap,omitempty"`
	// Relay is the pod on a control plane that etcd is reached through.
	Relay *RelayStatus `json:"relay,omitempty"`

	unseen string
	// unmoved is how many come first in Holds that the table has as well.
	unmoved int
}

// StatusLine is where one Service stands.
type StatusLine struct {
	Service string            `json:"service"`
	Old     string            `json:"old,omitempty"`
	New     string            `json:"new,omitempty"`
	State   services.Position `json:"state"`
	Reason  string            `json:"reason,omitempty"`
}

// inTarget is the state of Services in the target range after the point of no return.
const inTarget services.Position = "in-target"

// oldGone is the state of Services that have moved and do not answer at their old address, as they
// have to until finish.
const oldGone services.Position = "old-address-gone"

func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	inventory, err := j.LoadInventory(ctx)
	if err != nil {
		return doc, err
	}
	st := j.Migration.Status
	doc.Pending, doc.Counts = len(inventory.Pending()) > 0, inventory.Counts()
	finished := st.Phase == v1alpha1.PhaseFinished
	past := finished || st.PointOfNoReturnPassed
	if past {
		// How many Services had moved was written down; which can no longer be seen.
		doc.Counts.Moved, doc.Counts.Total = st.Counts.Moved, st.Counts.Moved+len(inventory.Pending())
	}
	body := &StatusBody{Services: []StatusLine{}}
	if !st.Phase.Over() {
		unmoved := ranges.Unmoved(inventory)
		body.unmoved, body.Holds = len(unmoved), slices.Concat(unmoved, ranges.KeepersOfOldRanges(inventory))
		if !past {
			body.Late = FindCreatedDuring(inventory) // what a rollback could take back
		}
		if len(inventory.Tiers) > 2 { // more than the default and the cluster's own
			body.Tiers = inventory.TierCounts(nil)
		}
		if err := body.oldClients(ctx, j); err != nil {
			return doc, err
		}
		if body.Overlap, err = j.Overlap().State(ctx); err != nil {
			return doc, err
		}
	}
	if body.Relay, err = j.relayStatus(ctx); err != nil {
		return doc, err
	}
	doc.Counts.Stays -= body.list(inventory, past)
	doc.Body, doc.Text = body, body.text(doc.Counts)
	doc.Summary = fmt.Sprintf("%d of %d moved, %d bridged, %d pinned, %d stay",
		doc.Counts.Moved, doc.Counts.Total, doc.Counts.Bridged, doc.Counts.Pinned, doc.Counts.Stays)
	if finished {
		doc.Summary = fmt.Sprintf("%s moved and without the old address, %d stayed",
			english.Plural(doc.Counts.Moved, "Service", ""), doc.Counts.Stays)
	}
	return doc, nil
}

// list counts Services in the target range as moved, once past the point of no return.
func (b *StatusBody) list(inventory *services.Inventory, past bool) (arrived int) {
	for _, e := range slices.Concat(inventory.Moves, inventory.Pins, inventory.Stays) {
		if past && e.InTarget() {
			arrived++
			b.Services = append(b.Services, StatusLine{Service: e.Key().String(), New: e.Old.String(), State: inTarget})
			continue
		}
		line := StatusLine{Service: e.Key().String(), State: e.Position, Reason: e.Reason.String()}
		if !past && e.OldIsGone() {
			line.State, line.Reason = oldGone, "neither it nor a bridge answers at "+e.Old.String()
		}
		if e.Old.IsValid() {
			line.Old = e.Old.String()
		}
		if e.New.IsValid() {
			line.New = e.New.String()
		}
		b.Services = append(b.Services, line)
	}
	return arrived
}

func (b *StatusBody) text(counts v1alpha1.Counts) []migration.TextBlock {
	table := migration.TextBlock{Head: []string{"SERVICE", "OLD", "NEW", "STATE", "REASON"}, Settled: func(row []string) bool {
		return slices.Contains([]services.Position{services.Moved, services.Stays, inTarget}, services.Position(row[3]))
	}}
	for _, s := range b.Services {
		table.Rows = append(table.Rows, []string{s.Service, s.Old, s.New, string(s.State), s.Reason})
	}
	tiers := migration.TextBlock{}
	for _, t := range b.Tiers {
		tiers.Lines = append(tiers.Lines, fmt.Sprintf("tier %s: %d of %d moved", t.Name, t.Moved, t.Total))
	}
	return append([]migration.TextBlock{
		table, migration.Holding(b.holding()),
		{Lines: CreatedDuringLines(b.Late), All: true},
		tiers,
		{Lines: b.overlapLines(counts), All: true},
		{Lines: b.goneLines(), All: true},
		{Lines: b.Relay.lines(), All: true},
	}, b.clientText()...)
}

// holding is Holds without what the table says already.
func (b *StatusBody) holding() []string {
	beside := b.Holds[b.unmoved:]
	if b.unmoved == 0 {
		return beside
	}
	unmoved := fmt.Sprintf("%s above that %s not moved", english.Plural(b.unmoved, "Service", ""), english.PluralWord(b.unmoved, "has", "have"))
	return append([]string{unmoved}, beside...)
}

// goneLines warn of old addresses at which clients are refused by now.
func (b *StatusBody) goneLines() []string {
	n := 0
	for _, s := range b.Services {
		if s.State == oldGone {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf(
		"warning: old addresses of %s do not answer, as somebody has taken them off, or removed their bridges; the Deployment overlap "+
			"puts addresses back, and replumb resume NAME makes bridges again as well", english.Plural(n, "Service", ""),
	)}
}

// overlapLines is empty without bridges and without a follower.
func (b *StatusBody) overlapLines(counts v1alpha1.Counts) (lines []string) {
	bridges := counts.Bridged+counts.Moved > 0
	if b.Overlap == nil || !b.Overlap.There && !bridges {
		return nil
	}
	lines = append(lines, "overlap: "+printable.Line(b.Overlap.String()))
	if bridges && (b.Overlap.Enabled || b.Overlap.There) && !b.Overlap.Well() {
		lines = append(lines,
			"warning: bridges are not kept in step with their Services; replumb resume NAME repairs what does so, or says what is wrong")
	}
	return lines
}
