package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/freeze"
	"github.com/replumb/replumb/internal/lock"
)

// maxRounds bounds how often a run looks again for what appeared while it ran.
const maxRounds = 8

// Apply moves every Service and retires the old range. What appears in the old range meanwhile is swept up before it ends.
func (j *Job) Apply(ctx context.Context, r *engine.Runner) (*Survey, error) {
	if err := j.applicable(ctx); err != nil {
		return nil, err
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if len(p.Findings.Blocking()) > 0 { // before anything is written, the lock included
		// Another run may well be what blocks: it is named first.
		if holder, err := lock.Current(ctx, j.Tools.Cluster); err == nil && holder != nil {
			return nil, &lock.HeldError{Holder: *holder}
		}
		return nil, j.run(ctx, r, p, p.Apply(), v1alpha1.PhaseApplying)
	}
	if err := j.expected(ctx, p); err != nil {
		return nil, err
	}
	var after *Survey
	err = j.locked(ctx, "apply", func(ctx context.Context) error {
		for range maxRounds {
			over, err := j.applyRound(ctx, r, p)
			if err != nil || over {
				after = p.Survey
				return err
			}
			if err := j.applicable(ctx); err != nil {
				return err
			}
			if p, err = j.Examine(ctx); err != nil {
				return err
			}
		}
		return fmt.Errorf("services keep appearing in the old range: gave up after %d rounds", maxRounds)
	})
	return after, err
}

// applyRound runs what can be planned by now. It is over when a whole plan went through and left nothing to do.
func (j *Job) applyRound(ctx context.Context, r *engine.Runner, p *Planner) (over bool, err error) {
	plan := p.Apply()
	last := !p.early()
	if !last {
		if plan, err = plan.Until(phaseKubelets); err != nil {
			return false, err
		}
	}
	stopsHere := false
	if j.Until != "" {
		if until, err := plan.Until(j.Until); err == nil {
			plan, stopsHere = until, true
		}
	}
	err = j.run(ctx, r, p, plan, v1alpha1.PhaseApplying)
	if held := (*RangeInUseError)(nil); errors.As(err, &held) && j.appeared(ctx) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	after, err := j.Examine(ctx)
	if err != nil {
		return false, err
	}
	p.Survey, p.Refresh = after.Survey, after.Refresh
	switch {
	case stopsHere:
		return true, client.IgnoreNotFound(j.status(ctx, func(st *v1alpha1.MigrationStatus) {
			setReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
		}))
	case last && after.idle():
		return true, j.moved(ctx, after)
	}
	return false, nil
}

// moved writes down that apply is over. A run that was killed may have left out what comes after the last hop of a batch.
func (j *Job) moved(ctx context.Context, p *Planner) error {
	if p.frozen() {
		if err := freeze.Clear(ctx, j.Tools.Cluster, j.Spec.Name); err != nil {
			return err
		}
	}
	return j.settle(ctx, v1alpha1.PhaseMoved, p.Survey.Counts(), p.Survey.TierCounts(nil))
}

// early reports whether what comes after phase kubelets cannot be planned yet.
func (p *Planner) early() bool {
	return len(p.Survey.Pending()) > 0 || (len(p.Survey.DNSMoves()) > 0 && p.Migration.Status.NodesRepointedAt == nil)
}

// idle reports whether apply has nothing left to do.
func (p *Planner) idle() bool {
	return len(p.Survey.Pending())+len(p.Survey.Orphans)+len(p.Survey.Strays)+p.Refresh.Steps() == 0 && len(p.unretired()) == 0
}

// appeared reports whether there are Services again that have to move.
func (j *Job) appeared(ctx context.Context) bool {
	s, err := j.Look(ctx)
	return err == nil && len(s.Pending()) > 0
}

// applicable takes over what the cluster has recorded of the migration, unless that is beyond apply.
func (j *Job) applicable(ctx context.Context) error {
	have, err := j.Adopt(ctx)
	switch {
	case err != nil || have == nil:
		return err
	case have.Status.Phase == v1alpha1.PhaseFinished:
		return &StateError{Name: j.Spec.Name, Problem: "is finished", Hint: "give a new migration another name"}
	case have.Status.PointOfNoReturnPassed:
		return &StateError{Name: j.Spec.Name, Problem: "has begun to finish", Hint: "replumb finish " + j.Spec.Name}
	}
	return j.heading(ctx, have, v1alpha1.DesiredApplied)
}

// Rollback brings every Service back to its old address, and then whatever had followed the Services.
func (j *Job) Rollback(ctx context.Context, r *engine.Runner) error {
	if j.Migration.Status.PointOfNoReturnPassed {
		return &StateError{
			Name: j.Spec.Name, Problem: "has passed the point of no return and cannot be rolled back",
			Hint: "to return to the old range, make a new migration with the old range as its target",
		}
	}
	if err := j.mayRun(ctx); err != nil {
		return err
	}
	return j.locked(ctx, "rollback", func(ctx context.Context) error {
		if err := j.desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		for range maxRounds {
			over, err := j.rollbackRound(ctx, r)
			if err != nil || over {
				return err
			}
		}
		return fmt.Errorf("services keep leaving their old addresses: gave up after %d rounds", maxRounds)
	})
}

func (j *Job) rollbackRound(ctx context.Context, r *engine.Runner) (over bool, err error) {
	have, err := GetMigration(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil {
		return false, err
	}
	if have != nil {
		j.Migration.Status = have.Status // the round before may have seen the kubelets
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return false, err
	}
	if err := j.intact(p.Survey); err != nil {
		return false, err
	}
	plan := p.Rollback()
	last := !p.awayStill()
	if !last {
		if plan, err = plan.Until(phaseKubelets); err != nil {
			return false, err
		}
	}
	if err := j.run(ctx, r, p, plan, v1alpha1.PhaseRollingBack); err != nil || !last {
		return false, err
	}
	return true, j.settle(ctx, v1alpha1.PhaseRolledBack, v1alpha1.Counts{Total: len(p.Survey.Moves), Stays: len(p.Survey.Stays)},
		p.Survey.TierCounts(nil))
}

// awayStill reports whether what comes after phase kubelets of a rollback cannot be planned yet.
func (p *Planner) awayStill() bool {
	dns := false
	for _, e := range p.Survey.Moves {
		if e.Place == Moved || e.Place == HalfHopped {
			return true
		}
		dns = dns || (e.Touched && p.Survey.DNS[e.Key()])
	}
	return dns && p.Migration.Status.NodesRepointedAt == nil
}

// Finish takes old addresses away. There is no way back from it.
func (j *Job) Finish(ctx context.Context, r *engine.Runner) error {
	p, err := j.Finishable(ctx)
	if err != nil {
		return err
	}
	if j.Migration.Status.Phase == v1alpha1.PhaseFinished && len(p.Survey.Moves) == 0 {
		return nil
	}
	return j.locked(ctx, "finish", func(ctx context.Context) error {
		if err := j.desire(ctx, v1alpha1.DesiredFinished); err != nil {
			return err
		}
		if err := j.run(ctx, r, p, p.Finish(), v1alpha1.PhaseFinishing); err != nil {
			return err
		}
		counts := j.Migration.Status.Counts
		counts.Bridged = 0
		return j.settle(ctx, v1alpha1.PhaseFinished, counts, j.Migration.Status.Tiers)
	})
}

// Finishable makes the planner of finish, or says why it is too early.
func (j *Job) Finishable(ctx context.Context) (*Planner, error) {
	switch j.Migration.Status.Phase {
	case v1alpha1.PhaseRollingBack, v1alpha1.PhaseRolledBack:
		return nil, &StateError{Name: j.Spec.Name, Problem: "is rolled back; there is nothing to finish", Hint: "replumb apply -f FILE"}
	}
	if err := j.mayRun(ctx); err != nil {
		return nil, err
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if err := j.intact(p.Survey); err != nil {
		return nil, err
	}
	if problem := p.unfinished(); problem != "" && !j.Migration.Status.PointOfNoReturnPassed {
		return nil, &StateError{Name: j.Spec.Name, Problem: "cannot be finished: " + problem, Hint: "run replumb apply -f FILE first"}
	}
	return p, nil
}

// unfinished says what apply has left to do; nothing, if it has nothing.
func (p *Planner) unfinished() string {
	if pending := p.Survey.Pending(); len(pending) > 0 {
		return fmt.Sprintf("%s not moved yet, the first is %s", english.Plural(len(pending), "Service", ""), pending[0].Key())
	}
	if n := p.Refresh.Steps(); n > 0 {
		return fmt.Sprintf("%d workloads carry old addresses and have not been restarted", n)
	}
	if left := p.unretired(); len(left) > 0 {
		return fmt.Sprintf("the old range is not retired: %s is still there", listing(left))
	}
	return ""
}

// unretired names the ServiceCIDRs that apply will delete, or wait for.
func (p *Planner) unretired() []string {
	if p.spec().Mode == v1alpha1.ModeExtend {
		return nil
	}
	var names []string
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; p.retires(c) {
			names = append(names, "servicecidr "+c.Name)
		}
	}
	return names
}

// intact keeps finish and rollback from passing over a Service that they can no longer place.
func (j *Job) intact(s *Survey) error {
	for _, e := range s.Stays {
		if e.Damaged {
			return &StateError{
				Name: j.Spec.Name, Problem: fmt.Sprintf("cannot go on: service %s %s", e.Key(), e.Reason),
				Hint: "replumb check -f FILE says how to mend them",
			}
		}
	}
	return nil
}

// Pause asks every run of the migration to stop before its next group of steps, and keeps others from starting.
func (j *Job) Pause(ctx context.Context) error { return j.setPaused(ctx, true) }

// Resume takes a pause back. The caller then carries on with what spec.desired says.
func (j *Job) Resume(ctx context.Context) error { return j.setPaused(ctx, false) }

func (j *Job) setPaused(ctx context.Context, paused bool) error {
	err := j.change(ctx, func(m *v1alpha1.Migration) { m.Spec.Paused = paused })
	if err != nil {
		return err
	}
	j.Migration.Spec.Paused = paused
	return j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		c := metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonResumed, Message: "runs may go on",
		}
		if paused {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonPaused, "a pause was asked for"
		}
		meta.SetStatusCondition(&st.Conditions, c)
	})
}

