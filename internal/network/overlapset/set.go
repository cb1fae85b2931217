// Package overlapset puts the Deployment into the cluster that keeps bridges in step with their
// Services between commands, waits for its replicas, says why one does not come up, and takes it
// away. Package overlap is the replicas' program.
package overlapset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/network/overlap"
)

const (
	// Phase is the name of the phase that Install is.
	Phase = "overlap"
	// Name is that of the Deployment, its budget and its account.
	Name = "overlap"
	// Access is the name of its roles.
	Access = "replumb-overlap"
	// Replicas is how many there are: each makes up for the loss of the other.
	Replicas = 2

	// DefaultWait is how long they may take to come up by default.
	DefaultWait = 2 * time.Minute
)

// Without says how to do without it.
const Without = "do without it, when bridges are in step only while a command runs: spec.serviceCIDR.follower: Disabled"

// Set is the Deployment of one migration.
type Set struct {
	Cluster   *cluster.Cluster
	Migration string
	Image     pull.Image
	Wait      time.Duration
	Now       func() time.Time
	// Exclusive keeps what belongs to another migration that goes on; see migration.Exclusive.
	Exclusive workload.Exclusive
}

func (s *Set) wait() time.Duration { return cmp.Or(s.Wait, DefaultWait) }

func (s *Set) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Install applies the Deployment, and waits until its replicas have everything in step. The
// namespace must exist. A nil Set installs nothing.
func (s *Set) Install() []engine.Group {
	return s.install(&aliveStep{set: s})
}

// InstallIfPossible goes on without the replicas after a while: the way back may lead out of what
// keeps them down.
func (s *Set) InstallIfPossible() []engine.Group {
	return s.install(&aliveStep{set: s, lenient: true})
}

func (s *Set) install(alive *aliveStep) []engine.Group {
	if s == nil {
		return nil
	}
	return engine.InOrder(
		s.apply("overlap/rights", "Grant the overlap its rights", s.rights),
		s.apply("overlap/deployment", "Run the overlap, which updates bridges between commands", s.deployment),
		alive,
	)
}

// Remove takes away what Install has made, but for the namespace. There must be no bridges any
// more.
func (s *Set) Remove() []engine.Group {
	if s == nil {
		return nil
	}
	return engine.InOrder(s.remove())
}

// There reports whether there is one. A user who may not look has made none.
func (s *Set) There(ctx context.Context) (bool, error) {
	d, err := s.get(ctx)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return d != nil && d.Labels[v1alpha1.LabelMigration] == s.Migration, err
}

func (s *Set) get(ctx context.Context) (*appsv1.Deployment, error) {
	d, key := &appsv1.Deployment{}, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Name}
	if there, err := workload.Get(ctx, s.Cluster, "deployment "+key.String(), key, d); err != nil || !there {
		return nil, err
	}
	return d, nil
}

// Objects are what Install runs.
func (s *Set) Objects() ([]client.Object, error) {
	made, err := s.deployment(nil)
	if err != nil {
		return nil, err
	}
	return made[:1], nil // admission of disruption budgets is nobody's concern
}

func (s *Set) apply(
	id, title string, build func(servers []string) ([]client.Object, error),
) engine.Step {
	return (&workload.Apply{
		Cluster: s.Cluster, Name: id, About: title, Build: build, Exclusive: s.Exclusive,
	}).Step()
}

func (s *Set) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: v1alpha1.SystemNamespace, Name: Name, Labels: overlap.Labels(s.Migration),
	}
}

// ours selects what this migration has of it in replumb's namespace.
func (s *Set) ours() []client.ListOption {
	return []client.ListOption{client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels(overlap.Labels(s.Migration))}
}

func (s *Set) pods(ctx context.Context) ([]corev1.Pod, error) {
	return workload.Pods(ctx, s.Cluster, "deployment "+Name, s.ours()...)
}

func (s *Set) leases(ctx context.Context) ([]coordinationv1.Lease, error) {
	all := &coordinationv1.LeaseList{}
	if err := s.Cluster.List(ctx, all, s.ours()...); err != nil {
		return nil, fmt.Errorf("listing the leases of deployment %s: %w", Name, err)
	}
	return all.Items, nil
}

// deployment selects pods by their role alone: a selector cannot be changed, and the next migration
// takes over.
func (s *Set) deployment(servers []string) ([]client.Object, error) {
	of := map[string]string{v1alpha1.LabelRole: v1alpha1.RoleOverlap}
	pods, err := workload.Template(overlap.Labels(s.Migration), s.pod(servers, of))
	if err != nil {
		return nil, fmt.Errorf("deployment %s: %w", Name, err)
	}
	d := workload.Deployment(s.meta(), of, Replicas, 1, pods)
	d.Spec.MinReadySeconds = 5 // a new replica has seen everything before an old one goes
	return []client.Object{d, workload.Budget(s.meta(), policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: d.Spec.Selector,
	})}, nil
}

// pod of a replica. It listens on no port, and needs no Service to reach API servers. Agents
// tolerate all taints, and replicas cannot: none must be on a node that is being drained, or that
// is gone.
func (s *Set) pod(servers []string, of map[string]string) corev1.PodSpec {
	pod := workload.Replica(workload.PodOptions{
		Account: Name, Image: s.Image, CPU: "20m", Memory: "48Mi", MemoryLimit: "512Mi", Grace: 10,
		Args: []string{"overlap", "--migration=" + s.Migration, workload.APIFlag + strings.Join(servers, ",")},
		Env: []corev1.EnvVar{
			workload.FromField("POD_NAME", "metadata.name"), workload.FromField("POD_UID", "metadata.uid"),
		},
	}, of)
	pod.DNSPolicy = corev1.DNSDefault
	return pod
}

// rights are the account, its roles and their bindings, in the order in which they are made.
func (s *Set) rights([]string) ([]client.Object, error) {
	return workload.Rights(s.meta(), Access, everywhere(), leases()), nil
}

// kinds are all objects beside leases and pods, in the order in which they go.
func (s *Set) kinds() ([]client.Object, error) {
	made, err := s.deployment(nil)
	rights, _ := s.rights(nil)
	slices.Reverse(rights)
	return slices.Concat(made, rights), err
}
