package cni

import (
	"context"
	"fmt"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// Kind describes migrations of networks.
func Kind() migration.Description {
	return migration.Description{
		Field: "cni", Title: "Networks", Checks: findings.Describe(Checks()), Examples: "cni",
		Apply: allApplyPhases(), Phases: phaseNames(), Outlines: Outlines(),
		Command: "networks", Does: "replaces the network (spec.cni)", Roles: Roles(),
		Words: words(),
		Set: migration.SetPlace{
			Moves: "cni", Alone: "it replaces the network that the others prove their moves with",
		},
		Report: func(m *v1alpha1.Migration) migration.Report {
			s := m.Spec.CNI
			r := migration.Report{Kind: "Network", To: []string{string(s.To)}, Subject: "The network of pods", Did: "was replaced"}
			if s.From != "" {
				r.From = []string{string(s.From)}
			}
			return r
		},
		Targets: func(s *v1alpha1.MigrationSpec) (t migration.Targets) {
			if s.CNI.PodCIDR != "" {
				t.Pods = []string{s.CNI.PodCIDR}
			}
			return t
		},
	}
}

func words() migration.Words {
	return migration.Words{
		Counted: "pods",
		Return:  "to return to the old network, make a new migration with spec.cni.from and spec.cni.to exchanged",
	}
}

func (j *Job) About() migration.About {
	goBack := "Restore the old network and recreate every pod, as " + j.Spec.Name + " did? Pods have no network meanwhile."
	if j.Spec.Serving {
		goBack = "Switch every node back to the old network, as " + j.Spec.Name + " switched them?"
	}
	return migration.About{
		Name: j.Spec.Name, Migration: j.Migration, Common: j.Spec.Common, Phases: j.ApplyPhases(),
		GoBack:   goBack,
		Applied:  "every pod has the new network",
		WentBack: "every pod has the old network",
		Finished: "finished: the old network is forgotten",
		Return:   words().Return,
		Rights:   "networks",
	}
}

func (*Job) Describe(p Plans) migration.Details {
	counts := p.Counts()
	return migration.Details{
		Text: []migration.TextBlock{{Lines: p.Details()}},
		Summary: fmt.Sprintf("%s to recreate (%d done) on %s", english.Plural(counts.Total, "pod", ""), counts.Moved,
			english.Plural(len(p.Shared().Inventory.Nodes), "node", "")),
	}
}

func (j *Job) Applied(p Plans) migration.ApplyResult {
	counts := p.Counts()
	pods := english.Plural(counts.Moved, "pod", "")
	if j.Until != "" {
		return migration.Stopped(j.Until, "%s with the new network, %d without", pods, counts.Total-counts.Moved)
	}
	rest := "nothing of the old one is left on nodes"
	if j.Spec.Serving {
		rest = "the old one runs beside it until finish"
	}
	return migration.ApplyResult{
		Text: []migration.TextBlock{{Lines: []string{fmt.Sprintf("%s with the network of %s; %s", pods, j.Spec.To, rest)}}},
		Hint: migration.NextHint(j.Spec.Name),
	}
}

func (j *Job) PreviewFinish(_ context.Context, p Plans) (migration.FinishPreview, error) {
	question := "The backups of the old network go, and there is no way back. Finish?"
	if j.Spec.Serving {
		question = "The old network goes from every node, and there is no way back. Finish?"
	}
	return migration.FinishPreview{Question: question, Finals: p.Stays()}, nil
}

// StatusBody is what status prints of a switch of networks.
type StatusBody struct {
	From v1alpha1.CNIName `json:"from,omitempty"`
	To   v1alpha1.CNIName `json:"to"`
	// Baseline is who reached whom before.
	Baseline string       `json:"baseline,omitempty"`
	Nodes    []StatusLine `json:"nodes"`
}

// StatusLine is where one node stands.
type StatusLine struct {
	Name  string           `json:"name"`
	Stage switchover.Stage `json:"stage"`
	// Pods are how many have to be recreated.
	Pods int `json:"pods"`
}

func (j *Job) Status(ctx context.Context) (doc migration.StatusDocument, err error) {
	strategy, err := j.Load(ctx)
	if err != nil {
		return doc, err
	}
	recorded := strategy.Shared().Status
	body := &StatusBody{From: recorded.From, To: j.Spec.To, Baseline: recorded.Baseline, Nodes: []StatusLine{}}
	table := migration.TextBlock{
		Head: []string{"NODE", "NETWORK", "PODS LEFT"}, Settled: func(row []string) bool { return row[2] == "0" },
	}
	for _, n := range strategy.Stages() {
		body.Nodes = append(body.Nodes, StatusLine(n))
		table.Rows = append(table.Rows, []string{n.Name, string(n.Stage), strconv.Itoa(n.Pods)})
	}
	counts := j.Counted(switchover.CountsOf(strategy))
	return migration.StatusDocument{
		Body: body, Pending: switchover.LeftOf(strategy) != "", Counts: counts,
		Summary: fmt.Sprintf("%d of %s with the network of %s", counts.Moved, english.Plural(counts.Total, "pod", ""), body.To),
		Text:    []migration.TextBlock{table},
	}, nil
}
