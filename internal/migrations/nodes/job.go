package nodes

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
)

// Job runs one Migration.
type Job struct {
	*migration.Job[*Planner]

	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec

	recorded *v1alpha1.Migration
	changes  []spec.Change
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
	j := &Job{Tools: tools, Migration: m, Spec: s}
	j.Job = &migration.Job[*Planner]{Kind: j, Client: tools.client(), Name: s.Name, Now: tools.Now}
	return j, nil
}

// Adopt implements migration.Kind. A different job under the same name is refused.
func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if have == nil {
		return nil
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if j.Migration, j.changes, err = spec.Merge(whole, j.Migration); err != nil {
		return err
	}
	if j.Spec, err = Validate(j.Migration); err != nil {
		return err
	}
	j.recorded, j.Migration.Status = have, have.Status
	return nil
}

// Examine implements migration.Kind.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	p := &Planner{
		Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(), Recorded: j.recorded != nil, Changes: j.changes, turns: rollout.NewTurns(),
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
	p.Findings = findings.Run(Checks(), in)
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

// Found implements migration.Plans.
func (p *Planner) Found() findings.Findings { return p.Findings }

// Counts implements migration.Plans.
func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

// Left implements migration.Plans.
func (p *Planner) Left() string {
	return remaining(p.Survey.outstanding(p.spec().Terminate.When == v1alpha1.TerminateEach))
}

// Early implements migration.Plans.
func (p *Planner) Early() string {
	if left := p.Survey.outstanding(false); len(left) > 0 {
		return remaining(left)
	}
	for _, c := range p.Survey.Chiefs() {
		if c.Stage() != StageGone {
			return "control plane " + c.Name + " has not ended"
		}
	}
	return ""
}

// remaining says that old nodes are not empty; nothing, if there are none.
func remaining(left []Leaver) string {
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("%s not empty, the first is %s", english.Plural(len(left), "old node is", "old nodes are"), left[0].Name)
}
