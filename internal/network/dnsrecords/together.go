package dnsrecords

import "github.com/replumb/replumb/internal/engine"

// Together runs the same steps for all records: every first step comes before any second.
func Together(title string, parallel int, all []*RecordMove, steps func(*RecordMove) []engine.Step) []engine.Group {
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
