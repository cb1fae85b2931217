// Package controller runs Migrations that are created in the cluster, one at a time under the lock
// that every replumb takes.
package controller

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

// Act is what a Migration needs next.
type Act string

// The acts. To rest is to do nothing: the Decision says why.
const (
	Rest     Act = "Rest"
	Plan     Act = "Plan"
	Apply    Act = "Apply"
	Rollback Act = "Rollback"
	Finish   Act = "Finish"
)

// Scene is all that a decision is made of.
type Scene struct {
	Migration *v1alpha1.Migration
	Kinds     migrations.Kinds
	Revisions Revisions
	// Only are the kinds that the operator has rights for, by their fields; none is all.
	Only   []string
	Others []v1alpha1.Migration
	// Allowed are digests of calls that the operator was started to make.
	Allowed       []string
	PlansApproved bool
	Planned       Planned
	// Last is how the latest run here ended, if it failed; nil if none did.
	Last *Outcome
	Now  time.Time
}

// Revisions of a schema: the operator's, and the cluster's, which is -1 if there is none.
type Revisions struct{ Own, Cluster int }

// Planned is a plan.
type Planned struct {
	Hash  string
	Steps int
}

// Decision is what to do with a Migration, and what its conditions say meanwhile.
type Decision struct {
	Act Act
	// Standing, Reason and Message are for Ready and its companions; a Standing of "" leaves them.
	Standing        migration.Condition
	Reason, Message string
	// Gate is what a person has to do first; empty if nothing.
	Gate   string
	Paused bool
	// After is when to decide again if nothing happens; zero is whenever.
	After time.Duration
}

// Decide says what a Migration needs next. It is a pure function.
func Decide(s Scene) Decision {
	d := decide(s)
	d.Paused = s.Migration.Spec.Paused
	if d.Act != Rest && s.again() && s.Last.Verdict.Standing == migration.Stalled {
		d.Standing = "" // it is stalled until it is seen that it is not
	}
	return d
}

func decide(s Scene) Decision {
	m := s.Migration
	if !m.DeletionTimestamp.IsZero() {
		return Decision{Act: Rest}
	}
	if d, refused := s.refused(); refused {
		return d
	}
	d := s.course()
	if d.Act == Rest {
		return d
	}
	approved, err := migration.Approved(m)
	if err != nil {
		return stalled(v1alpha1.ReasonInvalid, withAdvice(err))
	}
	for _, step := range []func(Scene, Decision, migration.Approvals) (Decision, bool){
		leftOut, unrepaired, paused, uncalled, failed, ordered, second, unplanned, unapproved,
	} {
		if held, holds := step(s, d, approved); holds {
			return held
		}
	}
	return d
}

func stalled(reason, message string) Decision {
	return Decision{Act: Rest, Standing: migration.Stalled, Reason: reason, Message: message}
}

func withAdvice(err error) string {
	if hint := cmp.Or(fault.Advice(err), admission.Advice(err)); hint != "" {
		return err.Error() + "\nhint: " + hint
	}
	return err.Error()
}

// refused has nothing done under another build's definition: it would drop fields.
func (s Scene) refused() (Decision, bool) {
	r := s.Revisions
	if r.Own == r.Cluster {
		return Decision{}, false
	}
	side := "install the operator of the version that the definition is of"
	if r.Cluster < r.Own {
		side = "install the definition of the operator's version: replumb install --crds-only --apply"
	}
	return stalled(v1alpha1.ReasonVersionMismatch, fmt.Sprintf(
		"customresourcedefinition migrations.replumb.dev has schema revision %d, and the operator knows revision %d\nhint: %s",
		r.Cluster, r.Own, side)), true
}

// leftOut has nothing begun that the operator lacks the rights for.
func leftOut(s Scene, _ Decision, _ migration.Approvals) (Decision, bool) {
	kind := s.Migration.Spec.Type()
	if len(s.Only) == 0 || kind == "" || slices.Contains(s.Only, kind) {
		return Decision{}, false
	}
	return stalled(v1alpha1.ReasonKindLeftOut, fmt.Sprintf(
		"the operator was started for %s, and has no rights for migrations with spec.%s\n"+
			"hint: add %[2]s to rbac.kinds of the chart; or have a person with the rights run replumb with --local",
		strings.Join(s.Only, ", "), kind)), true
}

