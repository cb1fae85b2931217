package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/gitops"
)

// Deployments is what one look has found about the freeze of deployments. The zero value freezes
// nothing.
type Deployments struct {
	// OwnFreeze: see Subject.
	OwnFreeze bool
	Spec      *v1alpha1.DeploymentFreezeSpec
	// Problem is why deployments cannot be frozen; Unserved are kinds that the cluster does not
	// serve.
	Problem  error
	Unserved []string
	// Other is another migration under way that freezes deployments, or has suspended something.
	Other string
	// GitOps is what there is of Argo CD and Flux, Unread why it could not be read.
	GitOps gitops.Found
	Unread error
	// Frozen and Suspended are this migration's so far, also where they are not asked for any more.
	Frozen, Suspended bool

	// any knows kinds as they come; nil where no GitOps is looked at.
	any client.Client
}

func (d *Deployments) freezes() bool {
	return d.Spec != nil && d.Spec.Mode != v1alpha1.FreezeDisabled
}

func (d *Deployments) suspends() bool {
	return d.Spec != nil && d.Spec.GitOps == v1alpha1.GitOpsSuspend
}

// lookAtDeployments also finds what this migration has frozen and suspended when it is no longer
// asked to: an edit of the Migration leaves no trace of what it said.
func (s *Subject) lookAtDeployments(ctx context.Context, c *cluster.Cluster) (d Deployments, err error) {
	d.OwnFreeze, d.Spec = s.OwnFreeze, s.Migration.Spec.DeploymentFreeze
	if err := s.lookAtHolders(ctx, c, &d); err != nil || d.Spec == nil && !d.Suspended {
		return d, err
	}
	if d.any, err = c.Any(); err != nil {
		return d, err
	}
	if d.Spec == nil {
		return d, nil
	}
	if d.freezes() && !s.OwnFreeze {
		if err := s.lookAtFreeze(ctx, c, &d); err != nil {
			return d, err
		}
	}
	if d.GitOps, err = gitops.Load(ctx, d.any); apierrors.IsForbidden(err) {
		d.Unread, err = err, nil
	}
	return d, err
}

func (s *Subject) lookAtHolders(ctx context.Context, c *cluster.Cluster, d *Deployments) error {
	freezer, frozen, err := freeze.DeploysOf(ctx, c)
	if err != nil && !passable(err) {
		return err
	}
	suspender, err := gitops.Holder(ctx, c)
	if err != nil && !passable(err) {
		return err
	}
	name := s.Migration.Name
	d.Frozen, d.Suspended = frozen && freezer == name && !s.OwnFreeze, suspender == name
	var others []string
	if d.Spec != nil && d.freezes() {
		others = append(others, freezer)
	}
	if d.Spec != nil && d.suspends() {
		others = append(others, suspender)
	}
	d.Other, err = firstUnderWay(ctx, c, slices.DeleteFunc(others, func(other string) bool { return other == "" || other == name }))
	return err
}

func firstUnderWay(ctx context.Context, c *cluster.Cluster, names []string) (string, error) {
	if len(names) == 0 {
		return "", nil
	}
	all, err := List(ctx, c)
	if err != nil {
		return "", err
	}
	for i := range all {
		if underWay(&all[i]) && slices.Contains(names, all[i].Name) {
			return all[i].Name, nil
		}
	}
	return "", nil
}

