package migrate

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// podJob moves pods. command is what replumb is called.
type podJob struct {
	*podcidr.Job
	command string
}

func (j podJob) about() about {
	return about{
		name: j.Spec.Name, migration: j.Migration, common: j.Spec.Common, phases: podcidr.ApplyPhases(),
		goBack:   "Restart every pod that " + j.Spec.Name + " moved, so that it has an old address again?",
		applied:  "pods have addresses of the new range",
		wentBack: "every pod has an address of the old range",
		finished: "finished: the old range is empty and free",
		rights:   "deploy/rbac-pod-cidr.yaml, and where Nodes carry the ranges deploy/rbac-pod-cidr-nodes.yaml,",
	}
}

func (j podJob) restrict(until string, expected *migration.Expectation) {
	j.Until, j.Expected = until, expected
}

func (j podJob) examine(ctx context.Context) (outlook, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return outlook{}, err
	}
	counts := p.Counts()
	return outlook{
		findings: p.Found(), whole: p.Apply(), outstanding: p.Apply().Outstanding(ctx), stays: []stayLine{},
		details: func(w io.Writer) error {
			if p.Shared().Agents == nil {
				unproven(w, "pods")
			}
			for _, r := range p.Kept() {
				fmt.Fprintf(w, "keeps its address: pod %s (%s)\n", r.Pod, r.Reason)
			}
			return nil
		},
		summary: fmt.Sprintf("%s to move (%d moved)", english.Plural(counts.Total, "pod", ""), counts.Moved),
	}, nil
}

func (j podJob) apply(ctx context.Context, r *engine.Runner) (arrival, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return arrival{}, err
	}
	counts := p.Counts()
	moved := english.Plural(counts.Moved, "pod", "")
	if j.Until != "" {
		return arrival{tell: func(w io.Writer) {
			fmt.Fprintf(w, "stopped after phase %s, as asked: %s moved, %d not\n", j.Until, moved, counts.Total-counts.Moved)
		}}, nil
	}
	return arrival{
		tell: func(w io.Writer) { fmt.Fprintf(w, "%s moved; nothing has an old address\n", moved) },
		hint: whenWell(j.command, j.Spec.Name),
	}, nil
}

func (j podJob) finishable(ctx context.Context) (prospect, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return prospect{}, err
	}
	return prospect{
		question: fmt.Sprintf("The old range %v will be given up, and there is no way back. Finish?", p.Shared().Survey.Spec.From),
	}, nil
}

// podPage is what status prints of a migration of pods.
type podPage struct {
	statusHead `            json:",inline"`
	Ranges     []rangeLine `json:"ranges"`
	// Holds names what still has an address of the ranges that are to go.
	Holds []string `json:"holds,omitempty"`
}

type rangeLine struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Old and New are how many pods have an address of from, and of to.
	Old int `json:"old"`
	New int `json:"new"`
	// State says from which of them new pods get their addresses.
	State podmove.Place `json:"state"`
}

func (j podJob) status(ctx context.Context) (page, error) {
	strategy, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	survey := strategy.Shared()
	doc := &podPage{Ranges: []rangeLine{}}
	for _, r := range strategy.Ranges() {
		doc.Ranges = append(doc.Ranges, rangeLine{
			From: r.From.String(), To: r.To.String(), State: r.Place,
			Old: len(survey.PodsIn([]netip.Prefix{r.From})), New: len(survey.PodsIn([]netip.Prefix{r.To})),
		})
	}
	phase := j.Migration.Status.Phase
	if phase != v1alpha1.PhaseFinished && phase != v1alpha1.PhaseRolledBack {
		doc.Holds = podmove.Holds(strategy, time.Now())
	}
	doc.statusHead = headOf(j, len(doc.Holds) > 0 || !strategy.Switched(), j.command)
	doc.Counts = survey.Counts()
	doc.summary = fmt.Sprintf("%d of %s moved", doc.Counts.Moved, english.Plural(doc.Counts.Total, "pod", ""))
	return doc, nil
}

func (d *podPage) table(w io.Writer, most int) error {
	rows := [][]string{{"FROM", "PODS", "TO", "PODS", "STATE"}}
	for _, r := range d.Ranges {
		rows = append(rows, []string{r.From, strconv.Itoa(r.Old), r.To, strconv.Itoa(r.New), string(r.State)})
	}
	if err := terminal.Table(w, rows); err != nil {
		return err
	}
	bounded(w, most, d.Holds, func(h string) { fmt.Fprintf(w, "holds the old range: %s\n", h) })
	return nil
}
