//go:build long

package kill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/replumb/replumb/internal/engine"
)

// undisturbed is what a run does that is not killed, and what the cluster looks like after each command.
type undisturbed struct {
	applied, finished, rolledBack picture
	apply, finish, rollback       []moment
}

func (c *cluster) undisturbed(t *testing.T, s scenario) *undisturbed {
	t.Helper()
	u := &undisturbed{}
	c.reset(t, s)
	before := c.take(t)
	u.apply = c.whole(t, "apply", "-f", c.write(t))
	u.applied = c.take(t)
	c.operator(oldRange)
	u.rollback = c.whole(t, "rollback", "move", "--yes")
	u.rolledBack = c.take(t)
	for _, d := range differences(before, u.rolledBack) {
		if d != "left over: v1alpha1.Migration /move" && !strings.HasPrefix(d, "differs: v1.Deployment shop/web") {
			t.Errorf("rolled back: %s", d)
		}
	}
	c.reset(t, s)
	c.whole(t, "apply", "-f", c.write(t))
	c.same(t, u.applied, "applied a second time")
	u.finish = c.whole(t, "finish", "move", "--yes")
	u.finished = c.take(t)
	return u
}

// clusters is how many of them there are: a run waits more than it computes.
const clusters = 3

// stock has the clusters that no case uses.
type stock chan *cluster

// stocked starts all clusters at once.
func stocked(t *testing.T) stock {
	t.Helper()
	started, failed := make([]*cluster, clusters), make([]error, clusters)
	var all sync.WaitGroup
	for i := range clusters {
		all.Go(func() { started[i], failed[i] = start() })
	}
	all.Wait()
	s := make(stock, clusters)
	for _, c := range started {
		if c != nil {
			t.Cleanup(func() { must(t, c.stop()) })
			s <- c
		}
	}
	must(t, errors.Join(failed...))
	return s
}

// borrow gives the test a cluster of its own.
func (s stock) borrow(t *testing.T) *cluster {
	t.Helper()
	c := <-s
	t.Cleanup(func() { s <- c })
	return c
}

// command is one of replumb's, and what it leads to.
type command struct {
	name string
	args []string
	// serviceRange is what the API servers have when it runs.
	serviceRange string
	want         picture
	moments      []moment
	// control is a moment after which the cluster must not look as wanted, unless the command is run again.
	control moment
}

// controls are moments, of apply, finish and rollback, at which each command is far from done.
var controls = []moment{
	{kind: engine.StepStarted, phase: "move", step: "hop/shop/cart"},
	{kind: engine.StepStarted, phase: "release", step: "release/shop/cart"},
	{kind: engine.StepStarted, phase: "return", step: "return/shop/cart"},
}

func (u *undisturbed) commands(c *cluster, t *testing.T) (apply, finish, rollback command) {
	apply = command{
		name: "apply", args: []string{"apply", "-f", c.write(t)}, serviceRange: newRange, want: u.applied, moments: u.apply,
		control: controls[0],
	}
	finish = command{
		name: "finish", args: []string{"finish", "move", "--yes"}, serviceRange: newRange, want: u.finished, moments: u.finish,
		control: controls[1],
	}
	rollback = command{
		name: "rollback", args: []string{"rollback", "move", "--yes"}, serviceRange: oldRange, want: u.rolledBack, moments: u.rollback,
		control: controls[2],
	}
	return apply, finish, rollback
}

// same fails the test unless the cluster looks as it should, as soon as the controllers have caught up.
func (c *cluster) same(t *testing.T, want picture, when string) {
	t.Helper()
	same(t, want, when, c.take)
}

