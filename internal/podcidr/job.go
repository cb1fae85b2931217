package podcidr

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/lock"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/proof"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/tier"
)

// maxRounds bounds how often a run looks again for what appeared while it ran.
const maxRounds = 8

// Job runs one Migration.
type Job struct {
	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec

	// Until is the phase to stop after; empty means to go on to the end.
	Until string
	// Expected is a plan that somebody has looked at: apply refuses to do more. Nil expects nothing.
	Expected *migration.Expectation
	// Holder is who holds the lock. Default: this process.
	Holder *lock.Holder

	crew     proof.Crew
	recorded *v1alpha1.Migration
	access   []cluster.AccessAnswer
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Migration: m, Spec: s}
	return j, j.agents().Check()
}

func (j *Job) keeper() *migration.Keeper {
	return &migration.Keeper{Client: j.Tools.Cluster, Name: j.Spec.Name, Holder: j.Holder, Now: j.Tools.now}
}

// guarded is the keeper of a run that agents watch, if there are any.
func (j *Job) guarded(lenient bool) *migration.Keeper { return j.agents().Keep(j.keeper(), lenient) }

// Adopt compares the Migration at hand with the one in the cluster, if there is one, and takes over what that one has
// settled. A different job under the same name is refused.
func (j *Job) Adopt(ctx context.Context) (*v1alpha1.Migration, error) {
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil || have == nil {
		return nil, err
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if settled := whole.Spec.PodCIDR; settled != nil && len(j.Migration.Spec.PodCIDR.From) == 0 {
		j.Migration.Spec.PodCIDR.From = settled.From
	}
	if !equality.Semantic.DeepEqual(whole.Spec.PodCIDR, j.Migration.Spec.PodCIDR) {
		return nil, &spec.Error{
			Field: root, Problem: fmt.Sprintf("differs from migration %s in the cluster", have.Name),
			Hint: "a migration that has begun cannot be changed: use its spec, or roll it back and give the new one another name",
		}
	}
	if j.Spec, err = Validate(j.Migration); err != nil {
		return nil, err
	}
	j.recorded, j.Migration.Status = have, have.Status
	return have, nil
}

// Examine looks at the cluster and makes the planner of the migration.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	survey, err := j.Look(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := tier.NewRules(&j.Spec.Common, ownServices)
	if err != nil {
		return nil, err
	}
	p := &Planner{Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(), Rules: rules, Recorded: j.recorded != nil}
	p.Migration.Spec.PodCIDR.From = texts(survey.Spec.From)
	j.enlist(p)
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	if err := p.validateImage(); err != nil {
		return nil, err
	}
	crd, err := j.Tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return nil, err
	}
	p.HasCRD = crd != nil
	snap, err := j.snapshot(ctx, survey)
	if err != nil {
		return nil, err
	}
	p.Findings = check.Run(survey.checks(), Input{Survey: survey, Snapshot: snap})
	return p, nil
}

// validateImage refuses to run pods without an image.
func (p *Planner) validateImage() error {
	hint := "name an image of replumb that the nodes can pull"
	switch {
	case p.image() != "":
		return nil
	case p.spec().Canary.Mode == v1alpha1.PodCanaryRun:
		hint += ", or set mode: Disabled"
	case p.holds():
		hint += ", or set " + root + ".tunnels.mode: Leave"
	default:
		return nil
	}
	return &spec.Error{
		Field: root + ".canary.image", Problem: "is empty, and this build of replumb has no image of its own", Hint: hint,
	}
}

// ownServices are the cluster's own: their pods are restarted last.
func ownServices(svc *corev1.Service) bool { return svc.Namespace == metav1.NamespaceSystem }

func texts(all []netip.Prefix) []string {
	var out []string
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// Apply moves every pod. What appears in the old range meanwhile is swept up before it ends.
func (j *Job) Apply(ctx context.Context, r *engine.Runner) (*Survey, error) {
	p, err := j.applicable(ctx)
	if err != nil {
		return nil, err
	}
	if len(p.Findings.Blocking()) > 0 { // before anything is written, the lock included
		if holder, err := lock.Current(ctx, j.Tools.Cluster); err == nil && holder != nil {
			return nil, &lock.HeldError{Holder: *holder}
		}
		return nil, j.keeper().Run(ctx, r, p.Apply(), v1alpha1.PhaseApplying, p.Survey.Counts)
	}
	if j.Expected != nil {
		if err := j.Expected.Check(p.Outstanding(ctx)); err != nil {
			return nil, err
		}
	}
	j.agents().Found(p.Findings)
	err = j.guarded(false).Locked(ctx, "apply", func(ctx context.Context) error {
		for range maxRounds {
			over, err := j.applyRound(ctx, r, p)
			if err != nil || over {
				return err
			}
			if p, err = j.applicable(ctx); err != nil {
				return err
			}
			p.Proven = true // by the round before
		}
		return fmt.Errorf("pods keep appearing in the old range: gave up after %d rounds", maxRounds)
	})
	if err != nil {
		return nil, err
	}
	return j.Look(ctx)
}

// applyRound runs what can be planned by now: before the old pools are disabled pods still come and go there. It is over
// when a whole plan went through and left nothing to restart.
func (j *Job) applyRound(ctx context.Context, r *engine.Runner, p *Planner) (over bool, err error) {
	plan := p.Apply()
	last := p.Survey.Switched() || p.Survey.OnNodes()
	if !last {
		if plan, err = plan.Until(phaseSwitch); err != nil {
			return false, err
		}
	}
	stopsHere := false
	if j.Until != "" {
		if until, err := plan.Until(j.Until); err == nil {
			plan, stopsHere = until, true
		}
	}
	if err := j.keeper().Run(ctx, r, plan, v1alpha1.PhaseApplying, p.Survey.Counts); err != nil {
		return false, err
	}
	if stopsHere {
		return true, client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) {
			migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
		}))
	}
	if !last {
		return false, nil
	}
	after, err := j.Look(ctx)
	if err != nil || len(after.restartable(forth, j.Tools.now())) > 0 {
		return false, err
	}
	return true, j.keeper().Settle(ctx, v1alpha1.PhaseMoved, after.Counts(), nil)
}

