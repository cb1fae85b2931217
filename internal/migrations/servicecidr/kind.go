package servicecidr

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// Kind describes migrations of Services.
func Kind() migration.Description {
	return migration.Description{
		Field: "serviceCIDR", Checks: findings.Describe(Checks()), Examples: "service-cidr",
		Apply: ApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "services", Does: "moves Services (spec.serviceCIDR)", Roles: Roles(),
		Words: words(),
		Set: migration.SetPlace{Order: 1, Moves: "Services", Takes: func(m *v1alpha1.MigrationSpec) []migration.TakenRanges {
			return []migration.TakenRanges{
				{Field: "spec.serviceCIDR.to", Ranges: m.ServiceCIDR.To},
				{Field: "spec.serviceCIDR.networks", Ranges: m.ServiceCIDR.Networks, Named: true},
			}
		}},
		Report: func(m *v1alpha1.Migration) migration.Report {
			s := m.Spec.ServiceCIDR
			return migration.Report{Kind: "Services", From: s.From, To: s.To, Counts: true, Extended: s.Mode == v1alpha1.ModeExtend}
		},
		Targets: func(s *v1alpha1.MigrationSpec) migration.Targets {
			return migration.Targets{Services: s.ServiceCIDR.To}
		},
	}
}

func words() migration.Words {
	return migration.Words{
		Counted: "Services", ByMoves: true,
		Return: "to return to the old range, make a new migration with the old range as spec.serviceCIDR.to",
	}
}

func (j *Job) About() migration.About {
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: ApplyPhases(),
		GoBack:   "Bring every Service of " + j.Spec.Name + " back to its old address?",
		Applied:  "old addresses keep answering",
		WentBack: "every Service is back at its old address",
		Finished: "finished: old addresses no longer answer",
		Return:   words().Return,
		Rights:   "services",
	}
}

func (*Job) Describe(p *Planner) migration.Details {
	counts := p.Inventory.Counts()
	d := migration.Details{
		Summary: fmt.Sprintf("%s to move (%d moved), %d pinned, %d stay",
			english.Plural(counts.Total, "Service", ""), counts.Moved, counts.Pinned, counts.Stays),
	}
	for _, e := range append(p.Inventory.Pins, p.Inventory.Stays...) {
		d.Stays = append(d.Stays, migration.Stay{Service: e.Key().String(), Reason: e.Reason.String()})
	}
	lines, late := p.Inventory.Lines(), FindCreatedDuring(p.Inventory)
	if len(lines) > 0 {
		d.Services = lines
	}
	if len(late) > 0 {
		d.Late = late
	}
	d.Text = append([]migration.TextBlock{{Lines: CreatedDuringLines(late)}, moveTable(lines), overlapReasons(lines)}, planText(p, d.Stays)...)
	return d
}

func moveTable(all []services.Line) migration.TextBlock {
	var rows [][]string
	for _, l := range all {
		if l.Reason == "" {
			rows = append(rows, []string{l.Service, l.Kind, l.Strategy, l.From, l.To, l.Overlap, cmp.Or(l.Risk, "-")})
		}
	}
	if len(rows) == 0 {
		return migration.TextBlock{}
	}
	return migration.TextBlock{Head: []string{"SERVICE", "KIND", "STRATEGY", "FROM", "TO", "OVERLAP", "RISK"}, Rows: rows}
}

// overlapReasons say why each form of overlap was chosen, and for how many Services.
func overlapReasons(all []services.Line) (b migration.TextBlock) {
	count, order := map[string]int{}, []string(nil)
	for _, l := range all {
		if l.OverlapWhy == "" {
			continue
		}
		why := l.Overlap + ": " + l.OverlapWhy
		if count[why]++; count[why] == 1 {
			order = append(order, why)
		}
	}
	for _, why := range order {
		b.Lines = append(b.Lines, fmt.Sprintf("overlap, %s (%s)", why, english.Plural(count[why], "Service", "")))
	}
	return b
}

