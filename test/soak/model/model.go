// Package model has users of a cluster at work: it draws operations on their Services, workloads and namespaces at random, and knows
// what there should be afterwards. It is pure, and the same seed and the same refusals give the same operations.
package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Key names an object.
type Key = types.NamespacedName

// Namespaces that last.
const (
	// Steady has what is probed. Nothing is done to it that may lose a request.
	Steady = "steady"
	// Churn has what anything is done to.
	Churn = "churn"
)

// Cluster is what there should be of users.
type Cluster struct {
	Namespaces  map[string]bool
	Services    map[Key]*Service
	Deployments map[Key]*appsv1.Deployment

	// marked is the index of the first operation after the last Mark.
	marked int
}

// Service is one as its owner wants it.
type Service struct {
	// Object has every field that owners say or that the API server gives them as default, but for the address, which is only said of
	// Services without one.
	Object *corev1.Service
	// Slices lead to what a Service without selector stands before.
	Slices []*discoveryv1.EndpointSlice

	// born and touched are the operations that made it, and that changed last whether it moves.
	born, touched int
}

// HasAddress reports whether there should be a ClusterIP.
func (s *Service) HasAddress() bool {
	return s.Object.Spec.Type != corev1.ServiceTypeExternalName && s.Object.Spec.ClusterIP != corev1.ClusterIPNone
}

func (s *Service) pinned() bool {
	return s.Object.Annotations[v1alpha1.AnnotationStrategy] == v1alpha1.StrategyPin ||
		s.Object.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// ServiceKeys are the names of all Services, in order.
func (c *Cluster) ServiceKeys() []Key { return sortedKeys(c.Services) }

// DeploymentKeys are the names of all Deployments, in order.
func (c *Cluster) DeploymentKeys() []Key { return sortedKeys(c.Deployments) }

// NamespaceNames are the names of all namespaces, in order.
func (c *Cluster) NamespaceNames() []string { return slices.Sorted(maps.Keys(c.Namespaces)) }

func sortedKeys[V any](m map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// Place is where the address of a Service should be in a migration.
type Place string

// The places.
const (
	// Nowhere is of Services without an address.
	Nowhere Place = "nowhere"
	// Moves is of those that a migration moves, and that a rollback brings back to the very address.
	Moves Place = "moves"
	// Keeps is of those that stay at their address.
	Keeps Place = "keeps"
	// Anywhere is of those that were made, or changed in what decides this, while the migration went on: whether a run saw them before
	// or after that is chance.
	Anywhere Place = "anywhere"
)

// Place says where a Service of the model should be in the migration that began at the last Mark.
func (c *Cluster) Place(key Key) Place {
	s := c.Services[key]
	switch {
	case !s.HasAddress():
		return Nowhere
	case s.born >= c.marked || s.touched >= c.marked:
		return Anywhere
	case s.pinned():
		return Keeps
	}
	return Moves
}

// Verb is what is done to an object.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Patch  Verb = "patch"
	Delete Verb = "delete"
)

// Write is one request to the API.
type Write struct {
	Verb Verb
	// Object to create, or one with the name of that which is patched or deleted.
	Object client.Object
	// Patch is a JSON merge patch of what the operation changes and nothing else.
	Patch []byte
}

// Kind is what an operation does.
type Kind string

// The kinds of operations.
const (
	CreateService   Kind = "create-service"
	DeleteService   Kind = "delete-service"
	SwitchSelector  Kind = "switch-selector"
	AddPort         Kind = "add-port"
	RemovePort      Kind = "remove-port"
	Relabel         Kind = "relabel"
	Annotate        Kind = "annotate"
	EditEndpoints   Kind = "edit-endpoints"
	ChangeType      Kind = "change-type"
	Pin             Kind = "pin"
	Unpin           Kind = "unpin"
	Scale           Kind = "scale"
	Restart         Kind = "restart"
	CreateNamespace Kind = "create-namespace"
	DeleteNamespace Kind = "delete-namespace"
)

// Op is an operation: what a person or a tool does in one go.
type Op struct {
	Index int
	Kind  Kind
	// On is what it is about, Detail what becomes of it.
	On     Key
	Detail string
	// Writes are made one after the other. When the first is refused, the others are not made.
	Writes []Write

	then func(*Cluster)
}

func (o Op) String() string {
	text := fmt.Sprintf("#%d %s %s", o.Index, o.Kind, o.On)
	if o.On.Name == "" {
		text = fmt.Sprintf("#%d %s %s", o.Index, o.Kind, o.On.Namespace)
	}
	if o.Detail != "" {
		text += ": " + o.Detail
	}
	return text
}

// Stage is what a migration is doing while an operation is made.
type Stage string

// The stages.
const (
	// Quiet is when there is none.
	Quiet Stage = "quiet"
	// Moving is while a command is under way, or has been killed and not been run again.
	Moving Stage = "moving"
	// Overlap is between commands: apply has ended well, and neither rollback nor finish has begun.
	Overlap Stage = "overlap"
)

// MayBeRefused reports whether a freeze may refuse the operation at a stage. Services in flight may not change, nor be deleted; what
// they lead to may. In the overlap selectors and ports follow, and what would break it is refused.
func (o Op) MayBeRefused(s Stage) bool {
	switch o.Kind {
	case DeleteService, ChangeType, Pin, Unpin:
		return s != Quiet
	case SwitchSelector, AddPort, RemovePort:
		return s == Moving
	}
	return false
}
