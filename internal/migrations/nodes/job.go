package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job runs one Migration.
type Job struct {
	*migration.Job[*Planner]
	migration.Subject

	Tools migration.Tools
	Spec  Spec

	etcd        *etcd.Client
	events      *etcd.Client
	agentConfig lossguard.AgentConfig
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools migration.Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Subject: migration.Subject{Migration: m}, Spec: s}
	j.Job = &migration.Job[*Planner]{
		Kind: j, Client: tools.Client(), Name: s.Name, Guard: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	return j, j.agents().Check()
}

func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

// Survey looks at the cluster as it is now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) {
	return live{j.Tools, j.Spec}.survey(ctx)
}

func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook); err != nil {
		return nil, err
	}
	p := &Planner{}
	var err error
	if p.Base, err = j.Base(ctx, j.Tools); err != nil {
		return nil, err
	}
	if p.Survey, err = j.Survey(ctx); err != nil {
		return nil, err
	}
	if err := j.sortIntoTiers(p.Survey); err != nil {
		return nil, err
	}
	if p.Survey.Spares, err = spare.Look(ctx, j.Tools.Cluster, j.Spec.Spares); err != nil {
		return nil, err
	}
	p.Agents = j.newAgents(p.Survey)
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	in := Input{Survey: p.Survey, Access: j.Access, Image: j.agents().Image().Name}
	if p.Etcd, in.EtcdProblem = j.surveyEtcd(ctx, p.Survey); in.EtcdProblem != nil {
		p.Survey.Etcd = nil
	}
	if p.Events, in.EventsProblem = j.surveyEvents(ctx, p.Survey); in.EventsProblem != nil {
		p.Survey.Events = nil
	}
	if in.RecordProblems, err = j.surveyRecords(ctx, p); err != nil {
		return nil, err
	}
	in.EndProblems = endProblems(ctx, p.APIRecords)
	if in.AbsentSecrets, err = j.absentSecrets(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	p.Findings = append(findings.Run(Checks(), in), p.Findings...)
	return p, j.hasImage()
}

// absentSecrets finds the pull secrets that are not there of agents and canaries, if there are to be any.
func (j *Job) absentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	out, err := j.agents().AbsentSecrets(ctx, in)
	if err != nil || j.Spec.Canary.Mode != v1alpha1.PodCanaryRun {
		return out, err
	}
	canaries, err := live{j.Tools, j.Spec}.image().Absent(ctx, in, root+".canary.imagePullSecrets")
	return append(out, canaries...), err
}

// hasImage fails if the connectivity test is to run and there is nothing to run it with.
func (j *Job) hasImage() error {
	if j.Spec.Canary.Mode != v1alpha1.PodCanaryRun || (live{j.Tools, j.Spec}).image().Name != "" {
		return nil
	}
	return &spec.Error{
		Field: root + ".canary.image", Problem: "is empty, and this build of replumb has no image of its own",
		Hint: "name an image of replumb that the nodes can pull, or set mode: Disabled",
	}
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

// surveyEtcd asks its members, if the control plane moves. The connection is kept for as long as the job is.
func (j *Job) surveyEtcd(ctx context.Context, s *Survey) (*etcd.Client, error) {
	if j.Spec.ControlPlane == nil {
		return nil, nil
	}
	if j.etcd == nil {
		var err error
		if j.etcd, err = j.Spec.openEtcd(ctx, &j.Spec.ControlPlane.Etcd, "", s.Recorded); err != nil {
			return nil, err
		}
	}
	var err error
	s.Etcd, err = j.etcd.Look(ctx)
	return j.etcd, err
}

// surveyEvents asks those of the second etcd, if there is one that moves.
func (j *Job) surveyEvents(ctx context.Context, s *Survey) (*etcd.Client, error) {
	if j.Spec.ControlPlane == nil || j.Spec.ControlPlane.EtcdEvents == nil {
		return nil, nil
	}
	if j.events == nil {
		var err error
		if j.events, err = j.Spec.openEtcd(ctx, j.Spec.ControlPlane.EtcdEvents, eventsLabel, s.Recorded); err != nil {
			return nil, err
		}
	}
	var err error
	s.Events, err = j.events.Look(ctx)
	return j.events, err
}

// surveyRecords asks for every DNS record whether it can be moved. Problems are by what the record is called.
func (j *Job) surveyRecords(ctx context.Context, p *Planner) (problems map[string]error, err error) {
	l := live{j.Tools, j.Spec}
	if p.Records, err = l.recordMoves(ctx, j.Spec.Records); err != nil {
		return nil, err
	}
	if j.Spec.ControlPlane != nil {
		if p.APIRecords, err = l.recordMoves(ctx, j.Spec.ControlPlane.Records); err != nil {
			return nil, err
		}
		for i, m := range p.APIRecords {
			if m.Swaps() || m.Ends() {
				m.Answer = l.apiAnswers(j.Spec.ControlPlane.Records[i].Name)
			}
		}
	}
	problems = map[string]error{}
	for _, m := range slices.Concat(p.Records, p.APIRecords) {
		if _, err := m.Look(ctx); err != nil {
			problems[m.Title()] = err
		}
	}
	return problems, nil
}

// endProblems says of names of the API that go on after to why what they are to have at last does not answer yet.
func endProblems(ctx context.Context, all []*dnsrecords.Move) map[string]error {
	problems := map[string]error{}
	for _, m := range all {
		if m.Ended() {
			continue
		}
		if err := m.Answer(ctx, m.Last()); err != nil {
			problems[m.Title()] = err
		}
	}
	return problems
}

func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

func (p *Planner) Left() string { return notEmpty(p.Survey.outstanding(p.terminatesEach())) }

func (p *Planner) Early() string {
	if left := p.Survey.outstanding(false); len(left) > 0 {
		return notEmpty(left)
	}
	for _, c := range p.Survey.OldControlPlane() {
		if c.Stage() != StageGone {
			return "control-plane node " + c.Name + " has not been terminated"
		}
	}
	for _, m := range p.APIRecords {
		if !m.Ended() {
			return m.Title() + " is not seen to have " + strings.Join(m.Last(), ", ") + ", as then asks for"
		}
	}
	return ""
}

// notEmpty says that old nodes are not empty; nothing, if there are none.
func notEmpty(left []OldNode) string {
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("%s not empty, the first is %s", english.Plural(len(left), "old node is", "old nodes are"), left[0].Name)
}
