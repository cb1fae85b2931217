package migration

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/spec"
)

// Subject is the Migration that a job is about, and what the cluster has said of it. Jobs embed it.
type Subject struct {
	// Migration is what is wanted: the file's, with its defaults, and what the cluster has settled
	// since.
	Migration *v1alpha1.Migration
	Recorded  *v1alpha1.Migration
	// Changes are the settings of Migration that differ from what is recorded.
	Changes []spec.FieldChange
	// Access is the answers about the user's rights, asked once for a job.
	Access []access.Answer
	// OwnFreeze says that the kind freezes deployments in a phase of its own.
	OwnFreeze bool
}

// The defaults of a Kind.

func (*Subject) Turn(context.Context, *v1alpha1.Migration, v1alpha1.DesiredState) error { return nil }

func (*Subject) MayLook(context.Context) error { return nil }

func (*Subject) Unfinished(context.Context, v1alpha1.DesiredState) (*engine.Plan, error) {
	return nil, nil
}

func (*Subject) AnotherRound(context.Context, error) bool { return false }

// Open fails if a command must not begin. Nothing is written.
func (*Subject) Open(context.Context) error { return nil }

// Silence has a job that only looks call nothing that its Migration names.
func (*Subject) Silence() {}

// OnMove reports each move once it is over.
func (*Subject) OnMove(func(Move)) {}

// Move is the way of one object, forward or back.
type Move struct {
	Object, From, To string
	Strategy         string
	At               time.Time
	Took             time.Duration
}

// Counted are the counts of a Migration: recorded ones once it is finished, since a later one may
// move the same objects on.
func (s *Subject) Counted(seen v1alpha1.Counts) v1alpha1.Counts {
	if st := s.Migration.Status; st.Phase == v1alpha1.PhaseFinished {
		return st.Counts
	}
	return seen
}

// May reports whether the user has a right. Rights that were not asked for count as given.
func (s *Subject) May(verb, group, resource string) bool {
	return !slices.ContainsFunc(s.Access, func(a access.Answer) bool {
		r := a.Right
		return !a.Allowed && r.Verb == verb && r.Group == group && r.Resource == resource && r.Subresource == ""
	})
}

// Tells reports whether an error in the place of an answer is told as a finding. Once a run has
// begun, what may pass is asked again instead.
func (s *Subject) Tells(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (s.Recorded == nil || !engine.Retryable(err))
}

// TakeOver fills in what the file leaves open from the recorded Migration, and fails if that is
// about something else. Nil is none.
func (s *Subject) TakeOver(have *v1alpha1.Migration) error {
	s.Recorded = have
	if have == nil {
		return nil
	}
	whole := have.DeepCopy() // one that was created before a default was introduced lacks it
	spec.Default(whole)
	effective, changes, err := spec.Merge(whole, s.Migration)
	if err != nil {
		return err
	}
	if spec.Digest(effective) != spec.Digest(s.Migration) {
		return &ForeignCallsError{Name: have.Name}
	}
	s.Migration, s.Changes = effective, changes
	s.Migration.Status = have.Status
	return nil
}

// Authorize asks for the user's rights, once. Only a lack of those that look needs is an error.
func (s *Subject) Authorize(ctx context.Context, c *cluster.Cluster, roles access.Roles, look func(access.Right) bool) error {
	if s.Access != nil {
		return nil
	}
	err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		roles = append(slices.Clone(roles), founder())
	}
	s.Access, err = c.Authorize(ctx, roles, look)
	return err
}

// founder makes the namespace of what replumb keeps. No file has that role.
func founder() access.Role {
	return access.Role{Rules: []access.Rule{{Rights: access.Grant("", "namespaces", "", "create")}}}
}

// Base starts a planner.
func (s *Subject) Base(ctx context.Context, tools Deps) (Base, error) {
	crd, err := tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return Base{}, err
	}
	identity, err := tools.Cluster.Identity(ctx)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) { // apply itself insists on it
		return Base{}, err
	}
	deployments, err := s.lookAtDeployments(ctx, tools.Cluster)
	if err != nil {
		return Base{}, err
	}
	refused, err := s.tryNamespaces(ctx, tools.Cluster)
	if err != nil {
		return Base{}, err
	}
	return Base{
		Findings:    append(s.deploymentsFound(deployments), findings.Run(NamespaceChecks(), refused)...),
		Deployments: deployments,
		Tools:       tools, Migration: s.Migration.DeepCopy(), HasCRD: crd != nil, Recorded: s.Recorded != nil, Changes: s.Changes,
		Identity: identity,
	}, nil
}

// Denied are the rights that the user lacks, for a check, without optional ones.
func Denied(answers []access.Answer) []findings.Result {
	var missing []access.Answer
	for _, a := range answers {
		if !a.Allowed && !a.Optional {
			missing = append(missing, a)
		}
	}
	var out []findings.Result
	for _, text := range access.Missing(missing) {
		out = append(out, findings.Failed("", "missing permission: %s", text))
	}
	return out
}

// NotReady are the nodes that are not ready, for a check.
func NotReady(nodes []corev1.Node) []findings.Result {
	var out []findings.Result
	for i := range nodes {
		if n := &nodes[i]; !inventory.NodeReady(n) {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is not ready", n.Name))
		}
	}
	return out
}