// mayRun refuses to start while a pause is asked for.
func (j *Job) mayRun(ctx context.Context) error {
	m, err := GetMigration(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil || m == nil || !m.Spec.Paused {
		return err
	}
	return engine.ErrPaused
}

// StateError says that a migration is not where a command needs it.
type StateError struct {
	Name    string
	Problem string
	Hint    string
}

func (e *StateError) Error() string { return fmt.Sprintf("migration %s %s", e.Name, e.Problem) }

// locked does something while no other replumb works on the cluster. Losing the lock cancels it.
func (j *Job) locked(ctx context.Context, command string, do func(context.Context) error) error {
	holder := lock.Self(j.Spec.Name, "replumb "+command)
	if j.Holder != nil {
		holder = *j.Holder
	}
	held, err := lock.Acquire(ctx, j.Tools.Cluster, holder, j.Tools.now)
	if err != nil {
		return err
	}
	err = do(held.Context(ctx))
	// Not ctx: the usual reason to be here early is that it was cancelled.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if releaseErr := held.Release(last); releaseErr != nil && err == nil {
		return fmt.Errorf("releasing the lock: %w", releaseErr)
	}
	return err
}

// heading turns the migration to where it is to go. When it turned, what was seen of the kubelets holds no more.
func (j *Job) heading(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error {
	j.Migration.Status = have.Status
	if have.Status.NodesRepointedAt == nil || (have.Spec.Desired == v1alpha1.DesiredRolledBack) == (to == v1alpha1.DesiredRolledBack) {
		return nil
	}
	j.Migration.Status.NodesRepointedAt = nil
	return j.status(ctx, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = nil })
}

