//go:build long

package kill

import (
	"slices"
	"strings"
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
	cases := 0
	for _, r := range runs {
		for _, m := range r.moments {
			control := k.control(r.command, m)
			if testing.Short() && !control {
				continue
			}
			cases++
			t.Run(strings.Join(slices.DeleteFunc([]string{r.command, r.variant, m.String()}, func(s string) bool { return s == "" }), " "),
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
func (k kind) undisturbed(t *testing.T, w world) []trial {
	t.Helper()
	w.renew(t)
	before := w.look(t)
	apply := try(t, w, "apply", k.variants[0])
	rollback := try(t, w, "rollback", k.variants[0])
	for _, d := range differences(before, rollback.want) {
		if !k.stays(d) {
			t.Errorf("rolled back: %s", d)
		}
	}
	w.renew(t)
	w.whole(t, "apply", "-f", w.note(t, k.variants[0]))
	finish := try(t, w, "finish", k.variants[0])
	for _, r := range []trial{rollback, finish} {
		if len(differences(apply.want, r.want)) == 0 {
			t.Fatalf("%s makes no difference", r.command)
		}
	}
	all := []trial{apply, rollback, finish}
	for _, v := range k.variants[1:] {
		w.renew(t)
		all = append(all, try(t, w, "apply", v))
	}
	return all
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
