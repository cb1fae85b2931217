package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
)

// members are those of a set, in its order; nil for those that the cluster does not have.
type members struct {
	names []string
	all   []*v1alpha1.Migration
	at    int
}

func membersOf(m *v1alpha1.Migration, others []v1alpha1.Migration) (c members, in bool) {
	if m.Annotations[v1alpha1.AnnotationSet] == "" {
		return c, false
	}
	c.names = strings.Split(m.Annotations[v1alpha1.AnnotationSet], ",")
	for _, name := range c.names {
		c.all = append(c.all, named(name, m, others))
	}
	c.at = slices.Index(c.names, m.Name)
	return c, true
}

func named(name string, m *v1alpha1.Migration, others []v1alpha1.Migration) *v1alpha1.Migration {
	if m.Name == name {
		return m
	}
	if i := slices.IndexFunc(others, func(o v1alpha1.Migration) bool { return o.Name == name }); i >= 0 {
		return &others[i]
	}
	return nil
}

func (c members) wrong(kinds migrations.Kinds) string {
	if c.at < 0 {
		return fmt.Sprintf("%s lists %s, and not this Migration", v1alpha1.AnnotationSet, strings.Join(c.names, ", "))
	}
	var there []*v1alpha1.Migration
	var names []string
	for i, m := range c.all {
		if m != nil {
			there, names = append(there, m.DeepCopy()), append(names, c.names[i])
		}
	}
	ordered, err := migrationset.Order(kinds.Describe, there)
	if err != nil {
		return err.Error()
	}
	if want := migrationset.Names(ordered); !slices.Equal(names, want) {
		return fmt.Sprintf("%s lists %s, and their order is %s",
			v1alpha1.AnnotationSet, strings.Join(names, ", "), strings.Join(want, ", "))
	}
	return ""
}

func moved(m *v1alpha1.Migration) bool {
	return m != nil && (over(m) || m.Status.Phase == v1alpha1.PhaseMoved && !midway(m))
}

// standing reports whether changes of a Migration are there, and final whether they stay.
func standing(m *v1alpha1.Migration) bool { return m != nil && (begun(m) || midway(m)) }
func final(m *v1alpha1.Migration) bool    { return m != nil && m.Status.PointOfNoReturnPassed }

func (c members) before(act Act) string {
	switch act {
	case Apply:
		return c.beforeApply()
	case Rollback:
		return c.beforeRollback()
	case Finish:
		return c.beforeFinish()
	}
	return ""
}

func (c members) beforeApply() string {
	for i, m := range c.all[:c.at] {
		if !moved(m) {
			return c.awaits(i, "has to move before this one")
		}
	}
	return ""
}

func (c members) beforeRollback() string {
	for i, m := range slices.Backward(c.all) {
		if i > c.at && standing(m) {
			return c.awaits(i, "moved after this one and goes back before it")
		}
	}
	return ""
}

func (c members) beforeFinish() string {
	for i, m := range c.all {
		switch {
		case i < c.at && (m == nil || !over(m)):
			return c.awaits(i, "is finished before this one")
		case i > c.at && !moved(m) && !final(m):
			return c.awaits(i, "has to move before any of them is finished")
		}
	}
	return ""
}

func (c members) awaits(i int, why string) string {
	m := c.all[i]
	stands := "which is not in the cluster"
	if m != nil {
		stands = "where spec.desired is " + string(desired(m))
		if m.Status.Phase != "" {
			stands += " and the phase is " + string(m.Status.Phase)
		}
	}
	return fmt.Sprintf("waits for migration %s of its set, %s: it %s", c.names[i], stands, why)
}

func desired(m *v1alpha1.Migration) v1alpha1.DesiredState {
	if m.Spec.Desired == "" {
		return v1alpha1.DesiredPlanned
	}
	return m.Spec.Desired
}

// ordered has a Migration of a set wait for its turn: what moved before it proves what it moves.
func ordered(s Scene, d Decision, _ migration.Approvals) (Decision, bool) {
	c, in := membersOf(s.Migration, s.Others)
	if !in || d.Act == Plan {
		return Decision{}, false
	}
	if wrong := c.wrong(s.Kinds); wrong != "" {
		return stalled(v1alpha1.ReasonInvalid, wrong+"\nhint: "+correct(s.Migration)), true
	}
	if d, settled := c.settled(d.Act); settled {
		return d, true
	}
	if message := c.before(d.Act); message != "" {
		return Decision{Act: Rest, Standing: migration.UnderWay, Reason: v1alpha1.ReasonWaitingForMigration, Message: message}, true
	}
	return Decision{}, false
}

// settled leaves the Migration for good: the way back is closed, or others have gone on from where
// it moved.
func (c members) settled(act Act) (Decision, bool) {
	if i := slices.IndexFunc(c.all, final); act == Rollback && i >= 0 {
		return stalled(v1alpha1.ReasonNotPossible, fmt.Sprintf(
			"migration %s of its set has passed the point of no return\nhint: set spec.desired to Finished", c.names[i])), true
	}
	i := slices.IndexFunc(c.all[c.at+1:], standing)
	if act != Apply || c.all[c.at].Status.Phase != v1alpha1.PhaseMoved || i < 0 {
		return Decision{}, false
	}
	return Decision{
		Act: Rest, Standing: migration.AsDesired, Reason: v1alpha1.ReasonAsDesired,
		Message: fmt.Sprintf("it has moved, and migration %s of its set has begun after it", c.names[c.at+1+i]),
	}, true
}

func correct(m *v1alpha1.Migration) string {
	return fmt.Sprintf("correct it, or take this one out of the set: kubectl annotate migrations.replumb.dev %s %s-",
		m.Name, v1alpha1.AnnotationSet)
}

// waits reports whether another Migration has a turn to wait for: until then it is in no one's way.
func waits(kinds migrations.Kinds, m *v1alpha1.Migration, others []v1alpha1.Migration) bool {
	s := Scene{Migration: m, Kinds: kinds, Others: others}
	_, held := ordered(s, s.course(), migration.Approvals{})
	return held
}
