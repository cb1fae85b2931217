package nodes

import (
	"context"
	"fmt"
	"slices"

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
	"github.com/replumb/replumb/internal/etcd"
	"github.com/replumb/replumb/internal/lock"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/rollout"
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

	recorded *v1alpha1.Migration
	access   []cluster.AccessAnswer
	etcd     *etcd.Client
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	return &Job{Tools: tools, Migration: m, Spec: s}, nil
}

func (j *Job) keeper() *migration.Keeper {
	return &migration.Keeper{Client: j.Tools.Cluster, Name: j.Spec.Name, Holder: j.Holder, Now: j.Tools.now}
}

// Adopt compares the Migration at hand with the one in the cluster, if there is one. A different job under the same name is
// refused.
func (j *Job) Adopt(ctx context.Context) (*v1alpha1.Migration, error) {
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil || have == nil {
		return nil, err
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if !equality.Semantic.DeepEqual(whole.Spec.Nodes, j.Migration.Spec.Nodes) {
		return nil, &spec.Error{
			Field: root, Problem: fmt.Sprintf("differs from migration %s in the cluster", have.Name),
			Hint: "a migration that has begun cannot be changed: use its spec, or roll it back and give the new one another name",
		}
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
	p := &Planner{
		Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(), Recorded: j.recorded != nil, turns: rollout.NewTurns(),
	}
	if err := j.sortIntoTiers(survey); err != nil {
		return nil, err
	}
	in := Input{Survey: survey, Access: j.access}
	if p.Etcd, in.EtcdProblem = j.lookAtEtcd(ctx, survey); in.EtcdProblem != nil {
		survey.Etcd = nil
	}
	if in.RecordProblems, err = j.lookAtRecords(ctx, p); err != nil {
		return nil, err
	}
	if j.Spec.Canary.Mode == v1alpha1.PodCanaryRun && p.image() == "" {
		return nil, &spec.Error{
			Field: root + ".canary.image", Problem: "is empty, and this build of replumb has no image of its own",
			Hint: "name an image of replumb that the nodes can pull, or set mode: Disabled",
		}
	}
	crd, err := j.Tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return nil, err
	}
	p.HasCRD = crd != nil
	p.Findings = check.Run(Checks(), in)
	return p, nil
}

// sortIntoTiers sorts each workload as a Service of the same namespace, name and labels would be.
func (j *Job) sortIntoTiers(s *Survey) error {
	rules, err := tier.NewRules(&j.Spec.Common, func(svc *corev1.Service) bool { return svc.Namespace == metav1.NamespaceSystem })
	if err != nil {
		return err
	}
	order := rules.Names()
	s.Tier = func(p *corev1.Pod) int {
		key := s.workloadOf(p)
		as := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: key.Name, Labels: p.Labels}}
		return slices.Index(order, tier.Assign([]*corev1.Service{as}, rules, nil).Of[client.ObjectKeyFromObject(as)])
	}
	return nil
}

// lookAtEtcd asks its members, if the control plane moves. The connection is kept for as long as the job is.
func (j *Job) lookAtEtcd(ctx context.Context, s *Survey) (*etcd.Client, error) {
	if j.Spec.ControlPlane == nil {
		return nil, nil
	}
	if j.etcd == nil {
		var err error
		if j.etcd, err = j.Spec.openEtcd(ctx, s.Remembered); err != nil {
			return nil, err
		}
	}
	var err error
	s.Etcd, err = j.etcd.Look(ctx)
	return j.etcd, err
}

// lookAtRecords asks for every record whether it can be moved, by what it is called.
func (j *Job) lookAtRecords(ctx context.Context, p *Planner) (map[string]error, error) {
	var err error
	if p.Records, err = j.Tools.moves(ctx, j.Spec, j.Spec.Records); err != nil {
		return nil, err
	}
	if j.Spec.ControlPlane != nil {
		if p.APIRecords, err = j.Tools.moves(ctx, j.Spec, j.Spec.ControlPlane.Records); err != nil {
			return nil, err
		}
	}
	return looked(ctx, append(slices.Clone(p.Records), p.APIRecords...)), nil
}

