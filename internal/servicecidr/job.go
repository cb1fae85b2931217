package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
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
)

// maxRounds bounds how often apply looks again for Services that appeared in the old range while it ran.
const maxRounds = 5

// Job runs one Migration.
type Job struct {
	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec

	access     []cluster.AccessAnswer
	inspection *cluster.Inspection
	recorded   *v1alpha1.Migration
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	spec, err := Validate(m)
	if err != nil {
		return nil, err
	}
	return &Job{Tools: tools, Migration: m, Spec: spec}, nil
}

// Adopt compares the Migration at hand with the one in the cluster, if there is one, and takes over what that one
// has settled. A different job under the same name is refused.
func (j *Job) Adopt(ctx context.Context) (*v1alpha1.Migration, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	have, err := GetMigration(ctx, j.Tools.Cluster, j.Migration.Name)
	if err != nil || have == nil {
		return nil, err
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if whole.Spec.ServiceCIDR != nil && len(j.Migration.Spec.ServiceCIDR.From) == 0 {
		j.Migration.Spec.ServiceCIDR.From = whole.Spec.ServiceCIDR.From
	}
	if !equality.Semantic.DeepEqual(whole.Spec.ServiceCIDR, j.Migration.Spec.ServiceCIDR) {
		return nil, &SpecError{
			Field: "spec.serviceCIDR", Problem: fmt.Sprintf("differs from migration %s in the cluster", have.Name),
			Hint: "a migration that has begun cannot be changed: use its spec, or roll it back and give the new one another name",
		}
	}
	if j.Spec, err = Validate(j.Migration); err != nil {
		return nil, err
	}
	j.recorded = have
	return have, nil
}

// Examine looks at the cluster, as far as the user's rights go, and makes the planner of the migration.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if _, err := j.Tools.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	snap.Access = j.access
	return j.planner(ctx, snap)
}

// authorize asks for the user's rights once. Without those to look there is nothing to check; the others are a finding.
func (j *Job) authorize(ctx context.Context) error {
	if j.access != nil {
		return nil
	}
	access, err := j.Tools.Cluster.Access(ctx, Rights())
	if err != nil {
		return err
	}
	blind := false
	var denied []cluster.Right
	for _, a := range access {
		if !a.Allowed {
			denied = append(denied, a.Right)
			look := a.Right.Verb == "list" && a.Right.Resource != "endpointslices" && !OptionalRight(a.Right)
			blind = blind || look || a.Right.Resource == "migrations"
		}
	}
	if blind {
		return &DeniedError{Rights: denied}
	}
	j.access = access
	return nil
}

func (j *Job) planner(ctx context.Context, snap *cluster.Snapshot) (*Planner, error) {
	survey := Look(snap, j.Spec)
	if err := j.inspect(ctx, snap, survey); err != nil {
		return nil, err
	}
	if err := j.live(ctx, snap, survey); err != nil {
		return nil, err
	}
	p := &Planner{Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy()}
	p.Findings = check.Run(Checks(), Input{Snapshot: snap, Survey: survey})
	form, ok := bridge.Choose(j.Spec.Bridge, len(survey.Moves), snap.Admitted)
	if !ok {
		form = bridge.Candidates(j.Spec.Bridge, len(survey.Moves))[0]
	}
	p.Form = form
	return p, j.record(ctx, p)
}

// inspect looks through the rest of the cluster, once in a job: what is written down in it does not change by what the
// job does, and in a large cluster it is a lot.
func (j *Job) inspect(ctx context.Context, snap *cluster.Snapshot, survey *Survey) error {
	if j.inspection != nil {
		snap.Inspection = j.inspection
		return nil
	}
	scanner, err := Scanner(survey)
	if err != nil {
		return err
	}
	if err := j.Tools.Cluster.References(ctx, scanner, snap); err != nil {
		return err
	}
	j.inspection = snap.Inspection
	return nil
}

// record settles what the Migration in the cluster shall say: all that was resolved, or, once it is there, the job as it
// was written then, which cannot be changed.
func (j *Job) record(ctx context.Context, p *Planner) error {
	crd, err := j.Tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return err
	}
	p.HasCRD, p.Recorded = crd != nil, j.recorded != nil
	if p.Recorded {
		p.Migration.Spec.ServiceCIDR = j.recorded.Spec.ServiceCIDR.DeepCopy()
		return nil
	}
	p.Migration.Spec.ServiceCIDR.From = nil
	for _, r := range p.Survey.Spec.From {
		p.Migration.Spec.ServiceCIDR.From = append(p.Migration.Spec.ServiceCIDR.From, r.String())
	}
	return nil
}

// live asks what only the running cluster can tell.
func (j *Job) live(ctx context.Context, snap *cluster.Snapshot, survey *Survey) error {
	snap.Kubelets = map[string]cluster.KubeletAnswer{}
	snap.Admitted = map[v1alpha1.BridgeForm]error{}
	var mu sync.Mutex
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	for i := range snap.Nodes {
		if name := snap.Nodes[i].Name; cluster.NodeReady(&snap.Nodes[i]) {
			eg.Go(func() error {
				actx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				answer := j.Tools.Cluster.Kubelet(actx, name)
				mu.Lock()
				defer mu.Unlock()
				snap.Kubelets[name] = answer
				return nil
			})
		}
	}
	for _, form := range bridge.Candidates(j.Spec.Bridge, len(survey.Moves)) {
		for _, svc := range onePerNamespace(survey.Moves) {
			eg.Go(func() error {
				refused, err := bridge.Try(ctx, j.Tools.Cluster, form, svc.Service, svc.New)
				mu.Lock()
				defer mu.Unlock()
				if snap.Admitted[form] == nil {
					snap.Admitted[form] = refused
				}
				return err
			})
		}
	}
	err := eg.Wait()
	if apierrors.IsForbidden(err) {
		return nil // the rights check says so
	}
	return err
}

