//go:build long

package kill

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
)

// podClusters is on how many clusters cases run beside each other.
const podClusters = 2

// anywhere kills the process at every event of apply, rollback and finish, and runs the same command again: the outcome has to be that of
// a run that was left alone. With -short it kills at the controls only: each command has one, and there the comparison itself is put to
// the test.
func (k kind) anywhere(t *testing.T) {
	free := make(chan world, len(k.worlds))
	for _, w := range k.worlds {
		free <- w
	}
	w := <-free
	runs := k.undisturbed(t, w)
	free <- w
	cases, covered := 0, map[string]bool{}
	for _, r := range runs {
		for _, m := range r.moments {
			control := k.control(r.command, m)
			if testing.Short() && !control || r.variant.repeats(m) && covered[r.command+m.String()] {
				continue
			}
			covered[r.command+m.String()] = true
			cases++
			t.Run(strings.Join(slices.DeleteFunc([]string{r.command, r.variant.name, m.String()}, func(s string) bool { return s == "" }), " "),
				func(t *testing.T) {
					t.Parallel()
					w := <-free
					defer func() { free <- w }()
					r.survive(t, w, m, control)
				})
		}
	}
	t.Logf("%d cases", cases)
}

// undisturbed has every command run once without being killed.
func (k kind) undisturbed(t *testing.T, w world) (all []trial) {
	t.Helper()
	for _, v := range k.variants {
		if testing.Short() && v.novel && len(v.anew) == 0 {
			continue // no control is among its events
		}
		w.renew(t, v.name)
		before := w.look(t)
		runs := []trial{try(t, w, "apply", v)}
		apply := runs[0]
		if slices.Contains(v.commands, "rollback") {
			rollback := try(t, w, "rollback", v)
			for _, d := range differences(before, rollback.want) {
				if !k.stays(d) {
					t.Errorf("rolled back: %s", d)
				}
			}
			runs = append(runs, rollback)
		}
		if slices.Contains(v.commands, "finish") {
			w.renew(t, v.name)
			w.whole(t, "apply", "-f", w.note(t, v.name))
			same(t, apply.want, "applied a second time", w.look)
			runs = append(runs, try(t, w, "finish", v))
		}
		for i := range runs {
			if i > 0 && len(differences(apply.want, runs[i].want)) == 0 {
				t.Fatalf("%s makes no difference", runs[i].command)
			}
		}
		all = append(all, runs...)
	}
	return all
}

// TestKillAnywhere kills moves of Services, on clusters that are started at once: a run waits more than it computes.
func TestKillAnywhere(t *testing.T) {
	const clusters = 3
	started, failed := make([]world, clusters), make([]error, clusters)
	var all sync.WaitGroup
	for i := range clusters {
		all.Go(func() {
			c, err := start()
			if started[i], failed[i] = c, err; err == nil {
				t.Cleanup(func() { must(t, c.stop()) })
			}
		})
	}
	all.Wait()
	must(t, errors.Join(failed...))
	movesOfServices(started...).anywhere(t)
}

// TestKillPodsAnywhere kills moves of pods.
func TestKillPodsAnywhere(t *testing.T) {
	var all []world
	for range podClusters {
		all = append(all, startPods(t))
	}
	movesOfPods(all...).anywhere(t)
}

// TestKillNodesAnywhere kills moves of nodes, whose machines end at finish, or each as soon as it is empty.
func TestKillNodesAnywhere(t *testing.T) {
	var all []world
	for range podClusters {
		all = append(all, nodeCluster{startPods(t)})
	}
	movesOfNodes(all...).anywhere(t)
}

// TestKillMirrorAnywhere kills mirrors. Names in DNS have tests of their own (internal/network/dnscutover, internal/network/dnsrecords): a
// process looks for their servers where its machine does.
func TestKillMirrorAnywhere(t *testing.T) { mirrors(startPair(t)).anywhere(t) }