func (j *Job) desire(ctx context.Context, d v1alpha1.DesiredState) error {
	have, err := GetMigration(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil {
		return err
	}
	if have == nil {
		return fmt.Errorf("migration %s does not exist any more", j.Spec.Name)
	}
	if err := j.heading(ctx, have, d); err != nil {
		return err
	}
	j.Migration.Spec.Desired = d
	return j.change(ctx, func(m *v1alpha1.Migration) { m.Spec.Desired = d })
}

// change changes the spec of the Migration, looking again on conflict.
func (j *Job) change(ctx context.Context, change func(*v1alpha1.Migration)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have := &v1alpha1.Migration{}
		if err := j.Tools.Cluster.Get(ctx, client.ObjectKey{Name: j.Spec.Name}, have); err != nil {
			return fmt.Errorf("migration %s: %w", j.Spec.Name, err)
		}
		was := have.DeepCopy()
		if change(have); equality.Semantic.DeepEqual(was.Spec, have.Spec) {
			return nil
		}
		return j.Tools.Cluster.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// run runs a plan, lets copies of endpoints follow meanwhile, and keeps the status of the Migration up to date.
func (j *Job) run(ctx context.Context, r *engine.Runner, p *Planner, plan *engine.Plan, phase v1alpha1.Phase) error {
	hash, err := plan.Hash()
	if err != nil {
		return err
	}
	this := *r
	this.Hold = j.mayRun
	this.Sink = j.staged(ctx, r.Sink)
	stop := j.followEndpoints(ctx, p)
	err = this.Run(ctx, plan)
	stop()
	if err != nil {
		return j.failed(context.WithoutCancel(ctx), err, phase)
	}
	// A run that ends after phase check has recorded no Migration.
	return client.IgnoreNotFound(j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.PlanHash, st.Counts, st.LastError = phase, hash, p.Survey.Counts(), ""
	}))
}

