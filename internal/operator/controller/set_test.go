package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
)

func inSet(names string) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[v1alpha1.AnnotationSet] = names
	}
}

// kind has the names services, pods and nodes be of those kinds.
func kind(m *v1alpha1.Migration) {
	switch m.Name {
	case "pods":
		m.Spec.ServiceCIDR, m.Spec.PodCIDR = nil, &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}}
	case "nodes":
		m.Spec.ServiceCIDR, m.Spec.Nodes = nil, &v1alpha1.NodesSpec{}
	}
}

// TestDecideInSets: who waits for whom, and what is refused.
func TestDecideInSets(t *testing.T) {
	const services, both = "services", "services,pods"
	done := says(migration.AsDesired, v1alpha1.ReasonAsDesired)
	one := func(name string, desired v1alpha1.DesiredState, change ...func(*v1alpha1.Migration)) v1alpha1.Migration {
		return *wish(name, desired, append([]func(*v1alpha1.Migration){kind, inSet(both)}, change...)...)
	}
	const applied, finished, back = v1alpha1.DesiredApplied, v1alpha1.DesiredFinished, v1alpha1.DesiredRolledBack
	for name, tt := range map[string]struct {
		m, other v1alpha1.Migration
		act      Act
		reason   string
		message  string
	}{
		"the first begins": {
			one(services, applied), one("pods", applied, created(1)), Apply, v1alpha1.ReasonApplying, "",
		},
		"the second waits, though it was created first": {
			one("pods", applied, created(1)), one(services, applied), Rest, v1alpha1.ReasonWaitingForMigration,
			"waits for migration services of its set, where spec.desired is Applied: it has to move before this one",
		},
		"for one that no one has asked for": {
			one("pods", applied), one(services, ""), Rest, v1alpha1.ReasonWaitingForMigration, "where spec.desired is Planned",
		},
		"for one that is not there": {
			one("pods", applied), one("else", applied, func(m *v1alpha1.Migration) { m.Annotations = nil }), Rest,
			v1alpha1.ReasonWaitingForMigration, "which is not in the cluster",
		},
		"the second begins": {
			one("pods", applied), one(services, applied, in(v1alpha1.PhaseMoved), done), Apply, v1alpha1.ReasonApplying, "",
		},
		"after one that is finished": {
			one("pods", applied), one(services, finished, in(v1alpha1.PhaseFinished), returned), Apply, v1alpha1.ReasonApplying, "",
		},
		"not after one that went back": {
			one("pods", applied), one(services, back, in(v1alpha1.PhaseRolledBack), done), Rest, v1alpha1.ReasonWaitingForMigration,
			"the phase is RolledBack",
		},
		"the first stays as it is once the second has begun": {
			one(services, applied, in(v1alpha1.PhaseMoved)), one("pods", applied, in(v1alpha1.PhaseApplying)), Rest,
			v1alpha1.ReasonAsDesired,
			"it has moved, and migration pods of its set has begun after it",
		},
		"the last one goes back first": {
			one(services, back, in(v1alpha1.PhaseMoved)), one("pods", back, in(v1alpha1.PhaseMoved)), Rest,
			v1alpha1.ReasonWaitingForMigration,
			"it moved after this one and goes back before it",
		},
		"at once": {
			one("pods", back, in(v1alpha1.PhaseMoved)), one(services, back, in(v1alpha1.PhaseMoved)), Rollback,
			v1alpha1.ReasonRollingBack, "",
		},
		"and then the first": {
			one(services, back, in(v1alpha1.PhaseMoved)), one("pods", back, in(v1alpha1.PhaseRolledBack), done), Rollback,
			v1alpha1.ReasonRollingBack, "",
		},
		"none goes back once one is final": {
			one("pods", back, in(v1alpha1.PhaseMoved)), one(services, finished, in(v1alpha1.PhaseFinished), returned), Rest,
			v1alpha1.ReasonNotPossible, "migration services of its set has passed the point of no return",
		},
		"none is finished before all have moved": {
			one(services, finished, in(v1alpha1.PhaseMoved), approvesFinish, inSet(both)), one("pods", applied), Rest,
			v1alpha1.ReasonWaitingForMigration, "it has to move before any of them is finished",
		},
		"the first is finished first": {
			one("pods", finished, in(v1alpha1.PhaseMoved), approvesFinish, inSet(both)),
			one(services, finished, in(v1alpha1.PhaseMoved)), Rest,
			v1alpha1.ReasonWaitingForMigration, "it is finished before this one",
		},
		"and then the second": {
			one("pods", finished, in(v1alpha1.PhaseMoved), approvesFinish, inSet(both)),
			one(services, finished, in(v1alpha1.PhaseFinished), returned), Finish, v1alpha1.ReasonFinishing, "",
		},
		"a plan waits for none": {one("pods", v1alpha1.DesiredPlanned), one(services, applied), Plan, v1alpha1.ReasonPlanning, ""},
		"a set of others": {
			one("pods", applied, inSet("services,nodes")), one(services, applied), Rest, v1alpha1.ReasonInvalid,
			"hint: correct it, or take this one out of the set: kubectl annotate migrations.replumb.dev pods replumb.dev/set-",
		},
		"a set in another order": {
			one("pods", applied, inSet("pods,services")), one(services, applied), Rest, v1alpha1.ReasonInvalid,
			"replumb.dev/set lists pods, services, and their order is services, pods",
		},
		"a set that cannot be one": {
			one("else", applied, inSet("services,else")), one(services, applied), Rest, v1alpha1.ReasonInvalid,
			"moves Services, as services does",
		},
		"one of no set": {
			one("pods", applied, func(m *v1alpha1.Migration) { m.Annotations = nil }), one(services, v1alpha1.DesiredPlanned), Apply,
			v1alpha1.ReasonApplying, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(Scene{
				Migration: &tt.m, Kinds: migrations.All(), Others: []v1alpha1.Migration{tt.other}, Revisions: Revisions{Own: 8, Cluster: 8}, Now: time.Unix(2000, 0),
			})
			if d.Act != tt.act || d.Reason != tt.reason || !strings.Contains(d.Message, tt.message) {
				t.Errorf("got %+v", d)
			}
		})
	}
}

