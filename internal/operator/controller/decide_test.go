package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

// wish makes a Migration of Services as people create it, changed.
func wish(name string, desired v1alpha1.DesiredState, change ...func(*v1alpha1.Migration)) *v1alpha1.Migration {
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Generation: 2, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}, Desired: desired},
	}
	for _, c := range change {
		c(m)
	}
	return m
}

func in(phase v1alpha1.Phase) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) { m.Status.Phase = phase }
}

// says has conditions say where a Migration stands, as of its generation.
func says(s migration.Condition, reason string) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) {
		s.Say(&m.Status, reason, "said")
		for i := range m.Status.Conditions {
			m.Status.Conditions[i].ObservedGeneration = m.Generation
		}
	}
}

func approves(words string) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) { m.Annotations = map[string]string{v1alpha1.AnnotationApprove: words} }
}

// approvesFinish of the attempt that is under way.
func approvesFinish(m *v1alpha1.Migration) { approves(migration.FinishWord(m))(m) }

func pausing(m *v1alpha1.Migration) { m.Spec.Paused = true }

func returned(m *v1alpha1.Migration) { m.Status.PointOfNoReturnPassed = true }

func calling(m *v1alpha1.Migration) {
	m.Spec.Hooks = []v1alpha1.Hook{{
		Name: "h", When: v1alpha1.BeforePhase,
		Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"./notify.sh"}}},
	}}
}

func losing(m *v1alpha1.Migration) {
	m.Status.LastError = "1 request failed"
	says(migration.Stalled, v1alpha1.ReasonLossBudgetExceeded)(m)
}

func tardy(m *v1alpha1.Migration) {
	losing(m)
	says(migration.Stalled, v1alpha1.ReasonLateBudgetExceeded)(m)
}

func bounced(m *v1alpha1.Migration) {
	m.Status.LastError = "the agent is not back; node a has its former range again"
	says(migration.Stalled, v1alpha1.ReasonNodeReturned)(m)
	at(m, 1000)
}

func later(m *v1alpha1.Migration) { at(m, 2000) }

func at(m *v1alpha1.Migration, seconds int64) {
	for i := range m.Status.Conditions {
		m.Status.Conditions[i].LastTransitionTime = metav1.Unix(seconds, 0)
	}
}

func created(seconds int64) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) { m.CreationTimestamp = metav1.Unix(seconds, 0) }
}

