package migrate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// serviceJob moves Services. command is what replumb is called.
type serviceJob struct {
	*servicecidr.Job
	command string
}

func (j serviceJob) about() about {
	return about{
		name: j.Spec.Name, migration: j.Migration, common: j.Spec.Common, phases: servicecidr.ApplyPhases(),
		goBack:   "Bring every Service of " + j.Spec.Name + " back to its old address?",
		applied:  "old addresses keep answering",
		wentBack: "every Service is back at its old address",
		finished: "finished: old addresses no longer answer",
		rights:   "deploy/rbac.yaml",
	}
}

func (j serviceJob) restrict(until string, expected *migration.Expectation) {
	j.Until, j.Expected = until, expected
}

func (j serviceJob) examine(ctx context.Context) (outlook, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return outlook{}, err
	}
	counts := p.Survey.Counts()
	o := outlook{
		findings: p.Findings, whole: p.Apply(), outstanding: p.Apply().Outstanding(ctx), stays: []stayLine{},
		summary: fmt.Sprintf("%s to move (%d moved), %d pinned, %d stay",
			english.Plural(counts.Total, "Service", ""), counts.Moved, counts.Pinned, counts.Stays),
	}
	for _, e := range append(p.Survey.Pins, p.Survey.Stays...) {
		o.stays = append(o.stays, stayLine{Service: e.Key().String(), Reason: e.Reason.String()})
	}
	o.services = p.Survey.Lines()
	o.late = p.Survey.Late()
	o.details = func(w io.Writer) error {
		lateLines(w, o.late)
		return planDetails(w, p, o)
	}
	return o, nil
}

// planDetails are how each Service moves, what stays, and what keeps old addresses.
func planDetails(w io.Writer, p *servicecidr.Planner, o outlook) error {
	if err := moveLines(w, o.services); err != nil {
		return err
	}
	stays := o.stays
	if p.Survey.Spec.Mode == v1alpha1.ModeExtend {
		usage(w, p.Survey)
	}
	if len(stays) > 0 {
		fmt.Fprintln(w, "stays:")
		var rows [][]string
		for _, s := range stays {
			rows = append(rows, []string{"  " + s.Service, s.Reason})
		}
		if err := terminal.Table(w, rows); err != nil {
			return err
		}
	}
	if p.Agents == nil && p.Survey.Spec.Mode != v1alpha1.ModeExtend {
		fmt.Fprintln(
			w,
			"not proven: without agents on the nodes nothing is probed while Services move, no one connects to those that have moved, "+
				"and no one sees who still uses old addresses (spec.proof)",
		)
	}
	keepers(w, p.Refresh.Left)
	return nil
}

// moveLines are the Services that move.
func moveLines(w io.Writer, all []servicecidr.Line) error {
	rows := [][]string{{"SERVICE", "KIND", "STRATEGY", "FROM", "TO", "RISK"}}
	for _, l := range all {
		if l.Reason == "" {
			rows = append(rows, []string{l.Service, l.Kind, l.Strategy, l.From, l.To, cmp.Or(l.Risk, "-")})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return terminal.Table(w, rows)
}

// keepers are pods that keep old addresses until people deal with them.
func keepers(w io.Writer, left []rollout.Reported) {
	for _, r := range left {
		fmt.Fprintf(w, "keeps old addresses: pod %s (%s)\n", r.Pod, r.Reason)
	}
}

func (j serviceJob) apply(ctx context.Context, r *engine.Runner) (arrival, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return arrival{}, err
	}
	counts := p.Counts()
	moved := english.Plural(counts.Moved, "Service", "")
	switch {
	case j.Spec.Mode == v1alpha1.ModeExtend:
		return arrival{tell: func(w io.Writer) { usage(w, p.Survey) }}, nil
	case j.Until != "":
		return arrival{tell: func(w io.Writer) {
			fmt.Fprintf(w, "stopped after phase %s, as asked: %s moved, %d not\n", j.Until, moved, counts.Total-counts.Moved)
		}}, nil
	}
	return arrival{
		tell: func(w io.Writer) {
			fmt.Fprintf(w, "%s moved, %d pinned, %d stay; old addresses keep answering\n", moved, counts.Pinned, counts.Stays)
			keepers(w, p.Refresh.Left)
		},
		hint: whenWell(j.command, j.Spec.Name),
	}, nil
}

// usage shows how full each Service range is.
func usage(w io.Writer, survey *servicecidr.Survey) {
	rows := [][]string{{"RANGE", "SERVICECIDR", "USED", "SIZE"}}
	for _, u := range survey.Usage() {
		rows = append(rows, []string{u.Range.String(), u.Name, strconv.Itoa(u.Used), u.Size})
	}
	_ = terminal.Table(w, rows) // the app's output remembers its errors
}

func (j serviceJob) finishable(ctx context.Context) (prospect, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return prospect{}, err
	}
	out := prospect{question: fmt.Sprintf("The old addresses of %s will stop answering, and there is no way back. Finish?",
		english.Plural(len(p.Survey.Moves), "Service", ""))}
	for _, e := range p.Survey.Pins {
		out.finals = append(out.finals, fmt.Sprintf("stays at its address for good: service %s (%s)", e.Key(), e.Old))
	}
	seen, err := j.seen(ctx)
	if err != nil {
		return prospect{}, err
	}
	out.finals = append(out.finals, seen...)
	for _, r := range p.Refresh.Left {
		out.finals = append(out.finals,
			fmt.Sprintf("still has an old address: pod %s has %s (%s)", r.Pod, strings.Join(r.Carries, ", "), r.Reason))
	}
	return out, nil
}
