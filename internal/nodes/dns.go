package nodes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/records"
	"github.com/replumb/replumb/internal/records/provider"
)

// memory of records is kept in the status of the Migration.
type memory struct {
	client client.Client
	name   string
}

// Recall implements records.Memory.
func (m memory) Recall(ctx context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	have, err := migration.Get(ctx, m.client, m.name)
	if err != nil || have == nil {
		return nil, err
	}
	return recordOf(have.Status.Records, name, typ), nil
}

// Remember implements records.Memory.
func (m memory) Remember(ctx context.Context, status v1alpha1.RecordStatus) error {
	return migration.UpdateStatus(ctx, m.client, m.name, func(st *v1alpha1.MigrationStatus) {
		if have := recordOf(st.Records, status.Name, status.Type); have != nil {
			*have = status
			return
		}
		st.Records = append(st.Records, status)
	})
}

func recordOf(all []v1alpha1.RecordStatus, name string, typ v1alpha1.RecordType) *v1alpha1.RecordStatus {
	i := slices.IndexFunc(all, func(r v1alpha1.RecordStatus) bool { return r.Name == name && r.Type == typ })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// moves are the records of a list on their way.
func (t Tools) moves(ctx context.Context, s Spec, all []v1alpha1.RecordSpec) ([]*records.Move, error) {
	var out []*records.Move
	asking := &records.Client{}
	for _, r := range all {
		p, err := provider.Open(ctx, r, asking, t.secret)
		if err != nil {
			return nil, err
		}
		m, err := records.NewMove(r, p, asking, memory{t.Cluster, s.Name})
		if err != nil {
			return nil, err
		}
		m.Patience, m.Now = s.GateWait, t.Now
		out = append(out, m)
	}
	return out, nil
}

func (t Tools) secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := t.Cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	return secret.Data, err
}

// looked asks for every record whether it can be moved. What it finds is a finding.
func looked(ctx context.Context, all []*records.Move) map[string]error {
	problems := map[string]error{}
	for _, m := range all {
		if _, err := m.Look(ctx); err != nil {
			problems[m.Title()] = err
		}
	}
	return problems
}

// traffic takes names over to new load balancers: all of them at once, each by way of both.
func traffic(all []*records.Move) []engine.Group {
	var groups []engine.Group
	for _, part := range []struct {
		title string
		steps func(*records.Move) []engine.Step
	}{
		{"time to live", (*records.Move).Lower}, {"both", (*records.Move).Widen}, {"new", (*records.Move).Narrow},
	} {
		groups = append(groups, together(part.title, all, part.steps)...)
	}
	return groups
}

// together does the same to all records, step by step.
func together(title string, all []*records.Move, steps func(*records.Move) []engine.Step) []engine.Group {
	var groups []engine.Group
	for _, m := range all {
		for i, s := range steps(m) {
			if i == len(groups) {
				groups = append(groups, engine.Group{Title: title, Parallel: parallel})
			}
			groups[i].Steps = append(groups[i].Steps, s)
		}
	}
	return groups
}

// trafficBack takes names back to where they led.
func (p *Planner) trafficBack() []engine.Group {
	if !p.Whole() {
		return nil
	}
	return together("back", slices.Concat(p.Records, p.APIRecords), (*records.Move).Back)
}

// restoreTTL gives records their time to live back.
func (p *Planner) restoreTTL() []engine.Group {
	return together("time to live", slices.Concat(p.Records, p.APIRecords), (*records.Move).Restore)
}

func validateRecords(field string, all []v1alpha1.RecordSpec) error {
	for i := range all {
		if err := records.Validate(fmt.Sprintf("%s[%d]", field, i), &all[i]); err != nil {
			return err
		}
	}
	return nil
}
