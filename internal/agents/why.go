package agents

import "context"

// Reason says why the agents of a node are not heard of, as far as that can be seen now.
func (s *Set) Reason(ctx context.Context, node string) string {
	o, err := s.Reporting(ctx)
	if err != nil {
		return err.Error()
	}
	for _, m := range o.Missing {
		if m.Node == node {
			return m.Reason
		}
	}
	return "no new report, and nothing to be seen of why"
}
