package nodes

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// nodeRecord finds what is recorded of a node; nil, if nothing is.
func nodeRecord(all []v1alpha1.NodeStatus, name string) *v1alpha1.NodeStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// recordNodes records old nodes before anything changes: later they cannot be asked.
func (l live) recordNodes(id, title string, all []v1alpha1.NodeStatus) engine.Step {
	return &engine.Write{
		Name: id, About: title, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			have, err := l.recorded(ctx)
			for _, n := range all {
				if err == nil && nodeRecord(have, n.Name) == nil {
					return engine.NotYet("node %s is not recorded", n.Name)
				}
			}
			return err
		},
		Write: func(ctx context.Context) error {
			return l.record(ctx, func(st *v1alpha1.MigrationStatus) {
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
			return l.recordChange(all...)
		},
	}
}

// record changes the status of the Migration.
func (l live) record(ctx context.Context, change func(*v1alpha1.MigrationStatus)) error {
	return migration.UpdateStatus(ctx, l.Cluster, l.spec.Name, change)
}

// recordNode changes what is recorded of a node, if anything is.
func (l live) recordNode(ctx context.Context, name string, change func(*v1alpha1.NodeStatus)) error {
	return l.record(ctx, func(st *v1alpha1.MigrationStatus) {
		if n := nodeRecord(st.Nodes, name); n != nil {
			change(n)
		}
	})
}

// recordChange previews what is recorded of nodes.
func (l live) recordChange(all ...v1alpha1.NodeStatus) ([]engine.Change, error) {
	return migration.StatusChange(l.spec.Name, map[string]any{"nodes": all})()
}

// recordEnd records that a node is about to be terminated.
func (l live) recordEnd(node v1alpha1.NodeStatus) effect {
	return effect{
		do: func(ctx context.Context) error {
			return l.record(ctx, func(st *v1alpha1.MigrationStatus) {
				if nodeRecord(st.Nodes, node.Name) == nil {
					st.Nodes = append(st.Nodes, node)
				}
				nodeRecord(st.Nodes, node.Name).Ended = true
			})
		},
		changes: func() ([]engine.Change, error) {
			return l.recordChange(v1alpha1.NodeStatus{Name: node.Name, Role: node.Role, Ended: true})
		},
	}
}

// recordGone records that the old machine of a control-plane node has ended.
func (l live) recordGone(name string) effect {
	return effect{
		do: func(ctx context.Context) error {
			return l.recordNode(ctx, name, func(n *v1alpha1.NodeStatus) { n.Gone = true })
		},
		changes: func() ([]engine.Change, error) {
			return l.recordChange(v1alpha1.NodeStatus{Name: name, Role: v1alpha1.RoleControlPlane, Gone: true})
		},
	}
}

// isGone fails until recordGone has been done.
func (l live) isGone(ctx context.Context, name string) error {
	all, err := l.recorded(ctx)
	if n := nodeRecord(all, name); err == nil && (n == nil || !n.Gone) {
		return engine.NotYet("control-plane node %s has not been terminated", name)
	}
	return err
}

// recordReturn records that a control-plane node has come back in the new network.
func (l live) recordReturn(name string) engine.Step {
	gone := l.recordGone(name)
	return &engine.Write{
		Name: "back/" + name, About: "Record that control-plane node " + name + " has come back", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error { return l.isGone(ctx, name) },
		Write: gone.do, Changes: gone.changes,
	}
}

// recordCounts records how many nodes are empty by now.
func (l live) recordCounts(after string) engine.Step {
	return &engine.Observed[v1alpha1.Counts]{
		Name: "note/" + after, About: "Record that " + after + " is empty", As: engine.RoleOwn,
		// What an earlier run recorded says nothing of now.
		Look: func(ctx context.Context) (engine.State, v1alpha1.Counts, error) {
			now, err := l.survey(ctx)
			if err != nil {
				return engine.Unknown, v1alpha1.Counts{}, err
			}
			return engine.Pending, now.Counts(), nil
		},
		Write: func(ctx context.Context, c v1alpha1.Counts) error {
			return l.record(ctx, func(st *v1alpha1.MigrationStatus) { st.Counts = c })
		},
		Proof:   func(context.Context) error { return nil },
		Changes: migration.StatusChange(l.spec.Name, map[string]any{"counts": "of the nodes that are empty by then"}),
	}
}