func planText(p *Planner, stays []migration.Stay) (text []migration.TextBlock) {
	extends := p.Inventory.Spec.Mode == v1alpha1.ModeExtend
	if extends {
		text = append(text, usageTable(p.Inventory))
	}
	if len(stays) > 0 {
		text = append(text, migration.TextBlock{Lines: []string{"stays:"}})
		var rows [][]string
		for _, s := range stays {
			rows = append(rows, []string{"  " + s.Service, s.Reason})
		}
		text = append(text, migration.TextBlock{Rows: rows})
	}
	if p.Agents == nil && !extends {
		text = append(text, migration.TextBlock{Lines: []string{
			"not proven: without agents on the nodes nothing is probed while Services move, no one connects to those that have moved, " +
				"and no one sees who still uses old addresses (spec.proof)",
		}})
	}
	return append(text, keepers(p.Refresh.Left))
}

func keepers(left []rollout.Reported) (b migration.TextBlock) {
	for _, r := range left {
		b.Lines = append(b.Lines, fmt.Sprintf("keeps old addresses: pod %s (%s)", r.Pod, r.Reason))
	}
	return b
}

func usageTable(inventory *services.Inventory) migration.TextBlock {
	b := migration.TextBlock{Head: []string{"RANGE", "SERVICECIDR", "USED", "SIZE"}}
	for _, u := range inventory.Usage() {
		b.Rows = append(b.Rows, []string{u.Range.String(), u.Name, strconv.Itoa(u.Used), u.Size})
	}
	return b
}

// CreatedDuringLines name the Services made in the new range, and their ways back.
func CreatedDuringLines(all []CreatedDuring) (lines []string) {
	for _, l := range all {
		can := "a rollback can move it to the old range"
		if l.Stays != "" {
			can = "a rollback keeps it there, and the range: it " + l.Stays
		}
		lines = append(lines, fmt.Sprintf("made in the new range: service %s (%s); %s", l.Service, l.Address, can))
	}
	return lines
}

func (j *Job) Applied(p *Planner) migration.ApplyResult {
	counts := p.Counts()
	moved := english.Plural(counts.Moved, "Service", "")
	switch {
	case j.Spec.Mode == v1alpha1.ModeExtend:
		return migration.ApplyResult{Text: []migration.TextBlock{usageTable(p.Inventory)}}
	case j.Until != "":
		return migration.Stopped(j.Until, "%s moved, %d not", moved, counts.Total-counts.Moved)
	}
	return migration.ApplyResult{
		Text: []migration.TextBlock{
			{Lines: []string{
				fmt.Sprintf("%s moved, %d pinned, %d stay; old addresses keep answering", moved, counts.Pinned, counts.Stays),
			}},
			keepers(p.Refresh.Left),
		},
		Hint: migration.NextHint(j.Spec.Name),
	}
}

// daily is how often most of what runs seldom runs.
const daily = 24 * time.Hour

// young says that old addresses have not been left for long enough to see who uses them once a day.
func young(p *Planner, now time.Time) []string {
	var latest time.Time
	for _, e := range p.Inventory.All() {
		if left, reserved := e.Reserved[e.Old]; reserved && e.Away() {
			latest = later(latest, services.MovedAt(e.Service, left.Since))
		}
	}
	since := now.Sub(latest)
	if latest.IsZero() || since >= daily {
		return nil
	}
	return []string{fmt.Sprintf("the latest Service has moved %s ago: clients that come once a day may not have been seen", since.Round(time.Minute))}
}

func (j *Job) PreviewFinish(ctx context.Context, p *Planner) (migration.FinishPreview, error) {
	out := migration.FinishPreview{Question: fmt.Sprintf(
		"The old addresses of %s will stop answering, and there is no way back. Finish?",
		english.Plural(len(p.Inventory.Moves), "Service", ""),
	)}
	for _, e := range p.Inventory.Pins {
		out.Finals = append(out.Finals, fmt.Sprintf("stays at its address for good: service %s (%s)", e.Key(), e.Old))
	}
	seen, err := j.seen(ctx)
	if err != nil {
		return migration.FinishPreview{}, err
	}
	out.Finals = append(append(out.Finals, seen...), young(p, j.Deps.Now())...)
	for _, r := range p.Refresh.Left {
		out.Finals = append(out.Finals,
			fmt.Sprintf("still has an old address: pod %s has %s (%s)", r.Pod, strings.Join(r.Carries, ", "), r.Reason))
	}
	return out, nil
}
