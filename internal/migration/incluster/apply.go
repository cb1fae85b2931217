// Package incluster has what the kinds of programs have in common that migrations run in the cluster: objects are made by server-side apply and
// shown beforehand, API servers are found, and it is said why a pod does not run.
package incluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
)

// APIFlag gives programs the addresses of API servers.
const APIFlag = "--api="

// ApplyStep makes objects, or makes existing ones as they should be, by server-side apply. Whether they are is asked of the API server,
// by a dry run: it knows the defaults, and what webhooks add.
type ApplyStep struct {
	Cluster   *cluster.Cluster
	Migration string
	// Name is the ID, About the title.
	Name, About string
	// Without says how to do without what is made, for a hint.
	Without string
	// Build makes the objects, given the addresses of the API servers.
	Build func(servers []string) ([]client.Object, error)
}

var _ engine.Previewer = (*ApplyStep)(nil)

func (s *ApplyStep) ID() string { return s.Name }

func (s *ApplyStep) Title() string { return s.About }

// Pair is an object as it should be and as it is; nil if it is not there.
type Pair struct{ Want, Have *unstructured.Unstructured }

// Look finds what there is of the objects.
func (s *ApplyStep) Look(ctx context.Context) ([]Pair, error) {
	now, err := APIServers(ctx, s.Cluster)
	if err != nil {
		return nil, err
	}
	wanted, err := s.objects(now)
	if err != nil {
		return nil, err
	}
	var all []Pair
	for i, want := range wanted {
		have, err := s.get(ctx, want)
		if err != nil {
			return nil, err
		}
		if have != nil {
			kept, err := s.objects(servers(now, have))
			if err != nil {
				return nil, err
			}
			want = kept[i]
		}
		all = append(all, Pair{want, have})
	}
	return all, nil
}

// objects are written as maps, since empty fields of types would be fields that are claimed.
func (s *ApplyStep) objects(servers []string) ([]*unstructured.Unstructured, error) {
	typed, err := s.Build(servers)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, o := range typed {
		u, err := Written(o)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// Written is an object as it is written: without fields that only the API server sets.
func Written(o client.Object) (*unstructured.Unstructured, error) {
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: body}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "creationTimestamp")
	return u, nil
}

func (s *ApplyStep) State(ctx context.Context) (engine.State, error) {
	all, err := s.Look(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	for _, p := range all {
		if p.Have == nil {
			return engine.Pending, nil
		}
		if err := Free(ctx, s.Cluster, s.Migration, p.Have.GetLabels()[v1alpha1.LabelMigration], NameOf(p.Want), s.Without); err != nil {
			return engine.Blocked, err
		}
		if p.Have.GetDeletionTimestamp() != nil {
			return engine.Unknown, engine.NotYet("%s is being removed", NameOf(p.Want))
		}
		same, err := s.Same(ctx, p)
		if err != nil {
			return engine.Unknown, err
		}
		if !same {
			return engine.Pending, nil
		}
	}
	return engine.Done, nil
}

// Same reports whether an object that is there is as it should be.
func (s *ApplyStep) Same(ctx context.Context, p Pair) (bool, error) {
	if err := s.apply(ctx, p.Want, client.DryRunAll); err != nil {
		return false, err
	}
	return equality.Semantic.DeepEqual(content(p.Want), content(p.Have)), nil
}

func (s *ApplyStep) get(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	err := s.Cluster.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", NameOf(want), err)
	}
	return have, nil
}

// content is what people and programs write in an object.
func content(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	c["labels"], c["annotations"] = o.GetLabels(), o.GetAnnotations()
	return c
}

func (s *ApplyStep) Do(ctx context.Context) error {
	all, err := s.Look(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := s.apply(ctx, p.Want); err != nil {
			return err
		}
	}
	return nil
}

// apply makes want what is there then, or would be.
func (s *ApplyStep) apply(ctx context.Context, want *unstructured.Unstructured, opts ...client.ApplyOption) error {
	name := NameOf(want)
	opts = append(opts, client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	err := s.Cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), opts...)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (s *ApplyStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("not all is as wanted")
	}
	return err
}

func (s *ApplyStep) Preview() ([]engine.Change, error) {
	all, err := s.objects([]string{"…"})
	if err != nil {
		return nil, err
	}
	var changes []engine.Change
	for _, o := range all {
		changes = append(changes, engine.Change{Verb: "create", Object: NameOf(o), Body: o.Object})
	}
	return changes, nil
}

// NameOf is kind and name.
func NameOf(o client.Object) string {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// Free fails as long as an object belongs to another migration that goes on: there is one of it for all. without says how to do without it.
// One of the same set that has moved lends it, and takes it back when it goes on.
func Free(ctx context.Context, c client.Client, migrating, owner, object, without string) error {
	if owner == migrating || owner == "" {
		return nil
	}
	m, err := migration.Get(ctx, c, owner)
	if err != nil || m == nil || m.Status.Phase == v1alpha1.PhaseFinished || m.Status.Phase == v1alpha1.PhaseRolledBack {
		return err
	}
	if migration.Beside(m, migrating) {
		return nil
	}
	return &migration.StateError{
		Name: owner, Problem: fmt.Sprintf("is under way, and %s is its own", object),
		Hint: fmt.Sprintf("replumb finish %s, or rollback, first; or %s", owner, without),
	}
}

// servers are those that programs are given. Those that know all there are keep what they know: an API server that is away for a
// moment is no reason to restart them.
func servers(now []string, have *unstructured.Unstructured) []string {
	known := serversOf(have)
	if slices.ContainsFunc(now, func(a string) bool { return !slices.Contains(known, a) }) {
		return now
	}
	return known
}

// serversOf are the API servers that the pods of a workload are given.
func serversOf(o *unstructured.Unstructured) []string {
	body, there, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
	pod := &corev1.PodSpec{}
	if err != nil || !there || runtime.DefaultUnstructuredConverter.FromUnstructured(body, pod) != nil {
		return nil
	}
	for _, c := range pod.Containers {
		for _, arg := range c.Args {
			if all, ok := strings.CutPrefix(arg, APIFlag); ok {
				return strings.Split(all, ",")
			}
		}
	}
	return nil
}

// APIServers are the addresses, as IP:port, that the Service kubernetes leads to.
func APIServers(ctx context.Context, c client.Client) ([]string, error) {
	all := &discoveryv1.EndpointSliceList{}
	err := c.List(ctx, all, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("looking for the addresses of API servers: %w", err)
	}
	var addresses []string
	for i := range all.Items {
		slice := &all.Items[i]
		for _, port := range slice.Ports {
			if port.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				for _, a := range e.Addresses {
					addresses = append(addresses, net.JoinHostPort(a, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	if len(addresses) == 0 {
		return nil, engine.NotYet("service default/kubernetes leads to no API server")
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}
