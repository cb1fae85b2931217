// Package objectsync copies objects of one cluster into another and compares them. Rules decide
// what is copied and how it is changed, a Copier writes, compares and follows.
package objectsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

type served struct {
	groups []*metav1.APIGroup
	kinds  map[schema.GroupVersion]map[string]metav1.APIResource
	// broken are versions of groups whose servers did not answer.
	broken map[schema.GroupVersion]error
}

func (s *Side) served() (*served, error) {
	groups, lists, err := s.discovery.ServerGroupsAndResources()
	all := &served{groups: groups, kinds: map[schema.GroupVersion]map[string]metav1.APIResource{}}
	var broken *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &broken) {
		all.broken = broken.Groups
	} else if err != nil {
		return nil, fmt.Errorf("asking %s what it serves: %w", s.Host(), err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // no such kinds can be asked for
		}
		all.kinds[gv] = map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				all.kinds[gv][r.Name] = r
			}
		}
	}
	return all, nil
}

// ResourceKinds are copied in this order, each in the source's preferred version that both serve.
type ResourceKinds struct {
	Copied []ResourceKind
	// Missing are kinds that the target does not serve, even with all definitions copied.
	Missing []ResourceKind
	// LeftOut are kinds no object of which is copied, with the reason.
	LeftOut map[string]string
	// Excluded are those of LeftOut that spec.mirror.copy.kinds leaves out, and that the target
	// serves: it may have copies from before.
	Excluded []ResourceKind
	Broken   []string
}

// FindKinds asks both sides what they serve.
func FindKinds(ctx context.Context, source, target *Side, r *CopyRules) (*ResourceKinds, error) {
	from, err := source.served()
	if err != nil {
		return nil, err
	}
	to, err := target.served()
	if err != nil {
		return nil, err
	}
	foreign, err := source.foreign(ctx)
	if err != nil {
		return nil, err
	}
	found := &ResourceKinds{LeftOut: map[string]string{}}
	for _, side := range []*served{from, to} {
		for gv, err := range side.broken {
			found.Broken = append(found.Broken, fmt.Sprintf("%s: %v", gv, err))
		}
	}
	slices.Sort(found.Broken)
	defined, err := source.defined(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, g := range from.groups {
		found.add(r, g, from, to, foreign, defined)
	}
	Order(found.Copied)
	Order(found.Missing)
	Order(found.Excluded)
	return found, nil
}

func (f *ResourceKinds) add(r *CopyRules, g *metav1.APIGroup, from, to *served, foreign, defined map[string]bool) {
	done := map[string]bool{}
	versions := []string{g.PreferredVersion.Version}
	for _, v := range g.Versions {
		versions = append(versions, v.Version)
	}
	for _, both := range []bool{true, false} { // a version that both serve, if there is one
		for _, version := range versions {
			gv := schema.GroupVersion{Group: g.Name, Version: version}
			for _, name := range slices.Sorted(maps.Keys(from.kinds[gv])) {
				res := from.kinds[gv][name]
				_, there := to.kinds[gv][name]
				if done[name] || (both && !there) || !copyable(res) {
					continue
				}
				done[name] = true
				k := ResourceKind{Group: g.Name, Version: version, Kind: res.Kind, Resource: name, Namespaced: res.Namespaced}
				f.sort(k, r.Kind(k), there, foreign[gv.String()], defined[k.String()])
			}
		}
	}
}

// sort puts a kind where it belongs: why is for what reason it is left out, there that the target
// serves it, foreign that another API server has it, defined that its definition is copied.
func (f *ResourceKinds) sort(k ResourceKind, why string, there, foreign, defined bool) {
	if why == ofNoKind && there && prunable(k) {
		f.Excluded = append(f.Excluded, k)
	}
	switch {
	case why != "":
		f.LeftOut[k.String()] = why
	case foreign:
		f.LeftOut[k.String()] = "another API server has it, which keeps it elsewhere"
	case there || defined:
		f.Copied = append(f.Copied, k)
	default:
		f.Missing = append(f.Missing, k)
	}
}

func copyable(r metav1.APIResource) bool {
	for _, verb := range []string{"get", "list", "create", "patch"} {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}

func (s *Side) foreign(ctx context.Context) (map[string]bool, error) {
	services := ResourceKind{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	all := map[string]bool{}
	err := s.each(ctx, services, func(o *unstructured.Unstructured) error {
		within := inside(o.Object, "spec")
		if within["service"] != nil {
			group, _ := within["group"].(string)
			version, _ := within["version"].(string)
			all[schema.GroupVersion{Group: group, Version: version}.String()] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading apiservices: %w", err)
	}
	return all, nil
}

// Services are the kind.
func Services() ResourceKind {
	return ResourceKind{Version: "v1", Kind: "Service", Resource: "services", Namespaced: true}
}

func definitions() ResourceKind {
	return ResourceKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition", Resource: "customresourcedefinitions"}
}

func (s *Side) defined(ctx context.Context, r *CopyRules) (map[string]bool, error) {
	all := map[string]bool{}
	err := s.each(ctx, definitions(), func(o *unstructured.Unstructured) error {
		if r.whyNot(definitions(), o) == "" {
			all[o.GetName()] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading customresourcedefinitions: %w", err)
	}
	return all, nil
}

func (s *Side) Reads(r *CopyRules) ([]schema.GroupResource, error) {
	all, err := s.served()
	if err != nil {
		return nil, err
	}
	seen := map[schema.GroupResource]bool{}
	for gv, kinds := range all.kinds {
		for name, res := range kinds {
			k := ResourceKind{Group: gv.Group, Version: gv.Version, Kind: res.Kind, Resource: name, Namespaced: res.Namespaced}
			if copyable(res) && r.Kind(k) == "" {
				seen[gv.WithResource(name).GroupResource()] = true
			}
		}
	}
	for _, always := range []ResourceKind{definitions(), {Group: "apiregistration.k8s.io", Resource: "apiservices"}} {
		seen[always.GVR().GroupResource()] = true
	}
	out := slices.Collect(maps.Keys(seen))
	slices.SortFunc(out, func(a, b schema.GroupResource) int {
		return strings.Compare(a.Group+"/"+a.Resource, b.Group+"/"+b.Resource)
	})
	return out, nil
}

// ResourceKind is one kind of object, in the version that it is copied in.
type ResourceKind struct {
	Group, Version string
	// ResourceKind such as Deployment, and Resource such as deployments.
	Kind, Resource string
	Namespaced     bool
}

func (k ResourceKind) String() string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

func (k ResourceKind) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

func (k ResourceKind) is(group, kind string) bool { return k.Group == group && k.Kind == kind }

func (k ResourceKind) secret() bool { return k.is("", "Secret") }

// Ref is one object.
type Ref struct {
	Resource        string
	Namespace, Name string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Resource + " " + r.Name
	}
	return r.Resource + " " + r.Namespace + "/" + r.Name
}

func (r Ref) key() key { return key{r.Namespace, r.Name} }

func refOf(k ResourceKind, o *unstructured.Unstructured) Ref {
	return Ref{Resource: k.String(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

type key struct{ namespace, name string }

func (k key) ref(of ResourceKind) Ref {
	return Ref{Resource: of.String(), Namespace: k.namespace, Name: k.name}
}