// applicable examines the cluster, unless the migration is beyond apply.
func (j *Job) applicable(ctx context.Context) (*Planner, error) {
	have, err := j.Adopt(ctx)
	if err != nil {
		return nil, err
	}
	if have != nil {
		if err := migration.Applicable(have); err != nil {
			return nil, err
		}
	}
	return j.Examine(ctx)
}

// Rollback brings every pod back to the old range.
func (j *Job) Rollback(ctx context.Context, r *engine.Runner) error {
	if err := migration.Reversible(j.Migration); err != nil {
		return err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return err
	}
	return j.guarded(true).Locked(ctx, "rollback", func(ctx context.Context) error {
		if err := j.keeper().Desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		p, err := j.returnable(ctx)
		if err != nil {
			return err
		}
		if !p.Survey.OnNodes() && !p.Survey.closed(back) { // until then pods come and go with new addresses
			reopen, err := p.Rollback().Until(phaseReopen)
			if err != nil {
				return err
			}
			if err := j.keeper().Run(ctx, r, reopen, v1alpha1.PhaseRollingBack, p.Survey.Counts); err != nil {
				return err
			}
			if p, err = j.returnable(ctx); err != nil {
				return err
			}
		}
		if err := j.keeper().Run(ctx, r, p.Rollback(), v1alpha1.PhaseRollingBack, p.Survey.Counts); err != nil {
			return err
		}
		return j.keeper().Settle(ctx, v1alpha1.PhaseRolledBack, v1alpha1.Counts{}, nil)
	})
}

// returnable examines the cluster for the way back.
func (j *Job) returnable(ctx context.Context) (*Planner, error) {
	if _, err := j.Adopt(ctx); err != nil {
		return nil, err
	}
	return j.Examine(ctx)
}

// Finish deletes the old pools. There is no way back from it.
func (j *Job) Finish(ctx context.Context, r *engine.Runner) error {
	p, err := j.Finishable(ctx)
	if err != nil || j.Migration.Status.Phase == v1alpha1.PhaseFinished {
		return err
	}
	return j.guarded(false).Locked(ctx, "finish", func(ctx context.Context) error {
		if err := j.keeper().Desire(ctx, v1alpha1.DesiredFinished); err != nil {
			return err
		}
		if err := j.keeper().Run(ctx, r, p.Finish(), v1alpha1.PhaseFinishing, p.Survey.Counts); err != nil {
			return err
		}
		return j.keeper().Settle(ctx, v1alpha1.PhaseFinished, p.Survey.Counts(), nil)
	})
}

// Finishable makes the planner of finish, or says why it is too early.
func (j *Job) Finishable(ctx context.Context) (*Planner, error) {
	if _, err := j.Adopt(ctx); err != nil {
		return nil, err
	}
	if err := migration.Finishable(j.Migration); err != nil {
		return nil, err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return nil, err
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if problem := p.unfinished(); problem != "" && !j.Migration.Status.PointOfNoReturnPassed {
		return nil, &migration.StateError{
			Name:    j.Spec.Name,
			Problem: "cannot be finished: " + problem,
			Hint:    "run replumb apply -f FILE first",
		}
	}
	return p, nil
}

// unfinished says what apply has left to do; nothing, if it has nothing.
func (p *Planner) unfinished() string {
	if unsettled := p.Survey.Unsettled(forth); p.Survey.OnNodes() && len(unsettled) > 0 {
		return fmt.Sprintf("%d nodes are not settled in the target, the first is %s", len(unsettled), unsettled[0].Node.Name)
	}
	if !p.Survey.Switched() {
		return "the old pools still give addresses to new pods"
	}
	if pods := p.Survey.PodsIn(p.spec().From); len(pods) > 0 {
		return fmt.Sprintf("%s with old addresses, the first is %s/%s",
			english.Plural(len(pods), "pod", ""), pods[0].Namespace, pods[0].Name)
	}
	for i := range p.Survey.Installations {
		for _, from := range p.spec().From {
			if _, has := p.Survey.Installations[i].pool(from); has { // its operator would make the pool again
				return fmt.Sprintf("installation %s lists the old pool %s", p.Survey.Installations[i].Name, from)
			}
		}
	}
	if nodes := p.Survey.TunnelsIn(p.spec().From); len(nodes) > 0 {
		return fmt.Sprintf("the tunnels of %d nodes have old addresses, the first is %s", len(nodes), nodes[0])
	}
	return ""
}

// Pause asks every run of the migration to stop before its next group of steps, and keeps others from starting.
func (j *Job) Pause(ctx context.Context) error { return j.setPaused(ctx, true) }

// Resume takes a pause back. The caller then carries on with what spec.desired says.
func (j *Job) Resume(ctx context.Context) error { return j.setPaused(ctx, false) }

func (j *Job) setPaused(ctx context.Context, paused bool) error {
	if err := j.keeper().Pause(ctx, paused); err != nil {
		return err
	}
	j.Migration.Spec.Paused = paused
	return nil
}
