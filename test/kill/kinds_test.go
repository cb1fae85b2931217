package kill

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// world is one cluster, or two, on which commands of one kind of migration run, one at a time.
type world interface {
	// renew makes it what it is before any command.
	renew(t *testing.T)
	// note writes the Migration into a file, in one of the variants that the kind has.
	note(t *testing.T, variant string) string
	// look takes everything that replumb could have written, or lost.
	look(t *testing.T) picture
	// whole and killed are a target's.
	whole(t *testing.T, args ...string) []moment
	killed(t *testing.T, at moment, args ...string) bool
	// phase is where the Migration says that it stands.
	phase(t *testing.T) v1alpha1.Phase
}

// kind is a kind of migration whose commands are killed.
type kind struct {
	// worlds are as many as cases run beside each other.
	worlds []world
	// variants of the Migration. The first has all of controls, the others those of apply alone.
	variants []string
	// controls are, by command, what the step begins with at whose start the command is far from done.
	controls map[string]string
	// stays reports whether a difference is one that a rollback leaves.
	stays func(difference string) bool
}

// trial is a command of one variant, its moments when nothing disturbs it, and what it leads to.
type trial struct {
	command, variant string
	moments          []moment
	want             picture
}

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
			control := m.kind == engine.StepStarted && strings.HasPrefix(m.step, k.controls[r.command])
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
	try := func(command, variant string) trial {
		r := trial{command: command, variant: variant}
		r.moments = w.whole(t, r.args(t, w)...)
		r.want = w.look(t)
		return r
	}
	w.renew(t)
	before := w.look(t)
	apply := try("apply", k.variants[0])
	rollback := try("rollback", k.variants[0])
	for _, d := range differences(before, rollback.want) {
		if !k.stays(d) {
			t.Errorf("rolled back: %s", d)
		}
	}
	w.renew(t)
	w.whole(t, "apply", "-f", w.note(t, k.variants[0]))
	finish := try("finish", k.variants[0])
	for _, r := range []trial{rollback, finish} {
		if len(differences(apply.want, r.want)) == 0 {
			t.Fatalf("%s makes no difference", r.command)
		}
	}
	all := []trial{apply, rollback, finish}
	for _, v := range k.variants[1:] {
		w.renew(t)
		all = append(all, try("apply", v))
	}
	return all
}

func (r trial) args(t *testing.T, w world) []string {
	t.Helper()
	if r.command == "apply" {
		return []string{"apply", "-f", w.note(t, r.variant)}
	}
	return []string{r.command, "move", "--yes"}
}

// survive runs the command, kills it at a moment, runs it again, and compares.
func (r trial) survive(t *testing.T, w world, at moment, control bool) {
	t.Helper()
	w.renew(t)
	if r.command != "apply" {
		w.whole(t, "apply", "-f", w.note(t, r.variant))
	}
	args := r.args(t, w)
	if came := w.killed(t, at, args...); !came && !at.waits() {
		t.Fatal("the run ended before the event came")
	}
	if control && len(differences(r.want, w.look(t))) == 0 {
		t.Error("killed and not run again, the cluster looks as if nothing had happened: the comparison proves nothing")
	}
	if got := w.phase(t); control && got != underWay()[r.command] {
		t.Errorf("killed in the middle of %s, the Migration says %q: other migrations would begin", r.command, got)
	}
	w.whole(t, args...)
	same(t, r.want, "after "+r.command, w.look)
}

// underWay is what a Migration says in the middle of each command.
func underWay() map[string]v1alpha1.Phase {
	return map[string]v1alpha1.Phase{
		"apply": v1alpha1.PhaseApplying, "rollback": v1alpha1.PhaseRollingBack, "finish": v1alpha1.PhaseFinishing,
	}
}