// Apply empties every old node. What appears there meanwhile is swept up before it ends.
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
	err = j.keeper().Locked(ctx, "apply", func(ctx context.Context) error {
		for range maxRounds {
			over, err := j.applyRound(ctx, r, p)
			if err != nil || over {
				return err
			}
			if p, err = j.applicable(ctx); err != nil {
				return err
			}
		}
		return fmt.Errorf("pods keep appearing on old nodes: gave up after %d rounds", maxRounds)
	})
	if err != nil {
		return nil, err
	}
	return j.Look(ctx)
}

// applyRound runs one plan. It is over when that left nothing to empty.
func (j *Job) applyRound(ctx context.Context, r *engine.Runner, p *Planner) (over bool, err error) {
	plan := p.Apply()
	if j.Until != "" {
		if plan, err = plan.Until(j.Until); err != nil {
			return false, err
		}
	}
	if err := j.keeper().Run(ctx, r, plan, v1alpha1.PhaseApplying, p.Survey.Counts); err != nil {
		return false, err
	}
	if j.Until != "" {
		return true, client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) {
			migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
		}))
	}
	after, err := j.Look(ctx)
	if err != nil || len(after.outstanding(j.Spec.Terminate.When == v1alpha1.TerminateEach)) > 0 {
		return false, err
	}
	return true, j.keeper().Settle(ctx, v1alpha1.PhaseMoved, after.Counts(), nil)
}

// Outstanding is apply without what is there already.
func (p *Planner) Outstanding(ctx context.Context) *engine.Plan {
	return p.Apply().Outstanding(ctx, "secure", "ingress", "taint", "restore")
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

// Rollback brings pods back to those old nodes that are still there.
func (j *Job) Rollback(ctx context.Context, r *engine.Runner) error {
	if err := migration.Reversible(j.Migration); err != nil {
		return err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return err
	}
	return j.keeper().Locked(ctx, "rollback", func(ctx context.Context) error {
		if err := j.keeper().Desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		if _, err := j.Adopt(ctx); err != nil {
			return err
		}
		p, err := j.Examine(ctx)
		if err != nil {
			return err
		}
		if err := j.keeper().Run(ctx, r, p.Rollback(), v1alpha1.PhaseRollingBack, p.Survey.Counts); err != nil {
			return err
		}
		return j.keeper().Settle(ctx, v1alpha1.PhaseRolledBack, v1alpha1.Counts{}, nil)
	})
}

// Finish ends what is left of old nodes. There is no way back from it.
func (j *Job) Finish(ctx context.Context, r *engine.Runner) error {
	p, err := j.Finishable(ctx)
	if err != nil || j.Migration.Status.Phase == v1alpha1.PhaseFinished {
		return err
	}
	return j.keeper().Locked(ctx, "finish", func(ctx context.Context) error {
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
	if left := p.Survey.outstanding(false); len(left) > 0 && !j.Migration.Status.PointOfNoReturnPassed {
		return nil, &migration.StateError{
			Name: j.Spec.Name, Hint: "run replumb apply -f FILE first",
			Problem: fmt.Sprintf("cannot be finished: %s not empty, the first is %s",
				english.Plural(len(left), "old node is", "old nodes are"), left[0].Name),
		}
	}
	for _, c := range p.Survey.Chiefs() {
		if c.Stage() != StageGone && !j.Migration.Status.PointOfNoReturnPassed {
			return nil, &migration.StateError{
				Name:    j.Spec.Name,
				Hint:    "run replumb apply -f FILE first",
				Problem: "cannot be finished: control plane " + c.Name + " has not ended",
			}
		}
	}
	return p, nil
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
