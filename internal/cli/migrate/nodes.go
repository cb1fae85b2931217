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
	"github.com/replumb/replumb/internal/migrations/nodes"
)

// nodeJob moves nodes. command is what replumb is called.
type nodeJob struct {
	*nodes.Job
	command string
}

func (j nodeJob) about() about {
	return about{
		name:      j.Spec.Name,
		migration: j.Migration,
		common:    j.Spec.Common,
		phases:    nodes.ApplyPhases(),
		goBack:    "Bring pods back to those old nodes of " + j.Spec.Name + " that are still there, and drain the new ones if all are?",
		applied:   "nothing runs on old nodes",
		wentBack:  "old nodes that are still there take pods again; new nodes keep the taint " + v1alpha1.TaintLeaving + " until they are removed",
		finished:  "finished: the old nodes are gone",
		rights:    "deploy/rbac-nodes.yaml",
	}
}

func (j nodeJob) restrict(until string, expected *migration.Expectation) {
	j.Until, j.Expected = until, expected
}

func (j nodeJob) examine(ctx context.Context) (outlook, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return outlook{}, err
	}
	counts := p.Survey.Counts()
	return outlook{
		findings: p.Findings, whole: p.Apply(), outstanding: p.Apply().Outstanding(ctx), stays: []stayLine{},
		details: func(io.Writer) error { return nil },
		summary: fmt.Sprintf("%s to empty (%d done), %d of %s there",
			english.Plural(counts.Total, "old node", ""), counts.Moved,
			len(p.Survey.ReadyNewNodes()), english.Plural(p.Survey.Wanted(), "new node", "")),
	}, nil
}

func (j nodeJob) apply(ctx context.Context, r *engine.Runner) (arrival, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return arrival{}, err
	}
	counts := p.Counts()
	if j.Until != "" {
		return arrival{tell: func(w io.Writer) {
			fmt.Fprintf(w, "stopped after phase %s, as asked: %s empty, %d not\n",
				j.Until, english.Plural(counts.Moved, "old node", ""), counts.Total-counts.Moved)
		}}, nil
	}
	return arrival{
		tell: func(w io.Writer) {
			fmt.Fprintf(w, "%s empty; nothing runs there\n", english.Plural(counts.Moved, "old node", ""))
		},
		hint: whenWell(j.command, j.Spec.Name),
	}, nil
}

func (j nodeJob) finishable(ctx context.Context) (prospect, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return prospect{}, err
	}
	var finals []string
	for _, l := range p.Survey.OldNodes() {
		if l.Node != nil {
			finals = append(finals, "node "+l.Name+" is terminated")
		}
	}
	if cp := j.Spec.ControlPlane; cp != nil && !cp.Etcd.External {
		finals = append(finals,
			"all Secrets of the cluster stay, unencrypted, in "+j.Spec.SnapshotFile()+": delete it when it is not needed any more")
		if cp.EtcdEvents != nil {
			finals = append(finals, "so do its events, in "+j.Spec.EventsSnapshotFile())
		}
	}
	return prospect{question: "What is left of the old nodes is terminated, and there is no way back. Finish?", finals: finals}, nil
}

// nodePage is what status prints of a migration of nodes.
type nodePage struct {
	statusHead `           json:",inline"`
	Nodes      []nodeLine `json:"nodes"`
	// New are the nodes that take over and are ready, Wanted how many there have to be.
	New    int `json:"new"`
	Wanted int `json:"wanted"`
	// Switched are Services that every node answers for until their pods have moved.
	Switched []string `json:"switched,omitempty"`
}

type nodeLine struct {
	Name  string            `json:"name"`
	Role  v1alpha1.NodeRole `json:"role"`
	Stage nodes.Stage       `json:"stage"`
	// Pods are how many have to leave it still.
	Pods int `json:"pods"`
	// Reversible says that rollback brings it back into use.
	Reversible bool `json:"reversible"`
}

func (j nodeJob) status(ctx context.Context) (page, error) {
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	doc := &nodePage{Nodes: []nodeLine{}, New: len(survey.ReadyNewNodes()), Wanted: survey.Wanted(), Switched: survey.Switched()}
	left := false
	for _, l := range survey.OldNodes() {
		line := nodeLine{Name: l.Name, Role: v1alpha1.RoleWorker, Stage: l.Stage(), Pods: len(l.Pods), Reversible: l.Reversible()}
		left = left || line.Stage == nodes.StageServing || line.Stage == nodes.StageClosed
		doc.Nodes = append(doc.Nodes, line)
	}
	for _, c := range survey.OldControlPlane() {
		line := nodeLine{Name: c.Name, Role: v1alpha1.RoleControlPlane, Stage: c.Stage(), Reversible: c.Reversible()}
		left = left || line.Stage != nodes.StageGone
		doc.Nodes = append(doc.Nodes, line)
	}
	doc.statusHead = headOf(j, left, j.command)
	doc.Counts = survey.Counts()
	doc.summary = fmt.Sprintf("%d of %s empty, %d of %s there", doc.Counts.Moved, english.Plural(doc.Counts.Total, "old node", ""),
		doc.New, english.Plural(doc.Wanted, "new node", ""))
	return doc, nil
}

func (d *nodePage) table(w io.Writer, rows int) error {
	var all [][]string
	for _, n := range d.Nodes {
		all = append(all, []string{n.Name, string(n.Role), string(n.Stage), strconv.Itoa(n.Pods), yesNo(n.Reversible)})
	}
	head := []string{"OLD NODE", "ROLE", "STAGE", "PODS", "REVERSIBLE"}
	err := boundedTable(w, rows, head, all, func(row []string) bool { return row[2] == string(nodes.StageGone) })
	if err != nil {
		return err
	}
	bounded(w, rows, d.Switched, func(s string) {
		fmt.Fprintf(w, "service %s has externalTrafficPolicy Cluster until its pods have moved\n", s)
	})
	return nil
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
