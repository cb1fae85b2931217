package hook

import "github.com/replumb/replumb/internal/engine"

var _ engine.Previewer = (*Step)(nil)

func (s *Step) Preview() ([]engine.Change, error) {
	what := "webhook of hook " + s.hook.Name
	if e := s.hook.Exec; e != nil && len(e.Command) > 0 {
		what = "program " + e.Command[0]
	}
	return []engine.Change{{Verb: "call", Object: what}}, nil
}
