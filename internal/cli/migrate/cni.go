package migrate

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
)

// cniJob replaces the network of pods. command is what replumb is called.
type cniJob struct {
	*cni.Job
	command string
}

func (o *source) newCNIJob(of migrations.Tools, m *v1alpha1.Migration) (job, error) {
	tools, err := of.Networks()
	if err != nil {
		return nil, err
	}
	j, err := cni.NewJob(tools, m)
	if err != nil {
		return nil, err
	}
	j.AcceptDowntime = o.acceptDowntime
	return cniJob{j, o.Name}, nil
}

func (j cniJob) about() about {
	goBack := "Restore the old network and recreate every pod, as " + j.Spec.Name + " did? Pods have no network meanwhile."
	if j.Spec.Serving {
		goBack = "Switch every node back to the old network, as " + j.Spec.Name + " switched them?"
	}
	return about{
		name: j.Spec.Name, migration: j.Migration, common: j.Spec.Common, phases: j.Spec.ApplyPhases(),
		goBack:   goBack,
		applied:  "every pod has the new network",
		wentBack: "every pod has the old network",
		finished: "finished: the old network is forgotten",
		rights:   "deploy/rbac-cni.yaml",
	}
}

func (j cniJob) restrict(until string, expected *migration.Expectation) {
	j.Until, j.Expected = until, expected
}

func (j cniJob) examine(ctx context.Context) (outlook, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return outlook{}, err
	}
	counts := p.Counts()
	return outlook{
		findings: p.Findings, whole: p.Apply(), outstanding: p.Apply().Outstanding(ctx), stays: []stayLine{},
		details: func(w io.Writer) error {
			for _, line := range p.Details() {
				fmt.Fprintln(w, line)
			}
			return nil
		},
		summary: fmt.Sprintf("%s to recreate (%d done) on %s", english.Plural(counts.Total, "pod", ""), counts.Moved,
			english.Plural(len(p.Survey.Nodes), "node", "")),
	}, nil
}

func (j cniJob) apply(ctx context.Context, r *engine.Runner) (arrival, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return arrival{}, err
	}
	counts := p.Counts()
	pods := english.Plural(counts.Moved, "pod", "")
	if j.Until != "" {
		return arrival{tell: func(w io.Writer) {
			fmt.Fprintf(w, "stopped after phase %s, as asked: %s with the new network, %d without\n", j.Until, pods,
				counts.Total-counts.Moved)
		}}, nil
	}
	return arrival{
		tell: func(w io.Writer) {
			if j.Spec.Serving {
				fmt.Fprintf(w, "%s with the network of %s; the old one runs beside it until finish\n", pods, j.Spec.To)
				return
			}
			fmt.Fprintf(w, "%s with the network of %s; nothing of the old one is left on nodes\n", pods, j.Spec.To)
		},
		hint: whenWell(j.command, j.Spec.Name),
	}, nil
}

func (j cniJob) finishable(ctx context.Context) (prospect, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return prospect{}, err
	}
	question := "The backups of the old network go, and there is no way back. Finish?"
	if j.Spec.Serving {
		question = "The old network goes from every node, and there is no way back. Finish?"
	}
	return prospect{question: question, finals: p.Stays()}, nil
}

// cniPage is what status prints of a switch of networks.
type cniPage struct {
	statusHead `json:",inline"`
	From       v1alpha1.CNIName `json:"from,omitempty"`
	To         v1alpha1.CNIName `json:"to"`
	// Baseline is who reached whom before.
	Baseline string        `json:"baseline,omitempty"`
	Nodes    []cniNodeLine `json:"nodes"`
}

type cniNodeLine struct {
	Name  string    `json:"name"`
	Stage cni.Stage `json:"stage"`
	// Pods are how many have to be recreated.
	Pods int `json:"pods"`
}

func (j cniJob) status(ctx context.Context) (page, error) {
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	doc := &cniPage{From: survey.Status.From, To: j.Spec.To, Baseline: survey.Status.Baseline, Nodes: []cniNodeLine{}}
	for _, n := range survey.Stages() {
		doc.Nodes = append(doc.Nodes, cniNodeLine(n))
	}
	doc.statusHead = headOf(j, survey.Left() != "", j.command)
	doc.Counts = survey.Counts()
	doc.summary = fmt.Sprintf("%d of %s with the network of %s", doc.Counts.Moved, english.Plural(doc.Counts.Total, "pod", ""), doc.To)
	return doc, nil
}

func (d *cniPage) table(w io.Writer, rows int) error {
	var all [][]string
	for _, n := range d.Nodes {
		all = append(all, []string{n.Name, string(n.Stage), strconv.Itoa(n.Pods)})
	}
	return boundedTable(w, rows, []string{"NODE", "NETWORK", "PODS LEFT"}, all, func(row []string) bool { return row[2] == "0" })
}
