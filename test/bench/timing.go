package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// timing sums up the events of a run: how long phases took and, beside each other, the kinds of steps.
type timing struct {
	phases []string
	took   map[string]float64
	kinds  map[string]float64
	count  map[string]int
	again  map[string]int
	inside float64
}

func (t *timing) take(e engine.Event) {
	if t.took == nil {
		t.took, t.kinds, t.count, t.again = map[string]float64{}, map[string]float64{}, map[string]int{}, map[string]int{}
	}
	kind, _, _ := strings.Cut(e.Step, "/")
	switch e.Kind {
	case engine.PhaseDone:
		if _, known := t.took[e.Phase]; !known {
			t.phases = append(t.phases, e.Phase)
		}
		t.took[e.Phase] += e.Seconds
		t.inside += e.Seconds
	case engine.StepDone, engine.StepUnchanged:
		t.kinds[kind] += e.Seconds
		t.count[kind]++
	case engine.StepFailed:
		fmt.Printf("  %s failed: %s\n", e.Step, e.Error)
	case engine.StepRetried, engine.StepWaiting:
		t.again[kind+": "+e.Error]++
	}
}

func (t *timing) report(whole time.Duration) string {
	var b strings.Builder
	b.WriteString("    phases:")
	for _, p := range t.phases {
		if t.took[p] >= 0.1 {
			fmt.Fprintf(&b, " %s %.1fs", p, t.took[p])
		}
	}
	fmt.Fprintf(&b, ", outside of phases %.1fs\n    steps (mean):", whole.Seconds()-t.inside)
	kinds := slices.SortedFunc(maps.Keys(t.kinds), func(a, b string) int { return cmp.Compare(t.kinds[b], t.kinds[a]) })
	for _, k := range kinds[:min(6, len(kinds))] {
		fmt.Fprintf(&b, " %s %d x %.1fms", k, t.count[k], 1000*t.kinds[k]/float64(t.count[k]))
	}
	b.WriteString("\n")
	for _, what := range slices.Sorted(maps.Keys(t.again)) {
		if t.again[what] > 1 {
			fmt.Fprintf(&b, "    %d times %s\n", t.again[what], what)
		}
	}
	return b.String()
}

func (t *timing) phase(name string) time.Duration {
	return time.Duration(t.took[name] * float64(time.Second))
}
