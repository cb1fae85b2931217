package podcidr

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job runs one Migration.
type Job struct {
	*migration.Job[*Planner]

	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec

	agentConfig lossguard.AgentConfig
	// proven says that new pods have been seen to get new addresses on every node.
	proven   bool
	recorded *v1alpha1.Migration
	changes  []spec.Change
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
	j.Job = &migration.Job[*Planner]{Kind: j, Client: tools.client(), Name: s.Name, Escort: j.agents(), Now: tools.Now}
	return j, j.agents().Check()
}

// Adopt implements migration.Kind. It takes over what the Migration in the cluster has settled, and refuses a different job under the
// same name.
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
	rules, err := tier.NewRules(&j.Spec.Common, ownServices)
	if err != nil {
		return nil, err
	}
	p := &Planner{
		Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(), Rules: rules, Recorded: j.recorded != nil, Changes: j.changes, Proven: &j.proven,
	}
	p.Migration.Spec.PodCIDR.From = texts(survey.Spec.From)
	j.newAgents(p)
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
	in, err := j.input(ctx, survey)
	if err != nil {
		return nil, err
	}
	p.Findings = findings.Run(survey.checks(), in)
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

// Found implements migration.Plans.
func (p *Planner) Found() findings.Findings { return p.Findings }

// Counts implements migration.Plans.
func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

// Left implements migration.Plans.
func (p *Planner) Left() string {
	left := p.Survey.restartable(forth, p.Tools.now())
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("%d still have old addresses, the first is %s", len(left), left[0])
}

// Early implements migration.Plans.
func (p *Planner) Early() string {
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