func (s Scene) course() Decision {
	m := s.Migration
	switch m.Spec.Desired {
	case v1alpha1.DesiredApplied:
		return forward(m)
	case v1alpha1.DesiredRolledBack:
		return s.backward()
	case v1alpha1.DesiredFinished:
		return s.toTheEnd()
	}
	if !begun(m) {
		return planning(m)
	}
	if over(m) {
		return settled(m)
	}
	return stalled(v1alpha1.ReasonNotPossible, "spec.desired is Planned, and the migration has begun: nothing goes on\n"+
		"hint: set spec.desired to Applied to carry on, or to RolledBack to go back")
}

// planning leaves the conditions of an existing plan as they are while it is made again.
func planning(m *v1alpha1.Migration) Decision {
	d := Decision{Act: Plan, Standing: migration.UnderWay, Reason: v1alpha1.ReasonPlanning, Message: "making the plan"}
	if arrived(m) {
		d.Standing = ""
	}
	return d
}

func forward(m *v1alpha1.Migration) Decision {
	if err := migration.Applicable(m); err != nil {
		return stalled(v1alpha1.ReasonNotPossible, err.Error()+"\nhint: set spec.desired to Finished")
	}
	if m.Status.Phase == v1alpha1.PhaseMoved && arrived(m) {
		return settled(m)
	}
	return Decision{Act: Apply, Standing: migration.UnderWay, Reason: v1alpha1.ReasonApplying, Message: "apply is under way"}
}

func (s Scene) backward() Decision {
	m := s.Migration
	if err := migration.Reversible(m, s.Kinds.Of(m).Words.Return); err != nil {
		return stalled(v1alpha1.ReasonNotPossible, withAdvice(err))
	}
	switch {
	case m.Status.Phase == "":
		return Decision{
			Act: Rest, Standing: migration.AsDesired, Reason: v1alpha1.ReasonAsDesired,
			Message: "nothing was begun, so there is nothing to take back",
		}
	case m.Status.Phase == v1alpha1.PhaseRolledBack && (arrived(m) || Lost(m)):
		return settled(m)
	}
	return Decision{Act: Rollback, Standing: migration.UnderWay, Reason: v1alpha1.ReasonRollingBack, Message: "rollback is under way"}
}

func (s Scene) toTheEnd() Decision {
	m := s.Migration
	switch m.Status.Phase {
	case v1alpha1.PhaseFinished:
		return settled(m)
	case v1alpha1.PhaseMoved, v1alpha1.PhaseFinishing:
		return Decision{Act: Finish, Standing: migration.UnderWay, Reason: v1alpha1.ReasonFinishing, Message: "finish is under way"}
	}
	if m.Status.PointOfNoReturnPassed {
		return Decision{Act: Finish, Standing: migration.UnderWay, Reason: v1alpha1.ReasonFinishing, Message: "finish is under way"}
	}
	if why := s.Kinds.Describe(m).Words.ApplyFirst; why != "" {
		return stalled(v1alpha1.ReasonNotPossible, why+"\nhint: set spec.desired to Applied first")
	}
	return forward(m)
}

// settled leaves a Migration and its conditions as they are.
func settled(m *v1alpha1.Migration) Decision {
	if Lost(m) {
		return Decision{Act: Rest}
	}
	return Decision{
		Act: Rest, Standing: migration.AsDesired, Reason: v1alpha1.ReasonAsDesired, Message: "the cluster is as spec.desired says",
	}
}

func paused(s Scene, _ Decision, _ migration.Approvals) (Decision, bool) {
	return Decision{
		Act: Rest, Standing: migration.AtRest, Reason: v1alpha1.ReasonPaused,
		Message: "a pause was asked for; replumb resume " + s.Migration.Name + " carries on",
	}, s.Migration.Spec.Paused
}

// uncalled has nothing done that would make other calls than the operator was started with: writers
// of Migrations must not command it.
func uncalled(s Scene, _ Decision, _ migration.Approvals) (Decision, bool) {
	calls := spec.Calls(s.Migration)
	digest := spec.Digest(s.Migration)
	if digest == "" || slices.Contains(s.Allowed, digest) {
		return Decision{}, false
	}
	lines := []string{"the Migration has calls that the operator was not started to make:"}
	for _, c := range calls {
		lines = append(lines, "  "+c.String())
	}
	lines = append(lines, fmt.Sprintf(
		"hint: if all of them are meant, start the operator with --allow-calls %s; or take them out; or run replumb with --local", digest))
	return stalled(v1alpha1.ReasonCallsNotAllowed, strings.Join(lines, "\n")), true
}