func TestDecide(t *testing.T) {
	now := time.Unix(5000, 0)
	blocked := func(m *v1alpha1.Migration, ago time.Duration) *Outcome {
		return &Outcome{
			Of: fingerprint(m), At: now.Add(-ago), Failures: 1,
			Verdict: Verdict{migration.Stalled, v1alpha1.ReasonBlocked, "RP1001: no", 10 * time.Second},
		}
	}
	word := RepairWord(wish("m", v1alpha1.DesiredApplied, losing))
	digest := spec.Digest(wish("m", v1alpha1.DesiredApplied, calling))
	for name, tt := range map[string]struct {
		m      *v1alpha1.Migration
		change func(*Scene)
		act    Act
		// standing and reason are what conditions say, message what is in their message.
		standing migration.Condition
		reason   string
		message  string
	}{
		"a plan is made":         {m: wish("m", v1alpha1.DesiredPlanned), act: Plan, standing: migration.UnderWay, reason: v1alpha1.ReasonPlanning},
		"nothing said is a plan": {m: wish("m", ""), act: Plan, standing: migration.UnderWay, reason: v1alpha1.ReasonPlanning},
		"a plan is made again": {
			m: wish("m", v1alpha1.DesiredPlanned, says(migration.AsDesired, v1alpha1.ReasonPlanned)), act: Plan, reason: v1alpha1.ReasonPlanning,
		},
		"a plan is enough": {
			m: wish("m", v1alpha1.DesiredPlanned), change: func(s *Scene) { s.Planned = Planned{Hash: "abc", Steps: 12} },
			act: Rest, standing: migration.AsDesired, reason: v1alpha1.ReasonPlanned, message: "plan abc has 12 steps",
		},
		"only planned, and begun": {
			m: wish("m", v1alpha1.DesiredPlanned, in(v1alpha1.PhaseApplying)), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonNotPossible, message: "RolledBack to go back",
		},
		"apply":    {m: wish("m", v1alpha1.DesiredApplied), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying},
		"carry on": {m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying)), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying},
		"again":    {m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseRolledBack)), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying},
		"applied": {
			m:   wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseMoved), says(migration.AsDesired, v1alpha1.ReasonAsDesired)),
			act: Rest, standing: migration.AsDesired, reason: v1alpha1.ReasonAsDesired,
		},
		"applied, and changed since": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseMoved), says(migration.AsDesired, v1alpha1.ReasonAsDesired),
				func(m *v1alpha1.Migration) { m.Generation++ }),
			act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"too late to apply": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseFinishing), returned), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonNotPossible, message: "set spec.desired to Finished",
		},
		"rollback": {m: wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseMoved)), act: Rollback, standing: migration.UnderWay, reason: v1alpha1.ReasonRollingBack},
		"rolled back": {
			m:   wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseRolledBack), says(migration.AsDesired, v1alpha1.ReasonAsDesired)),
			act: Rest, standing: migration.AsDesired, reason: v1alpha1.ReasonAsDesired,
		},
		"nothing to take back": {m: wish("m", v1alpha1.DesiredRolledBack), act: Rest, standing: migration.AsDesired, reason: v1alpha1.ReasonAsDesired, message: "nothing was begun"},
		"too late to go back": {
			m: wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseFinishing), returned), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonNotPossible, message: "point of no return",
		},
		"to the end, from the beginning": {m: wish("m", v1alpha1.DesiredFinished), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying},
		"finish is to be approved": {
			m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved)), act: Rest, standing: migration.UnderWay,
			reason: v1alpha1.ReasonApprovalNeeded, message: "kubectl annotate migrations.replumb.dev m --overwrite replumb.dev/approve=finish:",
		},
		"another approval is none of finish": {
			m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), approves("plan:abc")), act: Rest, standing: migration.UnderWay,
			reason: v1alpha1.ReasonApprovalNeeded, message: "replumb.dev/approve=plan:abc,finish:",
		},
		"finish": {m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), approvesFinish), act: Finish, standing: migration.UnderWay, reason: v1alpha1.ReasonFinishing},
		"an earlier attempt was approved": {
			m:   wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), approvesFinish, func(m *v1alpha1.Migration) { m.Status.Attempt++ }),
			act: Rest, standing: migration.UnderWay, reason: v1alpha1.ReasonApprovalNeeded,
		},
		"another of its name was approved": {
			m:   wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), approvesFinish, func(m *v1alpha1.Migration) { m.UID = "another" }),
			act: Rest, standing: migration.UnderWay, reason: v1alpha1.ReasonApprovalNeeded,
		},
		"whatever is finished was approved": {
			m:   wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseMoved), approves("finish")),
			act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonInvalid, message: "finish:TOKEN",
		},
		"finish that has passed": {
			m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseFinishing), returned), act: Finish, standing: migration.UnderWay, reason: v1alpha1.ReasonFinishing,
		},
		"finished": {m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseFinished), returned), act: Rest, standing: migration.AsDesired, reason: v1alpha1.ReasonAsDesired},
		"a mirror serves before it is finished": {
			m: wish("m", v1alpha1.DesiredFinished, func(m *v1alpha1.Migration) {
				m.Spec.ServiceCIDR, m.Spec.Mirror = nil, &v1alpha1.MirrorSpec{}
			}), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonNotPossible,
		},
		"an approval of nothing": {m: wish("m", v1alpha1.DesiredApplied, approves("everything")), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonInvalid, message: `"everything"`},
		"paused":                 {m: wish("m", v1alpha1.DesiredApplied, pausing), act: Rest, standing: migration.AtRest, reason: v1alpha1.ReasonPaused},
		"calls": {
			m: wish("m", v1alpha1.DesiredApplied, calling), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonCallsNotAllowed,
			message: "--allow-calls " + digest,
		},
		"calls in a plan": {m: wish("m", v1alpha1.DesiredPlanned, calling), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonCallsNotAllowed},
		"calls that are agreed to": {
			m: wish("m", v1alpha1.DesiredApplied, calling), change: func(s *Scene) { s.Allowed = []string{digest} }, act: Apply,
			standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"newer definition": {
			m: wish("m", v1alpha1.DesiredApplied), change: func(s *Scene) { s.Revisions = Revisions{Own: 8, Cluster: 9} }, act: Rest,
			standing: migration.Stalled, reason: v1alpha1.ReasonVersionMismatch, message: "has schema revision 9, and the operator knows revision 8",
		},
		"older definition": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying)), change: func(s *Scene) { s.Revisions = Revisions{Own: 8, Cluster: 7} }, act: Rest,
			standing: migration.Stalled, reason: v1alpha1.ReasonVersionMismatch, message: "install the definition of the operator's version",
		},
		"after a loss": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), losing), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonLossBudgetExceeded, message: "replumb.dev/approve=" + word,
		},
		"after a loss that was looked at": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), losing, approves(word)), act: Apply,
			standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"after another loss": {m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), losing, approves("losses:0ther")), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonLossBudgetExceeded},
		"after a node that returned": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), bounced), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonNodeReturned, message: "replumb.dev/approve=" + RepairWord(wish("m", v1alpha1.DesiredApplied, bounced)),
		},
		"after a node that returned and was looked at": {
			m:   wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), bounced, approves(RepairWord(wish("m", v1alpha1.DesiredApplied, bounced)))),
			act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"a node that returned again, as before": {
			m:   wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), bounced, later, approves(RepairWord(wish("m", v1alpha1.DesiredApplied, bounced)))),
			act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonNodeReturned,
		},
		"back after a node that returned": {
			m:   wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseApplying), bounced),
			act: Rollback, standing: migration.UnderWay, reason: v1alpha1.ReasonRollingBack,
		},
		"after late answers": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), tardy), act: Rest, standing: migration.Stalled,
			reason: v1alpha1.ReasonLateBudgetExceeded, message: "replumb.dev/approve=" + word,
		},
		"back after a loss": {
			m: wish("m", v1alpha1.DesiredRolledBack, in(v1alpha1.PhaseApplying), losing), act: Rollback, standing: migration.UnderWay, reason: v1alpha1.ReasonRollingBack,
		},
		"a pause after a loss": {m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), losing, pausing), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonLossBudgetExceeded},
		"blocked a moment ago": {
			m: wish("m", v1alpha1.DesiredApplied), change: func(s *Scene) { s.Last = blocked(s.Migration, 4*time.Second) }, act: Rest,
			standing: migration.Stalled, reason: v1alpha1.ReasonBlocked, message: "RP1001",
		},
		"blocked a while ago": {
			m: wish("m", v1alpha1.DesiredApplied), change: func(s *Scene) { s.Last = blocked(s.Migration, 10*time.Second) }, act: Apply, reason: v1alpha1.ReasonApplying,
		},
		"blocked, and changed since": {
			m: wish("m", v1alpha1.DesiredApplied, pausing), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
			change: func(s *Scene) { s.Last, s.Migration.Spec.Paused = blocked(s.Migration, time.Second), false },
		},
		"a kind that was left out": {
			m: wish("m", v1alpha1.DesiredApplied), change: func(s *Scene) { s.Only = []string{"podCIDR"} }, act: Rest,
			standing: migration.Stalled, reason: v1alpha1.ReasonKindLeftOut, message: "add serviceCIDR to rbac.kinds",
		},
		"a kind among others": {
			m: wish("m", v1alpha1.DesiredApplied), change: func(s *Scene) { s.Only = []string{"podCIDR", "serviceCIDR"} }, act: Apply,
			standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"a kind that was left out, and is done": {
			m: wish("m", v1alpha1.DesiredFinished, in(v1alpha1.PhaseFinished)), change: func(s *Scene) { s.Only = []string{"podCIDR"} }, act: Rest,
			standing: migration.AsDesired, reason: v1alpha1.ReasonAsDesired,
		},
		"the second waits": {
			m: wish("m", v1alpha1.DesiredApplied), act: Rest, standing: migration.UnderWay, reason: v1alpha1.ReasonWaitingForMigration,
			message: "waits for migration first, which was created before",
			change:  func(s *Scene) { s.Others = []v1alpha1.Migration{*wish("first", v1alpha1.DesiredApplied, created(999))} },
		},
		"the first does not": {
			m: wish("m", v1alpha1.DesiredApplied), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
			change: func(s *Scene) {
				s.Others = []v1alpha1.Migration{*wish("second", v1alpha1.DesiredApplied, created(1001)), *s.Migration}
			},
		},
		"what is half way comes first": {
			m: wish("m", v1alpha1.DesiredApplied), act: Rest, standing: migration.UnderWay, reason: v1alpha1.ReasonWaitingForMigration,
			message: "waits for migration other, which has begun and is paused",
			change: func(s *Scene) {
				s.Others = []v1alpha1.Migration{*wish("other", v1alpha1.DesiredApplied, created(2000), in(v1alpha1.PhaseApplying), pausing)}
			},
		},
		"one that rests is not waited for": {
			m: wish("m", v1alpha1.DesiredApplied), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
			change: func(s *Scene) {
				s.Others = []v1alpha1.Migration{
					*wish("done", v1alpha1.DesiredApplied, created(1), in(v1alpha1.PhaseMoved), says(migration.AsDesired, v1alpha1.ReasonAsDesired)),
					*wish("paused", v1alpha1.DesiredApplied, created(2), pausing),
					*wish("stalled", v1alpha1.DesiredApplied, created(3), says(migration.Stalled, v1alpha1.ReasonBlocked)),
					*wish("planned", v1alpha1.DesiredPlanned, created(4)),
					*wish("asks", v1alpha1.DesiredFinished, created(5), in(v1alpha1.PhaseMoved), says(migration.UnderWay, v1alpha1.ReasonApprovalNeeded)),
				}
			},
		},
		"a plan waits for none": {
			m: wish("m", v1alpha1.DesiredPlanned), act: Plan, standing: migration.UnderWay, reason: v1alpha1.ReasonPlanning,
			change: func(s *Scene) { s.Others = []v1alpha1.Migration{*wish("first", v1alpha1.DesiredApplied, created(999))} },
		},
		"a plan is to be approved": {
			m: wish("m", v1alpha1.DesiredApplied), act: Plan, standing: migration.UnderWay, reason: v1alpha1.ReasonPlanning,
			change: func(s *Scene) { s.PlansApproved = true },
		},
		"the plan is to be approved": {
			m: wish("m", v1alpha1.DesiredApplied), act: Rest, standing: migration.UnderWay, reason: v1alpha1.ReasonApprovalNeeded, message: "replumb.dev/approve=plan:abc",
			change: func(s *Scene) { s.PlansApproved, s.Planned = true, Planned{"abc", 3} },
		},
		"the plan is approved": {
			m: wish("m", v1alpha1.DesiredApplied, approves("plan:abc")), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
			change: func(s *Scene) { s.Planned = Planned{"abc", 3} },
		},
		"another plan is approved": {
			m: wish("m", v1alpha1.DesiredApplied, approves("plan:old")), act: Rest, standing: migration.Stalled, reason: v1alpha1.ReasonPlanChanged,
			message: "plan old was approved, and the plan is abc now", change: func(s *Scene) { s.Planned = Planned{"abc", 3} },
		},
		"a plan that was begun is not asked for again": {
			m: wish("m", v1alpha1.DesiredApplied, in(v1alpha1.PhaseApplying), approves("plan:old")), act: Apply, standing: migration.UnderWay, reason: v1alpha1.ReasonApplying,
		},
		"deleted": {
			m: wish("m", v1alpha1.DesiredApplied, func(m *v1alpha1.Migration) { m.DeletionTimestamp = &metav1.Time{Time: now} }), act: Rest,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Scene{Migration: tt.m, Kinds: migrations.All(), Revisions: Revisions{Own: 8, Cluster: 8}, Now: now}
			if tt.change != nil {
				tt.change(&s)
			}
			d := Decide(s)
			if d.Act != tt.act || d.Standing != tt.standing || tt.reason != "" && d.Reason != tt.reason ||
				!strings.Contains(d.Message, tt.message) {
				t.Errorf("got %+v", d)
			}
			if (d.Reason == v1alpha1.ReasonApprovalNeeded) != (d.Gate != "") {
				t.Errorf("gate %q with reason %s", d.Gate, d.Reason)
			}
			if d.Paused != s.Migration.Spec.Paused {
				t.Errorf("paused: %t", d.Paused)
			}
		})
	}
}

