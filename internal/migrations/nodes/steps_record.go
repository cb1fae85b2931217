package nodes

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

func nodeRecord(all []v1alpha1.NodeStatus, name string) *v1alpha1.NodeStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// record is what the Migration says of old nodes, in its status.
type record struct {
	client    client.Client
	migration string
}

func (l live) record() record { return record{l.Client(), l.spec.Name} }

func (r record) nodes(ctx context.Context) ([]v1alpha1.NodeStatus, error) {
	m, err := migration.Get(ctx, r.client, r.migration)
	if err != nil || m == nil {
		return nil, err
	}
	return m.Status.Nodes, nil
}

// addStep records old nodes before anything changes: later they cannot be asked.
func (r record) addStep(id, title string, all []v1alpha1.NodeStatus) engine.Step {
	return &engine.Write{
		Name: id, About: title, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			have, err := r.nodes(ctx)
			for _, n := range all {
				if err == nil && nodeRecord(have, n.Name) == nil {
					return engine.NotYet("node %s is not recorded", n.Name)
				}
			}
			return err
		},
		Write: func(ctx context.Context) error {
			return r.update(ctx, func(st *v1alpha1.MigrationStatus) {
				for _, n := range all {
					if nodeRecord(st.Nodes, n.Name) == nil {
						st.Nodes = append(st.Nodes, n)
					}
				}
			})
		},
		Changes: func() ([]engine.Change, error) {
			if len(all) == 0 {
				return nil, nil
			}
			return r.preview(all...)
		},
	}
}

func (r record) update(ctx context.Context, change func(*v1alpha1.MigrationStatus)) error {
	return migration.UpdateStatus(ctx, r.client, r.migration, change)
}

func (r record) updateNode(ctx context.Context, name string, change func(*v1alpha1.NodeStatus)) error {
	return r.update(ctx, func(st *v1alpha1.MigrationStatus) {
		if n := nodeRecord(st.Nodes, name); n != nil {
			change(n)
		}
	})
}

func (r record) preview(all ...v1alpha1.NodeStatus) ([]engine.Change, error) {
	return migration.StatusChange(r.migration, map[string]any{"nodes": all})()
}

func (r record) ended(node v1alpha1.NodeStatus) effect {
	return effect{
		do: func(ctx context.Context) error {
			return r.update(ctx, func(st *v1alpha1.MigrationStatus) {
				if nodeRecord(st.Nodes, node.Name) == nil {
					st.Nodes = append(st.Nodes, node)
				}
				nodeRecord(st.Nodes, node.Name).Ended = true
			})
		},
		changes: func() ([]engine.Change, error) {
			return r.preview(v1alpha1.NodeStatus{Name: node.Name, Role: node.Role, Ended: true})
		},
	}
}

func (r record) gone(name string) effect {
	return effect{
		do: func(ctx context.Context) error {
			return r.updateNode(ctx, name, func(n *v1alpha1.NodeStatus) { n.Gone = true })
		},
		changes: func() ([]engine.Change, error) {
			return r.preview(v1alpha1.NodeStatus{Name: name, Role: v1alpha1.RoleControlPlane, Gone: true})
		},
	}
}

func (r record) isGone(ctx context.Context, name string) error {
	all, err := r.nodes(ctx)
	if n := nodeRecord(all, name); err == nil && (n == nil || !n.Gone) {
		return engine.NotYet("control-plane node %s has not been terminated", name)
	}
	return err
}

func (r record) returnStep(name string) engine.Step {
	gone := r.gone(name)
	return &engine.Write{
		Name: "back/" + name, About: "Record that control-plane node " + name + " has come back", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error { return r.isGone(ctx, name) },
		Write: gone.do, Changes: gone.changes,
	}
}

func (l live) recordCounts(after string) engine.Step {
	return &engine.Observed[v1alpha1.Counts]{
		Name: "note/" + after, About: "Record that " + after + " is empty", As: engine.RoleOwn,
		// The record of an earlier run says nothing of now.
		Look: func(ctx context.Context) (engine.State, v1alpha1.Counts, error) {
			now, err := loader{l}.load(ctx)
			if err != nil {
				return engine.Unknown, v1alpha1.Counts{}, err
			}
			return engine.Pending, now.Counts(), nil
		},
		Write: func(ctx context.Context, c v1alpha1.Counts) error {
			return l.record().update(ctx, func(st *v1alpha1.MigrationStatus) { st.Counts = c })
		},
		Proof:   func(context.Context) error { return nil },
		Changes: migration.StatusChange(l.spec.Name, map[string]any{"counts": "of the nodes that are empty by then"}),
	}
}