// passable are errors of a missing right, which a check reports, or of a kind that an older cluster
// lacks.
func passable(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

// lookAtFreeze asks whether deployments can be frozen, if the user has the rights.
func (s *Subject) lookAtFreeze(ctx context.Context, c *cluster.Cluster, d *Deployments) error {
	for _, resource := range []string{policies, bindings} {
		if !s.May("create", admissionGroup, resource) {
			d.Problem = &freeze.UnavailableError{Err: errors.New("the user may not create " + resource)}
			return nil
		}
	}
	err := freeze.DeploysPossible(ctx, c, s.Migration.Name)
	var unavailable *freeze.UnavailableError
	var foreign *freeze.ForeignError
	switch {
	case errors.As(err, &unavailable), errors.As(err, &foreign):
		d.Problem = err
	case err != nil:
		return err
	}
	for _, kind := range d.Spec.Kinds {
		_, err := d.any.RESTMapper().ResourceFor(schema.ParseGroupResource(kind).WithVersion(""))
		if meta.IsNoMatchError(err) {
			d.Unserved = append(d.Unserved, kind)
		} else if err != nil {
			return fmt.Errorf("asking for the versions of %s: %w", kind, err)
		}
	}
	return nil
}

func (b *Base) frozen() *freeze.Deploys {
	d := &freeze.Deploys{Client: b.Tools.Client(), Migration: b.Migration.Name}
	if spec := b.Deployments.Spec; spec != nil {
		d.Include, d.Exclude = spec.Namespaces.Include, spec.Namespaces.Exclude
		b.Except(d)
	}
	return d
}

// Except adds kinds to a freeze, and leaves out objects and users, as asked for.
func (b *Base) Except(d *freeze.Deploys) {
	spec := b.Deployments.Spec
	if spec == nil {
		return
	}
	d.Selector, d.Allow = spec.Selector, spec.Allow
	for _, kind := range spec.Kinds {
		d.More = append(d.More, schema.ParseGroupResource(kind))
	}
}

func (b *Base) suspend() *gitops.Suspend {
	return &gitops.Suspend{Client: b.Deployments.any, Migration: b.Migration.Name, Found: b.Deployments.GitOps}
}

// SuspendGitOps suspends what Argo CD and Flux reconcile, or resumes it if that is not asked for
// any more.
func (b *Base) SuspendGitOps() []engine.Step {
	switch d := &b.Deployments; {
	case d.suspends():
		return []engine.Step{b.suspend()}
	case d.Suspended:
		return []engine.Step{b.suspend().Undo()}
	}
	return nil
}

// ResumeGitOps resumes what was suspended.
func (b *Base) ResumeGitOps() []engine.Step {
	if d := &b.Deployments; d.suspends() || d.Suspended {
		return []engine.Step{b.suspend().Undo()}
	}
	return nil
}

// freezeDeployments suspends GitOps before it refuses deployments: its changes would be in vain.
func (b *Base) freezeDeployments() []engine.Step {
	d := &b.Deployments
	if d.OwnFreeze {
		return nil
	}
	steps := b.SuspendGitOps()
	switch {
	case d.freezes() && d.Problem == nil:
		steps = append(steps, b.frozen())
	case d.Frozen:
		steps = append(steps, b.frozen().Undo())
	}
	return steps
}

// Thaw lets others deploy again, and what was suspended go on.
func (b *Base) Thaw() []engine.Step {
	var steps []engine.Step
	if d := &b.Deployments; !d.OwnFreeze && (d.freezes() || d.Frozen) {
		steps = append(steps, b.frozen().Undo())
	}
	return append(steps, b.ResumeGitOps()...)
}

// Lift lifts every freeze, whichever migration has it, and has everything go on that was suspended.
func Lift(c *cluster.Cluster) ([]engine.Step, error) {
	anything, err := c.Any()
	if err != nil {
		return nil, err
	}
	return []engine.Step{(&freeze.Step{Client: c}).Undo(), (&freeze.Deploys{Client: c}).Undo(), &gitops.Resume{Client: anything}}, nil
}

// Freezes reports whether deployments are frozen by now, or will be, by this migration.
func (b *Base) Freezes() bool {
	d := &b.Deployments
	return d.Frozen || d.freezes() && d.Problem == nil
}

func (s *Subject) deploymentsFound(d Deployments) findings.Findings {
	if d.Spec == nil {
		return nil
	}
	return findings.Run(DeploymentChecks(), d)
}

// DeploymentChecks are about the freeze of deployments, for all kinds.
func DeploymentChecks() []findings.Check[Deployments] {
	return findings.Group("Deployments", []findings.Check[Deployments]{
		{
			Code:     "RP0101",
			Severity: findings.Blocking,
			Run:      checkFreezable,
			Claim:    "deployments by others can be frozen as spec.deploymentFreeze says",
			Why:      "a deployment that is taken for frozen and is not changes what the migration works with",
			Fix: "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -; correct kinds (kubectl api-resources --namespaced -o name lists them), end the other " +
				"migration first, or set mode: IfPossible",
		},
		{
			Code: "RP0102", Severity: findings.Warning, Run: checkReconciling,
			Claim: "everything that Argo CD and Flux reconcile is suspended while deployments are frozen",
			Why:   "their syncs are refused by the freeze, and alert, and go on with what was pending as soon as it ends",
			Fix:   "set spec.deploymentFreeze.gitOps: Suspend, which puts everything back as it was, or accept that they fail meanwhile",
		},
		{
			Code: "RP0103", Severity: findings.Warning, Run: checkReverting,
			Claim: "suspended Applications of Argo CD stay suspended",
			Why:   "an ApplicationSet writes the sync policy of its Applications again within minutes, and replumb suspends them only once",
			Fix: "have it leave them alone: its ignoreApplicationDifferences with jsonPointers: [/spec/syncPolicy], or its " +
				"syncPolicy.applicationsSync: create-only",
		},
	}...)
}

func checkFreezable(d Deployments) (out []findings.Result) {
	if !d.freezes() && !d.suspends() {
		return findings.Skip("spec.deploymentFreeze freezes nothing")
	}
	if d.Problem != nil && d.Spec.Mode == v1alpha1.FreezeEnforce {
		out = append(out, findings.Failed("", "%v", d.Problem))
	}
	if d.Other != "" {
		out = append(out, findings.Failed("Migration "+d.Other, "migration %s keeps others from deploying already", d.Other))
	}
	for _, kind := range d.Unserved {
		out = append(out, findings.Failed("", "the cluster serves no %s in namespaces", kind))
	}
	return out
}

func checkReconciling(d Deployments) (out []findings.Result) {
	if !d.freezes() {
		return findings.Skip("spec.deploymentFreeze.mode is Disabled")
	}
	if d.suspends() {
		return nil
	}
	if d.Unread != nil {
		return []findings.Result{findings.NotKnown("", "%v", d.Unread)}
	}
	for _, o := range d.GitOps.Reconciling() {
		out = append(out, findings.Failed(gitops.Title(o), "%s is reconciled all the time", gitops.Title(o)))
	}
	return out
}

func checkReverting(d Deployments) (out []findings.Result) {
	if !d.suspends() {
		return findings.Skip("spec.deploymentFreeze.gitOps is not Suspend")
	}
	if d.Unread != nil {
		return []findings.Result{findings.NotKnown("", "%v", d.Unread)}
	}
	for _, set := range gitops.Reverting(d.GitOps.Objects, d.GitOps.Sets) {
		out = append(
			out,
			findings.Failed("ApplicationSet "+set, "applicationset %s would turn automated syncs of its Applications on again", set),
		)
	}
	return out
}

// RoleFileFreeze is the file in deploy that has the roles for a freeze of deployments.
const RoleFileFreeze = "rbac-freeze.yaml"

// DeploymentRoles are what a freeze of deployments takes beside what a migration takes.
func DeploymentRoles() access.Roles {
	const name = "replumb-freeze-"
	reads := slices.Concat(
		access.Grant("argoproj.io", "applications", "", "list"),
		access.Grant("argoproj.io", "applicationsets", "", "list"),
		access.Grant("kustomize.toolkit.fluxcd.io", "kustomizations", "", "list"),
		access.Grant("helm.toolkit.fluxcd.io", "helmreleases", "", "list"),
	)
	return access.Roles{
		{
			Name: name + "view", File: RoleFileFreeze, Purpose: access.View,
			Rules: []access.Rule{
				FreezeViewRule(),
				{Why: "What Argo CD and Flux reconcile by themselves.", Rights: reads, Optional: true},
			},
		},
		{
			Name: name + "operate", File: RoleFileFreeze, Purpose: access.Operate,
			Rules: []access.Rule{
				FreezeRule(freeze.DeploysName),
				{
					Why:    "Whether the freeze is enforced is asked by a change that is only tried.",
					Rights: access.In("default", access.Named(access.Grant("", "services", "", "patch"), "kubernetes")...),
				},
			},
			Danger: []string{"With create of policies, who has it can refuse any request to the cluster."},
		},
		suspendRole(),
	}
}

func suspendRole() access.Role {
	return access.Role{
		Name: "replumb-freeze-gitops", File: RoleFileFreeze, Purpose: access.Operate,
		Rules: []access.Rule{
			{
				Why: "gitOps: Suspend turns automated syncs off, suspends Kustomizations and HelmReleases, and puts them back.",
				Rights: slices.Concat(
					access.Grant("argoproj.io", "applications", "", "get list patch"),
					access.Grant("argoproj.io", "applicationsets", "", "list"),
					access.Grant("kustomize.toolkit.fluxcd.io", "kustomizations", "", "get list patch"),
					access.Grant("helm.toolkit.fluxcd.io", "helmreleases", "", "get list patch"),
				),
			},
			{
				Why: "How they were before.",
				Rights: access.In(v1alpha1.SystemNamespace, slices.Concat(
					access.Grant("", "configmaps", "", "create"),
					access.Named(access.Grant("", "configmaps", "", "update delete"), gitops.RecordName),
				)...),
			},
		},
		Danger: []string{
			"Its holder can have Argo CD and Flux deploy from any source, with their rights. Bind it only where gitOps is Suspend, for as long as a",
			"migration lasts.",
		},
	}
}

// RolesFor are the roles for a Migration's freeze of deployments; none without one.
func RolesFor(m *v1alpha1.Migration) access.Roles {
	spec := m.Spec.DeploymentFreeze
	if spec == nil {
		return nil
	}
	return slices.DeleteFunc(DeploymentRoles(), func(r access.Role) bool {
		switch {
		case r.Name == suspendRole().Name:
			return spec.GitOps != v1alpha1.GitOpsSuspend
		case r.Purpose == access.Operate:
			return spec.Mode != v1alpha1.FreezeEnforce
		}
		return false
	})
}