// staged writes the phase that a run is in to the status. It is a courtesy: a write that fails is made up for by the next.
func (j *Job) staged(ctx context.Context, sink func(engine.Event)) func(engine.Event) {
	return func(e engine.Event) {
		if sink != nil {
			sink(e)
		}
		if e.Kind == engine.PhaseStarted && e.Total > 0 && e.Phase != "check" && e.Phase != "secure" {
			_ = j.status(ctx, func(st *v1alpha1.MigrationStatus) { st.Stage = e.Phase })
		}
	}
}

// followEndpoints keeps the copied endpoints of bridges like their originals until stop is called.
func (j *Job) followEndpoints(ctx context.Context, p *Planner) (stop func()) {
	if p.Tools.Cluster == nil || !p.Survey.AnyMirrored() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		bridge.Follow(ctx, j.Tools.Cluster, j.Spec.Name)
	}()
	return func() {
		cancel()
		<-done
	}
}

// failed writes down why a run stopped, if there is a Migration to write it on, and returns the reason.
func (j *Job) failed(ctx context.Context, cause error, phase v1alpha1.Phase) error {
	var blocked *check.BlockedError
	if errors.As(cause, &blocked) {
		return cause
	}
	writeErr := j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.LastError = phase, cause.Error()
		reason := v1alpha1.ReasonFailed
		if errors.Is(cause, engine.ErrPaused) {
			st.LastError, reason = "", v1alpha1.ReasonPaused
		}
		setReady(st, metav1.ConditionFalse, reason, cause.Error())
	})
	if writeErr != nil && !apierrors.IsNotFound(writeErr) {
		return errors.Join(cause, writeErr)
	}
	return cause
}

func (j *Job) settle(ctx context.Context, phase v1alpha1.Phase, counts v1alpha1.Counts, tiers []v1alpha1.TierStatus) error {
	return j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.Counts, st.Tiers, st.LastError, st.Stage = phase, counts, tiers, "", ""
		setReady(st, metav1.ConditionTrue, v1alpha1.ReasonAsDesired, "the cluster is as spec.desired says")
	})
}

func setReady(st *v1alpha1.MigrationStatus, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message,
	})
}

func (j *Job) status(ctx context.Context, change func(*v1alpha1.MigrationStatus)) error {
	return UpdateStatus(ctx, j.Tools.Cluster, j.Spec.Name, change)
}

// UpdateStatus changes the status of a Migration, looking again on conflict.
func UpdateStatus(ctx context.Context, c client.Client, name string, change func(*v1alpha1.MigrationStatus)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, m); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		was := m.Status.DeepCopy()
		change(&m.Status)
		if equality.Semantic.DeepEqual(was, &m.Status) {
			return nil
		}
		return c.Status().Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// HealthPort asks kube-proxy's health-check server of a node through the API server.
type HealthPort struct {
	Cluster *cluster.Cluster
}

var _ bridge.NodeProbe = HealthPort{}

// Ask implements bridge.NodeProbe.
func (h HealthPort) Ask(ctx context.Context, node string, port int32) ([]byte, error) {
	return h.Cluster.GetRaw(ctx, fmt.Sprintf("/api/v1/nodes/%s:%d/proxy/", node, port))
}