// TestSetsComeThrough has an operator go through whole sets, created in each order: nothing begins
// before its turn, and nothing waits for ever.
func TestSetsComeThrough(t *testing.T) {
	names := []string{"services", "pods", "nodes"}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var all []v1alpha1.Migration
		for i, at := range order {
			all = append(all, *wish(names[at], v1alpha1.DesiredApplied, kind, created(int64(i)), inSet(strings.Join(names, ",")), approved))
		}
		if got := lived(t, all); got != "Apply services, Apply pods, Apply nodes" {
			t.Errorf("created as %v: %s", order, got)
		}
		wants(all, v1alpha1.DesiredRolledBack)
		if got := lived(t, all); got != "Rollback nodes, Rollback pods, Rollback services" {
			t.Errorf("created as %v: %s", order, got)
		}
		wants(all, v1alpha1.DesiredFinished)
		want := "Apply services, Apply pods, Apply nodes, Finish services, Finish pods, Finish nodes"
		if got := lived(t, all); got != want {
			t.Errorf("created as %v: %s", order, got)
		}
	}
}

func approved(m *v1alpha1.Migration) {
	m.Annotations[v1alpha1.AnnotationApprove] = migration.FinishWord(m)
}

func wants(all []v1alpha1.Migration, desired v1alpha1.DesiredState) {
	for i := range all {
		all[i].Spec.Desired = desired
		all[i].Generation++
	}
}

// lived carries out decisions, one run at a time as an operator does, until there is nothing left
// to do.
func lived(t *testing.T, all []v1alpha1.Migration) string {
	t.Helper()
	var done []string
	for range 20 {
		i := slices.IndexFunc(all, func(m v1alpha1.Migration) bool { return decided(&m, all).Act != Rest })
		if i < 0 {
			return strings.Join(done, ", ")
		}
		m := &all[i]
		act := decided(m, all).Act
		for j := range all {
			if other := decided(&all[j], all); j != i && other.Act != Rest && other.Act != Plan {
				t.Errorf("%s and %s would run at once", m.Name, all[j].Name)
			}
		}
		done = append(done, fmt.Sprintf("%s %s", act, m.Name))
		m.Status.Phase = map[Act]v1alpha1.Phase{
			Apply: v1alpha1.PhaseMoved, Rollback: v1alpha1.PhaseRolledBack, Finish: v1alpha1.PhaseFinished,
		}[act]
		m.Status.PointOfNoReturnPassed = act == Finish
		m.Status.Conditions = []metav1.Condition{}
		says(migration.AsDesired, v1alpha1.ReasonAsDesired)(m)
	}
	return strings.Join(done, ", ") + ", and so on"
}

func decided(m *v1alpha1.Migration, all []v1alpha1.Migration) Decision {
	return Decide(Scene{Migration: m, Kinds: migrations.All(), Others: all, Revisions: Revisions{Own: 8, Cluster: 8}, Now: time.Unix(2000, 0)})
}
