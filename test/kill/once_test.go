package kill

import (
	"slices"
	"testing"
)

// once kills apply of the first variant where it is far from done, and runs it again.
func (k kind) once(t *testing.T) {
	t.Helper()
	w := k.worlds[0]
	first := k.variants[0]
	w.renew(t, first.name)
	apply := try(t, w, "apply", first)
	at := slices.IndexFunc(apply.moments, func(m moment) bool { return k.control(apply.command, m) })
	if at < 0 {
		t.Fatalf("no step begins with %s", k.controls[apply.command])
	}
	apply.survive(t, w, apply.moments[at], true)
}

// TestKilledOnce kills one command of each kind of migration that has a process here. The tests that are compiled with the tag long kill all
// of them, at every event; TestKilledAnywhere of internal/migrations/cni is that of networks replaced in place.
func TestKilledOnce(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) kind{
		"services": func(t *testing.T) kind {
			c, err := start()
			must(t, err)
			t.Cleanup(func() { must(t, c.stop()) })
			return movesOfServices(c)
		},
		"pods":   func(t *testing.T) kind { return movesOfPods(startPods(t)) },
		"nodes":  func(t *testing.T) kind { return movesOfNodes(nodeCluster{startPods(t)}) },
		"mirror": func(t *testing.T) kind { return mirrors(startPair(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin(t).once(t)
		})
	}
}
