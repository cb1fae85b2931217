package kill

import (
	"fmt"
	"testing"
	"time"
)

// scenario is what a cluster holds before the migration.
type scenario string

const (
	// lean has what costs no time: every event of its runs is a case.
	lean scenario = "lean"
	// rich has node ports and a Deployment to be restarted as well: cases are those events that lean runs don't have.
	rich scenario = "rich"
)

// undisturbed is what a run does that nobody kills, and what the cluster looks like after each command.
type undisturbed struct {
	before, applied, finished, rolledBack picture
	apply, finish, rollback               []moment
}

func (c *cluster) undisturbed(t *testing.T, s scenario) *undisturbed {
	t.Helper()
	u := &undisturbed{}
	c.reset(t, s)
	u.before = c.take(t)
	u.apply = c.whole(t, "apply", "-f", c.write(t))
	u.applied = c.take(t)
	c.operator(oldRange)
	u.rollback = c.whole(t, "rollback", "move", "--yes")
	u.rolledBack = c.take(t)
	c.reset(t, s)
	c.whole(t, "apply", "-f", c.write(t))
	c.same(t, u.applied, "applied a second time")
	u.finish = c.whole(t, "finish", "move", "--yes")
	u.finished = c.take(t)
	return u
}

// borrow gives the test a cluster of its own.
func borrow(t *testing.T) *cluster {
	t.Helper()
	c := <-free
	t.Cleanup(func() { free <- c })
	return c
}

func TestUndisturbed(t *testing.T) {
	for _, s := range []scenario{lean, rich} {
		c := borrow(t)
		start := time.Now()
		u := c.undisturbed(t, s)
		fmt.Println(s, len(u.apply), len(u.finish), len(u.rollback), time.Since(start))
		for _, m := range u.apply {
			fmt.Println("apply", m)
		}
		for _, m := range u.finish {
			fmt.Println("finish", m)
		}
		for _, m := range u.rollback {
			fmt.Println("rollback", m)
		}
		for k := range u.applied {
			fmt.Println(k)
		}
		for _, d := range differences(u.before, u.rolledBack) {
			fmt.Println(d)
		}
		for _, d := range differences(u.before, u.finished) {
			fmt.Println("F", d)
		}
	}
}
