package podcidr

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
)

// Kind describes migrations of pods.
func Kind() migration.Description {
	return migration.Description{
		Field: "podCIDR", Title: "Pods", Checks: findings.Describe(Checks()), Examples: "pod-cidr",
		Apply: ApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "pods", Does: "moves pods (spec.podCIDR)", Roles: Roles(),
		Words: words(),
		Set: migration.SetPlace{Order: 2, Moves: "pods", Takes: func(m *v1alpha1.MigrationSpec) []migration.TakenRanges {
			return []migration.TakenRanges{
				{Field: "spec.podCIDR.to", Ranges: m.PodCIDR.To},
				{Field: "spec.podCIDR.networks", Ranges: m.PodCIDR.Networks, Named: true},
			}
		}},
		Report: func(m *v1alpha1.Migration) migration.Report {
			s := m.Spec.PodCIDR
			return migration.Report{Kind: "Pods", From: s.From, To: s.To, Subject: "The pods", Did: "moved"}
		},
		Targets: func(s *v1alpha1.MigrationSpec) migration.Targets { return migration.Targets{Pods: s.PodCIDR.To} },
	}
}

func words() migration.Words {
	return migration.Words{
		Counted: "pods",
		Return:  "to return to the old range of pods, make a new migration with the old range as spec.podCIDR.to",
	}
}

func (j *Job) About() migration.About {
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: ApplyPhases(),
		GoBack:   "Restart every pod that " + j.Spec.Name + " moved, so that it has an old address again?",
		Applied:  "pods have addresses of the new range",
		WentBack: "every pod has an address of the old range",
		Finished: "finished: the old range is empty and free",
		Return:   words().Return,
		Rights:   "pods",
	}
}

func (*Job) Describe(p Plans) migration.Details {
	counts := p.Counts()
	d := migration.Details{
		Summary: fmt.Sprintf("%s to move (%d moved)", english.Plural(counts.Total, "pod", ""), counts.Moved),
	}
	if p.Shared().Agents == nil {
		d.Text = append(d.Text, migration.Unproven("pods"))
	}
	kept := migration.TextBlock{}
	for _, r := range p.Kept() {
		kept.Lines = append(kept.Lines, fmt.Sprintf("keeps its address: pod %s (%s)", r.Pod, r.Reason))
	}
	d.Text = append(d.Text, kept)
	return d
}

func (j *Job) Applied(p Plans) migration.ApplyResult {
	counts := p.Counts()
	moved := english.Plural(counts.Moved, "pod", "")
	if j.Until != "" {
		return migration.Stopped(j.Until, "%s moved, %d not", moved, counts.Total-counts.Moved)
	}
	return migration.ApplyResult{
		Text: []migration.TextBlock{{Lines: []string{moved + " moved; nothing has an old address"}}},
		Hint: migration.NextHint(j.Spec.Name),
	}
}

func (*Job) PreviewFinish(_ context.Context, p Plans) (migration.FinishPreview, error) {
	return migration.FinishPreview{
		Question: fmt.Sprintf("The old range %v will be given up, and there is no way back. Finish?", p.Shared().Inventory.Spec.From),
	}, nil
}

// StatusBody is what status prints of a migration of pods.
type StatusBody struct {
	Ranges []StatusLine `json:"ranges"`
	// Holds names what still has an address of the ranges that are to go.
	Holds []string `json:"holds,omitempty"`
}

// StatusLine is where one range stands.
type StatusLine struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Old and New are how many pods have an address of from, and of to.
	Old int `json:"old"`
	New int `json:"new"`
	// State says from which of them new pods get their addresses.
	State podmove.Position `json:"state"`
}

func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	strategy, err := j.Inventory(ctx)
	if err != nil {
		return doc, err
	}
	survey := strategy.Shared()
	body := &StatusBody{Ranges: []StatusLine{}}
	table := migration.TextBlock{Head: []string{"FROM", "PODS", "TO", "PODS", "STATE"}, All: true}
	for _, r := range strategy.Ranges() {
		line := StatusLine{
			From: r.From.String(), To: r.To.String(), State: r.Place,
			Old: len(survey.PodsIn([]netip.Prefix{r.From})), New: len(survey.PodsIn([]netip.Prefix{r.To})),
		}
		body.Ranges = append(body.Ranges, line)
		table.Rows = append(table.Rows, []string{line.From, strconv.Itoa(line.Old), line.To, strconv.Itoa(line.New), string(line.State)})
	}
	if !j.Migration.Status.Phase.Over() {
		body.Holds = podmove.Holds(strategy, time.Now())
	}
	counts := j.Counted(survey.Counts())
	return migration.StatusDocument{
		Body: body, Pending: len(body.Holds) > 0 || !strategy.Switched(), Counts: counts,
		Summary: fmt.Sprintf("%d of %s moved", counts.Moved, english.Plural(counts.Total, "pod", "")),
		Text:    []migration.TextBlock{table, migration.Holding(body.Holds)},
	}, nil
}
