package offline

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// Collection is the objects of one resource, in one version.
type Collection struct {
	schema.GroupVersionResource
	Kind    string
	Objects []json.RawMessage
}

// Collections are all objects by resource, each once: in the version that prefer names, or the
// latest.
func (a *Archive) Collections(prefer func(schema.GroupResource) string) []Collection {
	kept := map[schema.GroupResource]string{}
	for at, c := range a.objects.by {
		if len(c.objects) > 0 && better(at.of.Version, kept[at.of.GroupResource()], prefer(at.of.GroupResource())) {
			kept[at.of.GroupResource()] = at.of.Version
		}
	}
	all := map[schema.GroupVersionResource]*Collection{}
	seen := map[scope]bool{}
	for at, c := range a.objects.by {
		if kept[at.of.GroupResource()] != at.of.Version {
			continue
		}
		if all[at.of] == nil {
			all[at.of] = &Collection{GroupVersionResource: at.of}
		}
		all[at.of].take(c, seen)
	}
	var out []Collection
	for _, c := range all {
		if len(c.Objects) > 0 {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(x, y Collection) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Resource, y.Resource))
	})
	return out
}

func (c *Collection) take(from *collection, seen map[scope]bool) {
	c.Kind = cmp.Or(c.Kind, from.kind)
	for _, o := range from.objects {
		at := scope{of: c.GroupVersionResource, namespace: o.namespace, name: o.name}
		if !seen[at] {
			seen[at] = true
			c.Objects = append(c.Objects, o.body)
		}
	}
}

// better reports whether a version is to be taken in place of another.
func better(candidate, than, preferred string) bool {
	switch {
	case than == "" || candidate == preferred:
		return true
	case than == preferred:
		return false
	}
	return version.CompareKubeAwareVersionStrings(candidate, than) > 0
}

// Servers are the API servers as they were seen one by one.
func (a *Archive) Servers() []apiserver.Recorded { return slices.Clone(a.answers.Servers) }

// Kubelet is what the kubelet of a node said of its configuration; nil, if it was not asked, or did
// not answer.
func (a *Archive) Kubelet(node string) json.RawMessage {
	said, asked := a.answers.Paths[inventory.KubeletPath(node)]
	if !asked || said.Code != http.StatusOK {
		return nil
	}
	return json.RawMessage(said.Body)
}
