package migration

import (
	"maps"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine"
)

// gates are the steps of a run that wait for people, by their IDs, with what to do.
type gates map[string]gate

type gate struct{ title, guide, missing string }

// observe takes an event, and reports whether people have something else to do now.
func (g *gates) observe(e engine.Event) (changed bool) {
	if *g == nil {
		*g = gates{}
	}
	waiting, known := (*g)[e.Step]
	switch e.Kind {
	case engine.StepWaiting:
		if e.Guide == "" && !known {
			return false
		}
		now := gate{title: e.Message, guide: waiting.guide, missing: e.Error}
		if e.Guide != "" {
			now.guide = e.Guide
		}
		(*g)[e.Step] = now
		return now != waiting
	case engine.StepDone, engine.StepUnchanged, engine.StepFailed:
		delete(*g, e.Step)
		return known
	case engine.RunDone, engine.RunFailed, engine.RunInterrupted:
		known = len(*g) > 0
		clear(*g)
		return known
	}
	return false
}

func (g *gates) text() string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(*g)) {
		one := (*g)[id]
		all = append(all, one.title+": "+one.missing+"\n"+one.guide)
	}
	return strings.Join(all, "\n\n")
}