// survive runs a command, kills it at a moment, runs it again, and compares.
func (c *cluster) survive(t *testing.T, cmd command, at moment) {
	t.Run(cmd.name+" "+at.String(), func(t *testing.T) {
		c.operator(cmd.serviceRange)
		came := c.killed(t, at, cmd.args...)
		if !came && !at.waits() {
			t.Fatal("the run ended before the event came")
		}
		if at == cmd.control && len(differences(cmd.want, c.take(t))) == 0 {
			t.Error("killed and not run again, the cluster looks as if nothing had happened: the comparison proves nothing")
		}
		c.whole(t, cmd.args...)
		c.same(t, cmd.want, "after "+cmd.name)
	})
}

// pair is a case of apply, and one of what comes after it, on the same cluster. Either may be missing: then that command is
// left alone.
type pair struct {
	scenario scenario
	apply    *moment
	// finish or roll back.
	finish      bool
	later       *moment
	undisturbed *undisturbed
}

// pairs has every moment of a run in one pair. Those which only need time come as often as the others, though a run can be
// too quick for them.
func pairs(s scenario, u *undisturbed, wanted func(command string, m moment) bool) []pair {
	var applies, later []pair
	for _, m := range u.apply {
		if wanted("apply", m) {
			applies = append(applies, pair{apply: &m})
		}
	}
	for _, m := range u.finish {
		if wanted("finish", m) {
			later = append(later, pair{later: &m, finish: true})
		}
	}
	for _, m := range u.rollback {
		if wanted("rollback", m) {
			later = append(later, pair{later: &m})
		}
	}
	all := make([]pair, max(len(applies), len(later)))
	for i := range all {
		if i < len(later) {
			all[i] = later[i]
		}
		if i < len(applies) {
			all[i].apply = applies[i].apply
		}
		all[i].scenario, all[i].undisturbed = s, u
	}
	return all
}

func (p pair) run(t *testing.T, c *cluster) {
	c.reset(t, p.scenario)
	apply, finish, rollback := p.undisturbed.commands(c, t)
	if p.apply != nil {
		c.survive(t, apply, *p.apply)
	} else {
		c.whole(t, apply.args...)
	}
	if t.Failed() || p.later == nil {
		return
	}
	if p.finish {
		c.survive(t, finish, *p.later)
		return
	}
	c.survive(t, rollback, *p.later)
	c.returned = p.scenario == lean && !t.Failed()
}

// controls reports whether one of the pair's moments is where the comparison itself is put to the test.
func (p pair) controls() bool {
	for _, m := range []*moment{p.apply, p.later} {
		if m != nil && slices.Contains(controls, *m) {
			return true
		}
	}
	return false
}

// TestKillAnywhere kills the process at every event of apply, of finish and of rollback, and runs the same command again.
// With -short only those cases run that are controls: each command has one.
func TestKillAnywhere(t *testing.T) {
	free := stocked(t)
	var simple, full *undisturbed
	scenarios := map[scenario]**undisturbed{lean: &simple, rich: &full}
	if testing.Short() { // no control is in what only rich runs have
		full = &undisturbed{}
		delete(scenarios, rich)
	}
	t.Run("undisturbed", func(t *testing.T) {
		for s, u := range scenarios {
			t.Run(string(s), func(t *testing.T) {
				t.Parallel()
				*u = free.borrow(t).undisturbed(t, s)
			})
		}
	})
	if simple == nil || full == nil {
		t.Fatal("without an undisturbed run there is nothing to compare with")
	}
	covered := map[string]bool{}
	all := pairs(lean, simple, func(command string, m moment) bool {
		covered[command+m.String()] = true
		return true
	})
	rest := pairs(rich, full, func(command string, m moment) bool { return !covered[command+m.String()] })
	cases := 0
	for i, p := range append(rest, all...) {
		if testing.Short() && !p.controls() {
			continue
		}
		for _, m := range []*moment{p.apply, p.later} {
			if m != nil {
				cases++
			}
		}
		t.Run(fmt.Sprintf("%s %d", p.scenario, i), func(t *testing.T) {
			t.Parallel()
			p.run(t, free.borrow(t))
		})
	}
	t.Logf("%d cases", cases)
}