// unrepaired has nothing go forward after a stop that no one has looked at.
func unrepaired(s Scene, d Decision, approved migration.Approvals) (Decision, bool) {
	m := s.Migration
	word := RepairWord(m)
	if d.Act == Rollback || word == "" || slices.Contains(approved.Repaired, word) {
		return Decision{}, false
	}
	repair := "repair what the probe met with"
	if !Lost(m) {
		repair = "find the cause on that node"
	}
	return stalled(stallReason(m), m.Status.LastError+"\nhint: "+repair+", then: "+annotate(m, word)), true
}

func failed(s Scene, _ Decision, _ migration.Approvals) (Decision, bool) {
	if !s.again() {
		return Decision{}, false
	}
	left := s.Last.At.Add(s.Last.Verdict.After).Sub(s.Now)
	v := s.Last.Verdict
	return Decision{Act: Rest, Standing: v.Standing, Reason: v.Reason, Message: v.Message, After: left}, left > 0
}

// again reports whether the failed request is still the same.
func (s Scene) again() bool { return s.Last != nil && s.Last.Of == fingerprint(s.Migration) }

// second has a Migration wait for another that comes first: there is one lock.
func second(s Scene, d Decision, _ migration.Approvals) (Decision, bool) {
	first := s.ahead()
	if first == nil || d.Act == Plan {
		return Decision{}, false
	}
	return Decision{
		Act: Rest, Standing: migration.UnderWay, Reason: v1alpha1.ReasonWaitingForMigration,
		Message: fmt.Sprintf("waits for migration %s, which %s", first.Name, doing(first)),
	}, true
}

func unplanned(s Scene, d Decision, approved migration.Approvals) (Decision, bool) {
	now := s.Planned
	switch {
	case d.Act == Plan && now.Hash != "":
		return Decision{
			Act: Rest, Standing: migration.AsDesired, Reason: v1alpha1.ReasonPlanned,
			Message: fmt.Sprintf("plan %s has %d steps; spec.desired: Applied carries it out", now.Hash, now.Steps),
		}, true
	case d.Act != Apply || begun(s.Migration) || len(approved.Plans) == 0 && !s.PlansApproved:
		return Decision{}, false
	case now.Hash == "":
		return Decision{Act: Plan, Standing: migration.UnderWay, Reason: v1alpha1.ReasonPlanning, Message: "making the plan"}, true
	case len(approved.Plans) == 0:
		return wanted(s.Migration, "plan:"+now.Hash,
			fmt.Sprintf("plan %s, of %d steps, is to be approved before it is carried out", now.Hash, now.Steps)), true
	case !slices.Contains(approved.Plans, now.Hash):
		return stalled(v1alpha1.ReasonPlanChanged, fmt.Sprintf(
			"plan %s was approved, and the plan is %s now\nhint: look at it with replumb plan, then: %s",
			strings.Join(approved.Plans, ", "), now.Hash, annotate(s.Migration, "plan:"+now.Hash))), true
	}
	return Decision{}, false
}

// unapproved has no point of no return passed without approval.
func unapproved(s Scene, d Decision, approved migration.Approvals) (Decision, bool) {
	if d.Act != Finish || approved.Finish || s.Migration.Status.PointOfNoReturnPassed {
		return Decision{}, false
	}
	return wanted(s.Migration, migration.FinishWord(s.Migration), "the next step takes old addresses away for good, and is to be approved"), true
}

func wanted(m *v1alpha1.Migration, word, message string) Decision {
	message += "\nhint: " + annotate(m, word)
	return Decision{Act: Rest, Standing: migration.UnderWay, Reason: v1alpha1.ReasonApprovalNeeded, Message: message, Gate: message}
}

func annotate(m *v1alpha1.Migration, word string) string {
	with := m.DeepCopy()
	migration.Approve(with, word)
	return fmt.Sprintf("kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		m.Name, v1alpha1.AnnotationApprove, with.Annotations[v1alpha1.AnnotationApprove])
}

// fingerprint stands for what people ask of a Migration: when it changes, a failed run is tried
// again at once. Defaults that a run records do not change it.
func fingerprint(m *v1alpha1.Migration) string {
	whole := m.DeepCopy()
	spec.Default(whole)
	parts := []string{encoded(whole.Spec)}
	for _, key := range []string{
		v1alpha1.AnnotationApprove, v1alpha1.AnnotationRequestedAt, v1alpha1.AnnotationAPIServers, v1alpha1.AnnotationKubelets,
		v1alpha1.AnnotationControllerManagers, v1alpha1.AnnotationInstaller, v1alpha1.AnnotationCluster, v1alpha1.AnnotationSingletons,
	} {
		parts = append(parts, m.Annotations[key])
	}
	return digest(parts...)
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:12]
}
