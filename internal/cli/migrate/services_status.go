package migrate

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/operator/overlapset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// servicePage is what status prints of a migration of Services.
type servicePage struct {
	statusHead `json:",inline"`
	Tiers      []v1alpha1.TierStatus `json:"tiers,omitempty"`
	Services   []serviceLine         `json:"services"`
	// Holds names what still keeps the ranges that are to go.
	Holds []string `json:"holds,omitempty"`
	// Late are Services that were made in the target range since the migration began.
	Late []servicecidr.Late `json:"late,omitempty"`
	// Clients still use old addresses; nodes had no room to report MoreClients.
	Clients     []lossguard.Client `json:"clients,omitempty"`
	MoreClients int                `json:"moreClients,omitempty"`

	// Overlap is how what keeps bridges in step between commands fares.
	Overlap *overlapset.State `json:"overlap,omitempty"`

	// unseen says why clients are not known.
	unseen string
	// command is what replumb is called.
	command string
}

type serviceLine struct {
	Service string            `json:"service"`
	Old     string            `json:"old,omitempty"`
	New     string            `json:"new,omitempty"`
	State   servicecidr.Place `json:"state"`
	Reason  string            `json:"reason,omitempty"`
}

// inTarget is the state of a Service in the target range past the point of no return, whether it
// moved there or was made there.
const inTarget servicecidr.Place = "in-target"

func (j serviceJob) status(ctx context.Context) (page, error) {
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	st := j.Migration.Status
	doc := &servicePage{statusHead: headOf(j, len(survey.Pending()) > 0, j.command), Services: []serviceLine{}, command: j.command}
	doc.Counts = survey.Counts()
	finished := st.Phase == v1alpha1.PhaseFinished
	past := finished || st.PointOfNoReturnPassed
	if past {
		// Which Services had moved can no longer be seen on them; how many was written down.
		doc.Counts.Moved, doc.Counts.Total = st.Counts.Moved, st.Counts.Moved+len(survey.Pending())
	}
	if !finished && st.Phase != v1alpha1.PhaseRolledBack {
		doc.Holds = survey.Holds()
		if !past {
			doc.Late = survey.Late() // what a rollback could take back
		}
		if len(survey.Tiers) > 2 { // more than the default and the cluster's own
			doc.Tiers = survey.TierCounts(nil)
		}
		if err := doc.oldClients(ctx, j); err != nil {
			return nil, err
		}
		if doc.Overlap, err = j.Overlap().State(ctx); err != nil {
			return nil, err
		}
	}
	doc.list(survey, past)
	doc.summary = doc.summarize()
	return doc, nil
}

// list has a line for each Service. Past the point of no return those in the target range count as
// moved.
func (d *servicePage) list(survey *servicecidr.Survey, past bool) {
	for _, e := range slices.Concat(survey.Moves, survey.Pins, survey.Stays) {
		if past && e.InTarget() {
			d.Counts.Stays--
			d.Services = append(d.Services, serviceLine{Service: e.Key().String(), New: e.Old.String(), State: inTarget})
			continue
		}
		line := serviceLine{Service: e.Key().String(), State: e.Place, Reason: e.Reason.String()}
		if e.Old.IsValid() {
			line.Old = e.Old.String()
		}
		if e.New.IsValid() {
			line.New = e.New.String()
		}
		d.Services = append(d.Services, line)
	}
}

func (d *servicePage) summarize() string {
	if d.Phase == v1alpha1.PhaseFinished {
		return fmt.Sprintf("%s moved and without the old address, %d stayed", english.Plural(d.Counts.Moved, "Service", ""), d.Counts.Stays)
	}
	return fmt.Sprintf("%d of %d moved, %d bridged, %d pinned, %d stay",
		d.Counts.Moved, d.Counts.Total, d.Counts.Bridged, d.Counts.Pinned, d.Counts.Stays)
}

func (d *servicePage) table(w io.Writer, rows int) error {
	var all [][]string
	for _, s := range d.Services {
		all = append(all, []string{s.Service, s.Old, s.New, string(s.State), s.Reason})
	}
	err := boundedTable(w, rows, []string{"SERVICE", "OLD", "NEW", "STATE", "REASON"}, all, func(row []string) bool {
		return slices.Contains([]servicecidr.Place{servicecidr.Moved, servicecidr.Stays, inTarget}, servicecidr.Place(row[3]))
	})
	if err != nil {
		return err
	}
	bounded(w, rows, d.Holds, func(h string) { fmt.Fprintf(w, "holds the old range: %s\n", h) })
	lateLines(w, d.Late)
	bounded(w, rows, d.Tiers, func(t v1alpha1.TierStatus) { fmt.Fprintf(w, "tier %s: %d of %d moved\n", t.Name, t.Moved, t.Total) })
	d.overlapLine(w)
	return d.clientTable(w, rows)
}

// overlapLine prints the state of the overlap program, if it or bridges are there.
func (d *servicePage) overlapLine(w io.Writer) {
	bridges := d.Counts.Bridged+d.Counts.Moved > 0
	if d.Overlap == nil || !d.Overlap.There && !bridges {
		return
	}
	fmt.Fprintf(w, "overlap: %s\n", printable.Line(d.Overlap.String()))
	if bridges && (d.Overlap.Enabled || d.Overlap.There) && !d.Overlap.Well() {
		fmt.Fprintf(w,
			"warning: bridges are not kept in step with their Services; %s apply -f FILE repairs what does so, or says what is wrong\n",
			d.command)
	}
}
