package agentset

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// apiFlag tells agents the addresses of API servers.
const apiFlag = "--api="

// applyStep makes objects, or makes existing ones as they should be, by server-side apply. Whether they are is asked of the API server,
// by a dry run: it knows the defaults, and what webhooks add.
type applyStep struct {
	set       *Set
	id, title string
	// build makes the objects, given the addresses of the API servers.
	build func(servers []string) ([]client.Object, error)
}

var _ engine.Previewer = (*applyStep)(nil)

func (s *applyStep) ID() string    { return s.id }
func (s *applyStep) Title() string { return s.title }

// pair is an object as it should be and as it is; nil if it is not there.
type pair struct{ want, have *unstructured.Unstructured }

// look finds what there is of the objects.
func (s *applyStep) look(ctx context.Context) ([]pair, error) {
	now, err := apiServers(ctx, s.set.Cluster)
	if err != nil {
		return nil, err
	}
	wanted, err := s.objects(now)
	if err != nil {
		return nil, err
	}
	var all []pair
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
		all = append(all, pair{want, have})
	}
	return all, nil
}

// objects are written as maps, since empty fields of types would be fields that are claimed.
func (s *applyStep) objects(servers []string) ([]*unstructured.Unstructured, error) {
	typed, err := s.build(servers)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, o := range typed {
		body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.GetName(), err)
		}
		u := &unstructured.Unstructured{Object: body}
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "creationTimestamp")
		all = append(all, u)
	}
	return all, nil
}

// State implements engine.Step.
func (s *applyStep) State(ctx context.Context) (engine.State, error) {
	all, err := s.look(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	for _, p := range all {
		if p.have == nil {
			return engine.Pending, nil
		}
		if err := s.set.free(ctx, nameOf(p.want), p.have.GetLabels()); err != nil {
			return engine.Blocked, err
		}
		if p.have.GetDeletionTimestamp() != nil {
			return engine.Unknown, engine.NotYet("%s is being removed", nameOf(p.want))
		}
		if err := s.apply(ctx, p.want, client.DryRunAll); err != nil {
			return engine.Unknown, err
		}
		if !equality.Semantic.DeepEqual(content(p.want), content(p.have)) {
			return engine.Pending, nil
		}
	}
	return engine.Done, nil
}

func (s *applyStep) get(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	err := s.set.Cluster.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nameOf(want), err)
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

// Do implements engine.Step.
func (s *applyStep) Do(ctx context.Context) error {
	all, err := s.look(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := s.apply(ctx, p.want); err != nil {
			return err
		}
	}
	return nil
}

// apply makes want what is there then, or would be.
func (s *applyStep) apply(ctx context.Context, want *unstructured.Unstructured, opts ...client.ApplyOption) error {
	name := nameOf(want)
	opts = append(opts, client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	err := s.set.Cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), opts...)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Verify implements engine.Step.
func (s *applyStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("not all is as wanted")
	}
	return err
}

// Preview implements engine.Previewer. Which API servers there are is found when the step is done.
func (s *applyStep) Preview() ([]engine.Change, error) {
	all, err := s.objects([]string{"…"})
	if err != nil {
		return nil, err
	}
	var changes []engine.Change
	for _, o := range all {
		changes = append(changes, engine.Change{Verb: "create", Object: nameOf(o), Body: o.Object})
	}
	return changes, nil
}

// nameOf is kind and name.
func nameOf(o client.Object) string {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// servers are those that agents are given. Those that know all there are keep what they know: an API server that is away for a
// moment is no reason to restart all agents.
func servers(now []string, have *unstructured.Unstructured) []string {
	known := serversOf(have)
	if slices.ContainsFunc(now, func(a string) bool { return !slices.Contains(known, a) }) {
		return now
	}
	return known
}

// serversOf are the API servers that the pods of a DaemonSet are given.
func serversOf(o *unstructured.Unstructured) []string {
	d := &appsv1.DaemonSet{}
	if o.GetKind() != "DaemonSet" || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d) != nil {
		return nil
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range c.Args {
			if all, ok := strings.CutPrefix(arg, apiFlag); ok {
				return strings.Split(all, ",")
			}
		}
	}
	return nil
}

// apiServers are the addresses that the Service kubernetes leads to.
func apiServers(ctx context.Context, c client.Client) ([]string, error) {
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
