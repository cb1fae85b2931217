package agents

import "context"

// Why says why the agents of a node are not heard of, as far as that can be seen now.
func (s *Set) Why(ctx context.Context, node string) []Silent {
	o, err := s.Reporting(ctx)
	if err != nil {
		return []Silent{{Node: node, Reason: err.Error()}}
	}
	var all []Silent
	for _, m := range o.Missing {
		if m.Node == node {
			all = append(all, m)
		}
	}
	return all
}
