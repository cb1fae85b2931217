// Package installation makes the lasting objects of replumb: definitions, namespaces, and the
// operator with its rights. install prints or applies them; the chart and the kustomize base have
// the same.
package installation

import (
	"errors"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/pull"
)

const (
	// Operator is the name of the Deployment, its account, its role and its PodDisruptionBudget.
	Operator = "replumb-operator"
	// Guard is the name of the policy that keeps a definition from being replaced by that of an
	// older build, and of its binding.
	Guard = "replumb-schema-revision"
	// Replicas is how many there are of the operator by default: one leads, and the other makes up
	// for its loss.
	Replicas = 2
	// Argument is the command that pods of the operator run.
	Argument = "operator"

	// LabelName is on all that is installed.
	LabelName = "app.kubernetes.io/name"
	// LabelComponent is beside it, and selects what is the operator's.
	LabelComponent = "app.kubernetes.io/component"
	// LabelVersion is on the Deployment: the version of replumb that it runs.
	LabelVersion = "app.kubernetes.io/version"
)

// Scope is how much is installed.
type Scope string

// The scopes.
const (
	// Everything is definitions, namespaces and the operator.
	Everything Scope = "Everything"
	// WithoutOperator leaves the operator out, and its rights: migrations run where their commands
	// do.
	WithoutOperator Scope = "WithoutOperator"
	// Definitions are the definitions alone, and the policy that guards them.
	Definitions Scope = "Definitions"
)

// Options are what an installation can differ in.
type Options struct {
	Scope Scope
	// Image of replumb, and the Secrets in replumb-system that nodes pull it with.
	Image pull.Image
	// Version of replumb that is in the image; empty if it is not known.
	Version string
	// Replicas of the operator, one or more.
	Replicas int32
	// Purposes are those of roles for users that are installed as well, for all kinds of
	// migrations. Nothing is bound to them.
	Purposes []access.Purpose
}

// ErrNoImage says that there is nothing for the operator to run.
var ErrNoImage = errors.New("the image of the operator is not known")

// ErrNoReplicas says that the operator would not run.
var ErrNoReplicas = errors.New("the operator needs at least one replica")

func (o Options) validate() error {
	switch {
	case o.Scope != Everything:
		return nil
	case o.Image.Name == "":
		return ErrNoImage
	case o.Replicas < 1:
		return ErrNoReplicas
	}
	return nil
}
