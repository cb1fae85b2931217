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
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job runs one Migration.
type Job struct {
	*migration.Job[*Planner]
	migration.Subject
	lossguard.Watched

	Tools migration.Deps
	Spec  Spec

	etcd, events *etcd.Client
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools migration.Deps, m *v1alpha1.Migration) (*Job, error) {
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

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools, j.Spec.Name, &j.Spec.Common)
}

// newAgents makes the agents of a job. Cluster DNS moves with all other pods.
func (j *Job) newAgents(s *Inventory) *lossguard.Agents {
	a := j.agents().New(len(s.Nodes))
	if a != nil {
		a.Roll, a.Ends = true, true
	}
	return a
}

func (j *Job) Inventory(ctx context.Context) (*Inventory, error) {
	return loader{live{j.Tools, j.Spec}}.load(ctx)
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
	if p.Inventory, err = j.Inventory(ctx); err != nil {
		return nil, err
	}
	if err := j.sortIntoTiers(p.Inventory); err != nil {
		return nil, err
	}
	if p.Inventory.Spares, err = spare.Load(ctx, j.Tools.Cluster, j.Spec.Spares); err != nil {
		return nil, err
	}
	p.Agents = j.newAgents(p.Inventory)
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	in := Input{Inventory: p.Inventory, Access: j.Access, Image: j.agents().Image().Name}
	if p.Etcd, in.EtcdProblem = j.surveyEtcd(ctx, p.Inventory); in.EtcdProblem != nil {
		p.Inventory.Etcd = nil
	}
	if p.Events, in.EventsProblem = j.surveyEvents(ctx, p.Inventory); in.EventsProblem != nil {
		p.Inventory.Events = nil
	}
	if in.RecordProblems, err = j.surveyRecords(ctx, p); err != nil {
		return nil, err
	}
	in.EndProblems = endProblems(ctx, p.APIRecords)
	if in.AbsentSecrets, err = j.absentSecrets(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	found, err := p.Agents.Try(ctx, &j.Subject, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	p.Findings = slices.Concat(findings.Run(Checks(), in), p.Findings, found)
	return p, nil
}

// absentSecrets finds missing pull secrets of agents and canaries.
func (j *Job) absentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	if j.Spec.Canary.Mode == v1alpha1.PodCanaryRun {
		return j.Tools.ImageOf(&j.Spec.Common).Needed(ctx, in, ", or set "+root+".canary.mode: Disabled")
	}
	return j.agents().AbsentSecrets(ctx, in)
}

// sortIntoTiers sorts each workload as a Service of the same namespace, name and labels would be.
func (j *Job) sortIntoTiers(s *Inventory) error {
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

// surveyEtcd asks its members. The connection lasts as long as the job.
func (j *Job) surveyEtcd(ctx context.Context, s *Inventory) (*etcd.Client, error) {
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
	s.Etcd, err = j.etcd.Load(ctx)
	return j.etcd, err
}

func (j *Job) surveyEvents(ctx context.Context, s *Inventory) (*etcd.Client, error) {
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
	s.Events, err = j.events.Load(ctx)
	return j.events, err
}

// surveyRecords asks which DNS records cannot be moved, by their titles.
func (j *Job) surveyRecords(ctx context.Context, p *Planner) (problems map[string]error, err error) {
	l := recordLoader{live{j.Tools, j.Spec}}
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
		if _, err := m.Load(ctx); err != nil {
			problems[m.Title()] = err
		}
	}
	return problems, nil
}

// endProblems says of names of the API why their last value does not answer yet.
func endProblems(ctx context.Context, all []*dnsrecords.RecordMove) map[string]error {
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

func (p *Planner) Counts() v1alpha1.Counts { return p.Inventory.Counts() }

func (p *Planner) Left() string { return notEmpty(p.Inventory.outstanding(p.terminatesEach())) }

func (p *Planner) Early() string {
	if left := p.Inventory.outstanding(false); len(left) > 0 {
		return notEmpty(left)
	}
	for _, c := range p.Inventory.ControlPlane().Old() {
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

func notEmpty(left []OldNode) string {
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("%s not empty, the first is %s", english.Plural(len(left), "old node is", "old nodes are"), left[0].Name)
}
