// Package objectsync copies objects of one cluster into another, compares them and follows changes.
// Its rooms decide what is copied (copyrules), look ahead (copypreview), and have in one cluster
// what must not run in both (runonce).
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

	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
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
	Copied []objects.ResourceKind
	// Missing are kinds that the target does not serve, even with all definitions copied.
	Missing []objects.ResourceKind
	// LeftOut are kinds no object of which is copied, with the reason.
	LeftOut map[string]string
	// Excluded are those of LeftOut that spec.mirror.copy.kinds leaves out, and that the target
	// serves: it may have copies from before.
	Excluded []objects.ResourceKind
	Broken   []string
}

// FindKinds asks both sides what they serve.
func FindKinds(ctx context.Context, source, target *Side, r *copyrules.Rules) (*ResourceKinds, error) {
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
	defined, err := source.Defined(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, g := range from.groups {
		found.add(r, g, from, to, foreign, defined)
	}
	copyrules.Order(found.Copied)
	copyrules.Order(found.Missing)
	copyrules.Order(found.Excluded)
	return found, nil
}

func (f *ResourceKinds) add(r *copyrules.Rules, g *metav1.APIGroup, from, to *served, foreign, defined map[string]bool) {
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
				k := objects.ResourceKind{Group: g.Name, Version: version, Kind: res.Kind, Resource: name, Namespaced: res.Namespaced}
				f.sort(k, r.Kind(k), there, foreign[gv.String()], defined[k.String()])
			}
		}
	}
}

// sort puts a kind where it belongs: why is for what reason it is left out, there that the target
// serves it, foreign that another API server has it, defined that its definition is copied.
func (f *ResourceKinds) sort(k objects.ResourceKind, why string, there, foreign, defined bool) {
	if why == copyrules.OfNoKind && there && copyrules.Prunable(k) {
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
	services := objects.ResourceKind{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	all := map[string]bool{}
	err := s.Each(ctx, services, func(o *unstructured.Unstructured) error {
		within := objects.Inside(o.Object, "spec")
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

// Defined are the definitions of a side that are copied, by name.
func (s *Side) Defined(ctx context.Context, r *copyrules.Rules) (map[string]bool, error) {
	all := map[string]bool{}
	err := s.Each(ctx, objects.Definitions(), func(o *unstructured.Unstructured) error {
		if r.WhyNot(objects.Definitions(), o) == "" {
			all[o.GetName()] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading customresourcedefinitions: %w", err)
	}
	return all, nil
}

func (s *Side) Reads(r *copyrules.Rules) ([]schema.GroupResource, error) {
	all, err := s.served()
	if err != nil {
		return nil, err
	}
	seen := map[schema.GroupResource]bool{}
	for gv, kinds := range all.kinds {
		for name, res := range kinds {
			k := objects.ResourceKind{Group: gv.Group, Version: gv.Version, Kind: res.Kind, Resource: name, Namespaced: res.Namespaced}
			if copyable(res) && r.Kind(k) == "" {
				seen[gv.WithResource(name).GroupResource()] = true
			}
		}
	}
	for _, always := range []objects.ResourceKind{objects.Definitions(), {Group: "apiregistration.k8s.io", Resource: "apiservices"}} {
		seen[always.GVR().GroupResource()] = true
	}
	out := slices.Collect(maps.Keys(seen))
	slices.SortFunc(out, func(a, b schema.GroupResource) int {
		return strings.Compare(a.Group+"/"+a.Resource, b.Group+"/"+b.Resource)
	})
	return out, nil
}
