package nodes

import (
	"context"
	"fmt"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
)

// Kind describes migrations of nodes.
func Kind() migration.Description {
	return migration.Description{
		Field: "nodes", Title: "Nodes", Checks: findings.Describe(Checks()), Examples: "nodes",
		Apply: ApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "nodes", Does: "moves nodes (spec.nodes)", Roles: Roles(),
		Words: words(),
		Set: migration.SetPlace{Order: 3, Moves: "nodes", Takes: func(m *v1alpha1.MigrationSpec) []migration.TakenRanges {
			return []migration.TakenRanges{{Field: "spec.nodes.new.cidrs", Ranges: m.Nodes.New.CIDRs, Holds: true}}
		}},
		Report: report,
		Targets: func(s *v1alpha1.MigrationSpec) migration.Targets {
			return migration.Targets{Nodes: s.Nodes.New.CIDRs}
		},
	}
}

func words() migration.Words {
	return migration.Words{
		Counted: "nodes",
		Return:  "to return to the old network, make a new migration with spec.nodes.old and spec.nodes.new exchanged",
	}
}

func report(m *v1alpha1.Migration) migration.Report {
	s := m.Spec.Nodes
	r := migration.Report{Kind: "Nodes", From: s.Old.CIDRs, To: s.New.CIDRs, Subject: "The nodes", Did: "left"}
	if n := len(m.Status.Nodes); n > 0 {
		r.Subject = english.Plural(n, "node", "")
	}
	return r
}

func (j *Job) About() migration.About {
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: ApplyPhases(),
		GoBack:   "Bring pods back to those old nodes of " + j.Spec.Name + " that are still there, and drain the new ones if all are?",
		Applied:  "nothing runs on old nodes",
		WentBack: "old nodes that are still there take pods again; new nodes keep the taint " + v1alpha1.TaintLeaving + " until they are removed",
		Finished: "finished: the old nodes are gone",
		Return:   words().Return,
		Rights:   "nodes",
	}
}

func (*Job) Describe(p *Planner) migration.Details {
	counts := p.Inventory.Counts()
	return migration.Details{Summary: fmt.Sprintf(
		"%s to empty (%d done), %d of %s there",
		english.Plural(counts.Total, "old node", ""), counts.Moved,
		len(p.Inventory.ReadyNewNodes()), english.Plural(p.Inventory.Wanted(), "new node", ""),
	)}
}

func (j *Job) Applied(p *Planner) migration.ApplyResult {
	counts := p.Counts()
	empty := english.Plural(counts.Moved, "old node", "")
	if j.Until != "" {
		return migration.Stopped(j.Until, "%s empty, %d not", empty, counts.Total-counts.Moved)
	}
	return migration.ApplyResult{
		Text: []migration.TextBlock{{Lines: []string{empty + " empty; nothing runs there"}}},
		Hint: migration.NextHint(j.Spec.Name),
	}
}

func (j *Job) PreviewFinish(_ context.Context, p *Planner) (migration.FinishPreview, error) {
	out := migration.FinishPreview{Question: "What is left of the old nodes is terminated, and there is no way back. Finish?"}
	for _, l := range p.Inventory.OldNodes() {
		if l.Node != nil {
			out.Finals = append(out.Finals, "node "+l.Name+" is terminated")
		}
	}
	if cp := j.Spec.ControlPlane; cp != nil && !cp.Etcd.External {
		out.Finals = append(out.Finals,
			"all Secrets of the cluster stay, unencrypted, in "+j.Spec.SnapshotFile()+": delete it when it is not needed any more")
		if cp.EtcdEvents != nil {
			out.Finals = append(out.Finals, "so do its events, in "+j.Spec.EventsSnapshotFile())
		}
	}
	return out, nil
}

// StatusBody is what status prints of a migration of nodes.
type StatusBody struct {
	Nodes []StatusLine `json:"nodes"`
	// New are the nodes that take over and are ready, Wanted how many there have to be.
	New    int `json:"new"`
	Wanted int `json:"wanted"`
	// Switched are Services, as namespace/name, that every node answers for until their pods have
	// moved.
	Switched []string `json:"switched,omitempty"`
}

// StatusLine is where one old node stands.
type StatusLine struct {
	Name  string            `json:"name"`
	Role  v1alpha1.NodeRole `json:"role"`
	Stage Stage             `json:"stage"`
	// Pods are how many have to leave it still.
	Pods int `json:"pods"`
	// Reversible says that rollback brings it back into use.
	Reversible bool `json:"reversible"`
}

func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	survey, err := j.Inventory(ctx)
	if err != nil {
		return doc, err
	}
	body := &StatusBody{
		Nodes: []StatusLine{}, New: len(survey.ReadyNewNodes()), Wanted: survey.Wanted(), Switched: survey.Ingress().Switched(),
	}
	for _, l := range survey.OldNodes() {
		line := StatusLine{Name: l.Name, Role: v1alpha1.RoleWorker, Stage: l.Stage(), Pods: len(l.Pods), Reversible: l.Reversible()}
		doc.Pending = doc.Pending || line.Stage == StageServing || line.Stage == StageClosed
		body.Nodes = append(body.Nodes, line)
	}
	for _, c := range survey.ControlPlane().Old() {
		line := StatusLine{Name: c.Name, Role: v1alpha1.RoleControlPlane, Stage: c.Stage(), Reversible: c.Reversible()}
		doc.Pending = doc.Pending || line.Stage != StageGone
		body.Nodes = append(body.Nodes, line)
	}
	doc.Body, doc.Counts, doc.Text = body, j.Counted(survey.Counts()), body.text()
	doc.Summary = fmt.Sprintf("%d of %s empty, %d of %s there", doc.Counts.Moved, english.Plural(doc.Counts.Total, "old node", ""),
		body.New, english.Plural(body.Wanted, "new node", ""))
	return doc, nil
}

func (b *StatusBody) text() []migration.TextBlock {
	nodes := migration.TextBlock{
		Head:    []string{"OLD NODE", "ROLE", "STAGE", "PODS", "REVERSIBLE"},
		Settled: func(row []string) bool { return row[2] == string(StageGone) },
	}
	for _, n := range b.Nodes {
		reversible := "no"
		if n.Reversible {
			reversible = "yes"
		}
		nodes.Rows = append(nodes.Rows, []string{n.Name, string(n.Role), string(n.Stage), strconv.Itoa(n.Pods), reversible})
	}
	switched := migration.TextBlock{}
	for _, s := range b.Switched {
		switched.Lines = append(switched.Lines, fmt.Sprintf("service %s has externalTrafficPolicy Cluster until its pods have moved", s))
	}
	return []migration.TextBlock{nodes, switched}
}