// TestFinishIsNeverDecidedWithoutApproval goes through all phases and approvals: nothing but the
// approval of finish leads to it.
func TestFinishIsNeverDecidedWithoutApproval(t *testing.T) {
	for _, desired := range []v1alpha1.DesiredState{
		"", v1alpha1.DesiredPlanned, v1alpha1.DesiredApplied, v1alpha1.DesiredRolledBack, v1alpha1.DesiredFinished,
	} {
		for _, phase := range []v1alpha1.Phase{
			"", v1alpha1.PhaseApplying, v1alpha1.PhaseMoved, v1alpha1.PhaseRollingBack, v1alpha1.PhaseRolledBack, v1alpha1.PhaseFinishing, v1alpha1.PhaseFinished,
		} {
			for _, words := range []string{"", "plan:abc", "gate:finish=finish", "losses:finish", "finish", "plan:abc,finish", "finish:now", "of this attempt"} {
				m := wish("m", desired, in(phase), approves(words))
				if words == "of this attempt" {
					approvesFinish(m)
				}
				s := Scene{Migration: m, Kinds: migrations.All(), Revisions: Revisions{8, 8}, Planned: Planned{"abc", 1}, Now: time.Unix(1, 0)}
				if d := Decide(s); d.Act == Finish && (words != "of this attempt" || desired != v1alpha1.DesiredFinished) {
					t.Errorf("desired %q, phase %q, approved %q: %+v", desired, phase, words, d)
				}
			}
		}
	}
}

// TestRunIsEndedByOtherSettings, and not by what it has recorded itself.
func TestRunIsEndedByOtherSettings(t *testing.T) {
	then := wish("m", v1alpha1.DesiredApplied)
	for name, tt := range map[string]struct {
		change func(*v1alpha1.Migration)
		want   bool
	}{
		"nothing":        {func(*v1alpha1.Migration) {}, false},
		"defaults":       {func(m *v1alpha1.Migration) { spec.Default(m) }, false},
		"batch":          {func(m *v1alpha1.Migration) { m.Spec.Batch.Size = 3 }, true},
		"a pause":        {pausing, false}, // Decide ends it
		"another target": {func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.To = []string{"172.25.0.0/16"} }, true},
	} {
		now := then.DeepCopy()
		tt.change(now)
		if got := changed(then, now); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
