package mirror

import (
	"context"
	"fmt"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
)

// Kind describes mirrors.
func Kind() migration.Description {
	return migration.Description{
		Field: "mirror", Title: "Mirrors", Checks: findings.Describe(Checks()), Examples: "mirror",
		Apply: ApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "mirrors", Does: "copies a cluster (spec.mirror), in the cluster that is copied", Roles: Roles(Usual()),
		Words: words(),
		Set: migration.SetPlace{
			Moves: "mirror", Alone: "it copies the cluster to another one, which must not change meanwhile",
		},
		Report: func(m *v1alpha1.Migration) migration.Report {
			r := migration.Report{Kind: "Mirror", Subject: "The cluster", Did: "was mirrored"}
			if target := m.Spec.Mirror.Target.Context; target != "" {
				r.To = []string{target}
			}
			return r
		},
	}
}

func words() migration.Words {
	return migration.Words{
		Counted:    "names",
		Return:     "this cluster serves again; to have the mirror serve, make a new migration",
		ApplyFirst: "a mirror is finished once it serves", // spec.desired says which side is to serve
	}
}

// unasked says what is not known without the target.
const unasked = "The mirror is not asked: what must not run twice goes on there if the mirror is up, CronJobs here start nothing that came due " +
	"until now, whether or not the mirror ran it, and what the mirror wrote for itself stays there."

func (j *Job) without(question string) string {
	if j.WithoutTarget {
		return unasked + " " + question
	}
	return question
}

func (j *Job) About() migration.About {
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: ApplyPhases(),
		GoBack:   j.without("Switch the DNS names of " + j.Spec.Name + " back to this cluster?"),
		Applied:  "names lead to the target",
		WentBack: "this cluster serves; copies stay in the target, and apply brings them up to date",
		Finished: "finished: this cluster serves, and the mirror may be taken down",
		Return:   words().Return,
		Rights:   "mirrors",
	}
}

func (*Job) Describe(p *Planner) migration.Details {
	s := p.Inventory
	objects, kinds := s.Copied()
	return migration.Details{
		Text: []migration.TextBlock{leftOut(s)},
		Summary: fmt.Sprintf("%s of %s to copy, %s to lead there; the %s serves now",
			english.Plural(objects, "object", ""), english.Plural(kinds, "kind", ""),
			english.Plural(len(s.Names)+len(s.Awaited), "name", ""), sideWords(s.Serving())),
	}
}

func sideWords(s v1alpha1.ServingSide) string {
	switch s {
	case v1alpha1.ServingTarget:
		return "target"
	case v1alpha1.ServingBoth:
		return "source, and for names that have moved the target,"
	}
	return "source"
}

// leftOut lists what is not copied, and why.
func leftOut(s *Inventory) migration.TextBlock {
	if len(s.Objects.LeftOut) == 0 {
		return migration.TextBlock{}
	}
	b := migration.TextBlock{Head: []string{"NOT COPIED", "OBJECTS", "WHY"}}
	for _, l := range s.Objects.LeftOut {
		b.Rows = append(b.Rows, []string{l.Resource, strconv.Itoa(l.Count), l.Why})
	}
	return b
}

func (j *Job) Applied(p *Planner) migration.ApplyResult {
	if j.Until != "" {
		return migration.ApplyResult{Text: []migration.TextBlock{{Lines: []string{"stopped after phase " + j.Until + ", as asked"}}}}
	}
	return migration.ApplyResult{
		Text: []migration.TextBlock{{Lines: []string{
			fmt.Sprintf("the mirror serves %s; no one is led to this cluster: its network may be changed",
				english.Plural(len(p.Inventory.Names), "name", "")),
		}}},
		Hint: fmt.Sprintf("when this cluster is ready again, replumb finish %s leads the names back; "+
			"replumb rollback %s does so and keeps the mirror for another time", j.Spec.Name, j.Spec.Name),
	}
}

func (j *Job) PreviewFinish(_ context.Context, p *Planner) (migration.FinishPreview, error) {
	out := migration.FinishPreview{Question: j.without("Names are led back to this cluster, and after that the mirror is given up. Finish?")}
	for _, n := range p.Inventory.Names {
		out.Finals = append(out.Finals, fmt.Sprintf("%s leads to %v again", n.Name, n.From))
	}
	return out, nil
}

// StatusBody is what status prints of a mirror.
type StatusBody struct {
	Serving v1alpha1.ServingSide `json:"serving"`
	Names   []StatusLine         `json:"names"`
	// Copies are how many objects of the target are replumb's.
	Copies int `json:"copies"`
}

// StatusLine is where one name leads.
type StatusLine struct {
	Name string              `json:"name"`
	Type v1alpha1.RecordType `json:"type"`
	From []string            `json:"from"`
	To   []string            `json:"to"`
	// Now is where it leads: old, new, between, or why that is not known.
	Now string `json:"now"`
}

func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	survey, err := j.Glance(ctx)
	if err != nil {
		return doc, err
	}
	body := &StatusBody{Serving: survey.Serving(), Names: []StatusLine{}, Copies: survey.Copies}
	table := migration.TextBlock{Head: []string{"NAME", "TYPE", "SOURCE", "TARGET", "NOW"}}
	for _, n := range survey.Names {
		line := StatusLine{Name: n.Name, Type: n.Type, From: n.From, To: n.To, Now: survey.Places[Title(n)]}
		body.Names = append(body.Names, line)
		table.Rows = append(table.Rows, []string{line.Name, string(line.Type), fmt.Sprint(line.From), fmt.Sprint(line.To), line.Now})
	}
	if len(body.Names) > 0 {
		doc.Text = []migration.TextBlock{table}
	}
	doc.Body, doc.Pending, doc.Counts = body, survey.Serving() != v1alpha1.ServingTarget, survey.Counts()
	doc.Summary = fmt.Sprintf("the %s serves; %s in the target", sideWords(survey.Serving()), english.Plural(survey.Copies, "copy", "copies"))
	return doc, nil
}