func onePerNamespace(entries []*Entry) []*Entry {
	var out []*Entry
	seen := map[string]bool{}
	for _, e := range entries {
		if !seen[e.Service.Namespace] && e.New.IsValid() {
			seen[e.Service.Namespace] = true
			out = append(out, e)
		}
	}
	return out
}

// Apply moves every Service. What appears in the old range meanwhile is swept up before it ends.
func (j *Job) Apply(ctx context.Context, r *engine.Runner) (*Survey, error) {
	for range maxRounds {
		if err := j.applicable(ctx); err != nil {
			return nil, err
		}
		p, err := j.Examine(ctx)
		if err != nil {
			return nil, err
		}
		if err := j.run(ctx, r, p, p.Apply(), v1alpha1.PhaseApplying); err != nil {
			return nil, err
		}
		after, err := j.Look(ctx)
		if err != nil {
			return nil, err
		}
		if len(after.Pending()) == 0 && len(after.Orphans) == 0 && len(after.Strays) == 0 {
			return after, j.settle(ctx, v1alpha1.PhaseMoved, after.Counts())
		}
	}
	return nil, fmt.Errorf("services keep appearing in the old range: gave up after %d rounds", maxRounds)
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
	return nil
}

// Look surveys the cluster as it is now.
func (j *Job) Look(ctx context.Context) (*Survey, error) {
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	return Look(snap, j.Spec), nil
}

// Rollback brings every Service back to its old address.
func (j *Job) Rollback(ctx context.Context, r *engine.Runner) error {
	if j.Migration.Status.PointOfNoReturnPassed {
		return &StateError{
			Name: j.Spec.Name, Problem: "has passed the point of no return and cannot be rolled back",
			Hint: "to return to the old range, make a new migration with the old range as its target",
		}
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return err
	}
	if err := j.intact(p.Survey); err != nil {
		return err
	}
	if err := j.desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
		return err
	}
	if err := j.run(ctx, r, p, p.Rollback(), v1alpha1.PhaseRollingBack); err != nil {
		return err
	}
	return j.settle(ctx, v1alpha1.PhaseRolledBack, v1alpha1.Counts{Total: len(p.Survey.Moves), Stays: len(p.Survey.Stays)})
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
	if err := j.desire(ctx, v1alpha1.DesiredFinished); err != nil {
		return err
	}
	if err := j.run(ctx, r, p, p.Finish(), v1alpha1.PhaseFinishing); err != nil {
		return err
	}
	counts := j.Migration.Status.Counts
	counts.Bridged = 0
	return j.settle(ctx, v1alpha1.PhaseFinished, counts)
}

// Finishable makes the planner of finish, or says why it is too early.
func (j *Job) Finishable(ctx context.Context) (*Planner, error) {
	switch j.Migration.Status.Phase {
	case v1alpha1.PhaseRollingBack, v1alpha1.PhaseRolledBack:
		return nil, &StateError{Name: j.Spec.Name, Problem: "is rolled back; there is nothing to finish", Hint: "replumb apply -f FILE"}
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if err := j.intact(p.Survey); err != nil {
		return nil, err
	}
	if pending := p.Survey.Pending(); len(pending) > 0 && !j.Migration.Status.PointOfNoReturnPassed {
		return nil, &StateError{
			Name:    j.Spec.Name,
			Problem: fmt.Sprintf("cannot be finished: %d Services have not moved, the first is %s", len(pending), pending[0].Key()),
			Hint:    "run replumb apply -f FILE first",
		}
	}
	return p, nil
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

// StateError says that a migration is not where a command needs it.
type StateError struct {
	Name    string
	Problem string
	Hint    string
}

func (e *StateError) Error() string { return fmt.Sprintf("migration %s %s", e.Name, e.Problem) }

func (j *Job) desire(ctx context.Context, d v1alpha1.DesiredState) error {
	j.Migration.Spec.Desired = d
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have := &v1alpha1.Migration{}
		if err := j.Tools.Cluster.Get(ctx, client.ObjectKey{Name: j.Spec.Name}, have); err != nil {
			return fmt.Errorf("migration %s: %w", j.Spec.Name, err)
		}
		have.Spec.Desired = d
		return j.Tools.Cluster.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// run runs a plan and keeps the status of the Migration up to date with what the events say.
func (j *Job) run(ctx context.Context, r *engine.Runner, p *Planner, plan *engine.Plan, phase v1alpha1.Phase) error {
	hash, err := plan.Hash()
	if err != nil {
		return err
	}
	if err := r.Run(ctx, plan); err != nil {
		return j.failed(context.WithoutCancel(ctx), err, phase)
	}
	return j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.PlanHash, st.Counts, st.LastError = phase, hash, p.Survey.Counts(), ""
	})
}

// failed writes down why a run stopped, if there is a Migration to write it on, and returns the reason.
func (j *Job) failed(ctx context.Context, cause error, phase v1alpha1.Phase) error {
	var blocked *check.BlockedError
	if errors.As(cause, &blocked) {
		return cause
	}
	writeErr := j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.LastError = phase, cause.Error()
		setReady(st, metav1.ConditionFalse, v1alpha1.ReasonFailed, cause.Error())
	})
	if writeErr != nil && !apierrors.IsNotFound(writeErr) {
		return errors.Join(cause, writeErr)
	}
	return cause
}

func (j *Job) settle(ctx context.Context, phase v1alpha1.Phase, counts v1alpha1.Counts) error {
	return j.status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.Counts, st.LastError = phase, counts, ""
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
