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
	// renew makes it what it is before any command, in a variant.
	renew(t *testing.T, variant string)
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
	// variants of the Migration, or of what the cluster holds. Of the first every command is killed.
	variants []variant
	// controls are, by command, what the step begins with at whose start the command is far from done.
	controls map[string]string
	// stays reports whether a difference is one that a rollback leaves.
	stays func(difference string) bool
}

// variant is one of a kind's.
type variant struct {
	name string
	// commands are all that are killed of it, with apply first.
	commands []string
	// novel says that cases are those events alone that the variants before it do not have.
	novel bool
	// anew are the beginnings of steps that are cases all the same.
	anew []string
}

// repeats reports whether a moment is left to the case of an earlier variant.
func (v variant) repeats(m moment) bool {
	return v.novel && !slices.ContainsFunc(v.anew, func(step string) bool { return strings.HasPrefix(m.step, step) })
}

// whole is a variant of which every command is killed.
func whole(name string) variant {
	return variant{name: name, commands: []string{"apply", "rollback", "finish"}}
}

// trial is a command of one variant, its moments when nothing disturbs it, and what it leads to.
type trial struct {
	command string
	variant variant
	moments []moment
	want    picture
}

// control reports whether a moment is the start of a step at which the command is far from done.
func (k kind) control(command string, m moment) bool {
	return m.kind == engine.StepStarted && strings.HasPrefix(m.step, k.controls[command])
}

// try has a command run without being killed.
func try(t *testing.T, w world, command string, of variant) trial {
	t.Helper()
	r := trial{command: command, variant: of}
	r.moments = w.whole(t, r.args(t, w)...)
	r.want = w.look(t)
	return r
}

func (r trial) args(t *testing.T, w world) []string {
	t.Helper()
	if r.command == "apply" {
		return []string{"apply", "-f", w.note(t, r.variant.name)}
	}
	return []string{r.command, "move", "--yes"}
}

// survive runs the command, kills it at a moment, runs it again, and compares.
func (r trial) survive(t *testing.T, w world, at moment, control bool) {
	t.Helper()
	w.renew(t, r.variant.name)
	if r.command != "apply" {
		w.whole(t, "apply", "-f", w.note(t, r.variant.name))
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
