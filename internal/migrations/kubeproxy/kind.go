package kubeproxy

import (
	"cmp"
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
)

// Kind describes changes of kube-proxy's mode.
func Kind() migration.Description {
	return migration.Description{
		Field: "kubeProxy", Title: "kube-proxy", Checks: findings.Describe(Checks()), Examples: "kube-proxy",
		Apply: ApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "kube-proxy", Does: "changes kube-proxy's mode (spec.kubeProxy)", Roles: Roles(),
		Words: words(),
		Set:   migration.SetPlace{Moves: "kube-proxy", Alone: "it changes the rules that the others prove their moves with"},
		Report: func(m *v1alpha1.Migration) migration.Report {
			r := migration.Report{Kind: "kube-proxy", To: []string{string(m.Spec.KubeProxy.Mode)}, Subject: "The mode of kube-proxy", Did: "was changed"}
			if st := m.Status.KubeProxy; st != nil {
				r.From = []string{string(st.From)}
			}
			return r
		},
	}
}

func words() migration.Words {
	return migration.Words{
		Counted: "nodes",
		Return:  "to return to the former mode, make a new migration with it as spec.kubeProxy.mode; none leads to ipvs",
	}
}

// About has what is true of the job before the cluster is looked at.
func (j *Job) About() migration.About {
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: ApplyPhases(),
		GoBack:   "Change kube-proxy back to its former mode, node by node?",
		Applied:  "kube-proxy has mode " + string(j.Spec.Mode) + " on every node",
		WentBack: "kube-proxy has its former mode on every node",
		Finished: "finished: the former mode is forgotten",
		Return:   words().Return,
		Rights:   "kube-proxy",
	}
}

// Describe is the plan for people.
func (j *Job) Describe(p *Planner) migration.Details {
	counts := p.Counts()
	d := migration.Details{Summary: fmt.Sprintf("%s to change to mode %s (%d done)", english.Plural(counts.Total, "node", ""), j.Spec.Mode, counts.Moved)}
	if p.Agents == nil {
		d.Text = append(d.Text, migration.Unproven("nodes"))
	}
	return d
}

// Applied is the outcome of apply.
func (j *Job) Applied(p *Planner) migration.ApplyResult {
	counts := p.Counts()
	if j.Until != "" {
		return migration.Stopped(j.Until, "%d of %s with mode %s", counts.Moved, english.Plural(counts.Total, "node", ""), j.Spec.Mode)
	}
	lines := []string{fmt.Sprintf("kube-proxy has mode %s on %s", j.Spec.Mode, english.Plural(counts.Moved, "node", ""))}
	if p.remains() {
		lines = append(lines, "what mode ipvs has left stays on them until finish")
	}
	return migration.ApplyResult{Text: []migration.TextBlock{{Lines: lines}}, Hint: migration.NextHint(j.Spec.Name)}
}

// PreviewFinish says what becomes final.
func (*Job) PreviewFinish(_ context.Context, p *Planner) (migration.FinishPreview, error) {
	if p.remains() {
		return migration.FinishPreview{
			Question: "What mode ipvs has left is removed from all nodes, and no migration leads back to that mode. Finish?",
		}, nil
	}
	return migration.FinishPreview{Question: "The former mode is forgotten; another migration leads back to it. Finish?"}, nil
}

// StatusBody is what status prints of a change of kube-proxy's mode.
type StatusBody struct {
	From  v1alpha1.KubeProxyMode `json:"from,omitempty"`
	To    v1alpha1.KubeProxyMode `json:"to"`
	Nodes []StatusLine           `json:"nodes"`
}

// StatusLine is where one node stands.
type StatusLine struct {
	Name string                 `json:"name"`
	Mode v1alpha1.KubeProxyMode `json:"mode"`
	// By is the DaemonSet whose kube-proxy leads there; empty where it is a program of the node.
	By string `json:"by,omitempty"`
}

// Status reads where everything stands from the objects themselves.
func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	s, err := j.inventory(ctx)
	if err != nil {
		return doc, err
	}
	body := &StatusBody{To: j.Spec.Mode, Nodes: []StatusLine{}}
	table := migration.TextBlock{
		Head: []string{"NODE", "MODE", "RUN BY"}, Settled: func(row []string) bool { return row[1] == string(j.Spec.Mode) },
	}
	if s.known() {
		body.From = s.from()
		for _, n := range s.concerned() {
			line := StatusLine{Name: n.Name, Mode: s.serving(n)}
			if own := s.own(); own != nil {
				line.By = own.Name
			}
			if s.Second != nil && line.Mode == s.secondMode() && n.Labels[v1alpha1.LabelKubeProxyMode] != "" {
				line.By = s.Second.Name
			}
			body.Nodes = append(body.Nodes, line)
			table.Rows = append(table.Rows, []string{line.Name, string(line.Mode), cmp.Or(line.By, "the node")})
		}
	}
	counts := j.Counted(s.counts())
	return migration.StatusDocument{
		Body: body, Pending: s.left() != "", Counts: counts,
		Summary: fmt.Sprintf("%d of %s with mode %s", counts.Moved, english.Plural(counts.Total, "node", ""), j.Spec.Mode),
		Text:    []migration.TextBlock{table},
	}, nil
}
