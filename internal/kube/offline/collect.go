package offline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// pageSize is that of collections whose objects may be large: a page is in memory at once. Others
// have pages of 500.
func pageSize(resource string) int {
	switch resource {
	case "secrets", "customresourcedefinitions":
		return 25
	case "configmaps":
		return 100
	}
	return 500
}

type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
}

// resources are those that the cluster serves and that the rights are about, or that replumb has
// clients for. Custom ones are read in each version that is served.
func (t *Taker) resources(a *answers) []resource {
	known := map[schema.GroupResource][]string{}
	for _, r := range cluster.Resources() {
		known[r.GroupResource()] = append(known[r.GroupResource()], r.Version)
	}
	wanted := map[schema.GroupResource]bool{}
	for _, r := range t.Rights {
		if r.URL == "" && r.Subresource == "" && (r.Verb == "get" || r.Verb == "list") {
			wanted[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = true
		}
	}
	all := slices.DeleteFunc(a.served(), func(r resource) bool {
		versions, has := known[r.GroupResource()]
		if has {
			return !slices.Contains(versions, r.Version)
		}
		return !wanted[r.GroupResource()] || r.Resource == "events"
	})
	slices.SortFunc(all, func(x, y resource) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Resource, y.Resource), strings.Compare(x.Version, y.Version))
	})
	return all
}

// served are the resources that the API server lists objects of.
func (a *answers) served() (all []resource) {
	for path, said := range a.Paths {
		list := &metav1.APIResourceList{}
		if said.Code != http.StatusOK || json.Unmarshal([]byte(said.Body), list) != nil || list.GroupVersion == "" {
			continue
		}
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || !strings.HasSuffix(path, "/"+gv.String()) {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") {
				all = append(all, resource{GroupVersionResource: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced})
			}
		}
	}
	return all
}

// untold are groups of which the API server did not tell what it serves, though rights are about
// them: an API server of others behind it that is away. Their objects are not read.
func (t *Taker) untold(a *answers) (all []string) {
	for path, said := range a.Paths {
		version, is := strings.CutPrefix(path, "/apis/")
		group, _, _ := strings.Cut(version, "/")
		about := slices.ContainsFunc(t.Rights, func(r access.Right) bool { return r.Group == group && r.URL == "" })
		if is && about && said.Code != http.StatusOK {
			all = append(all, "all of "+version)
		}
	}
	return all
}

// collect reads a collection. Where the user may not list all of it, it reads what their rights are
// about: namespaces, and single objects.
func (t *Taker) collect(ctx context.Context, w *writer, a *answers, r resource, count bool) error {
	refused, err := t.collection(ctx, w, a, r, "", count)
	if err != nil || !refused {
		return err
	}
	done := map[access.Right]bool{}
	for _, right := range t.Rights {
		if !r.concerns(right) || done[right] {
			continue
		}
		done[right] = true
		switch {
		case right.Verb == "list" && right.Namespace != "" && r.namespaced:
			_, err = t.collection(ctx, w, a, r, right.Namespace, count)
		case right.Verb == "get" && right.Name != "" && r.namespaced == (right.Namespace != ""):
			err = t.object(ctx, w, r, right.Namespace, right.Name, count)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// concerns reports whether a right is about these objects.
func (r *resource) concerns(right access.Right) bool {
	return right.Group == r.Group && right.Resource == r.Resource && right.Subresource == "" && right.URL == ""
}

func (r *resource) path(namespace string) string {
	path := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}

func (r *resource) page(namespace, name string) *page {
	return &page{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.kind, Namespace: namespace, Name: name}
}

// collection reads one page by page, and reports whether the API server refused.
func (t *Taker) collection(ctx context.Context, w *writer, a *answers, r resource, namespace string, count bool) (refused bool, err error) {
	params := map[string]string{"limit": strconv.Itoa(pageSize(r.Resource))}
	if r.Group == "" && r.Resource == "secrets" {
		if !a.allowed(access.Right{Verb: "list", Resource: "secrets", Namespace: namespace}) {
			// A request that is refused would stand in the audit log of others.
			no := refusal(apierrors.NewForbidden(r.GroupResource(), "", errors.New("the user may not list them")))
			return true, w.page(r.refused(namespace, no), count)
		}
		params["fieldSelector"] = "type!=" + string(helmRelease) // large, compressed, and not looked into
	}
	for {
		said, err := answerOf(t.Cluster.GetQuery(ctx, r.path(namespace), params))
		if err != nil {
			return false, err
		}
		if said.Code != http.StatusOK {
			return t.unread(w, r, namespace, said, params["continue"] == "", count)
		}
		p := r.page(namespace, "")
		next, err := p.fill(said.Body)
		if err != nil {
			return false, err
		}
		if err := w.page(p, count); err != nil {
			return false, err
		}
		if next == "" {
			return false, nil
		}
		params["continue"] = next
	}
}

// unread keeps why a collection was not read. One that went, or that is no collection of its own,
// is none; one that ends in the middle is no answer.
func (t *Taker) unread(w *writer, r resource, namespace string, said *answer, first, count bool) (refused bool, err error) {
	switch {
	case !first:
		return false, fmt.Errorf("reading %s: %s", resourceName(r.Group, r.Resource), said.Body)
	case said.Code == http.StatusNotFound || said.Code == http.StatusMethodNotAllowed:
		return false, nil
	}
	return true, w.page(r.refused(namespace, said), count)
}

func (r *resource) refused(namespace string, said *answer) *page {
	p := r.page(namespace, "")
	p.Refused, p.Code = json.RawMessage(said.Body), said.Code
	return p
}

func (p *page) fill(body string) (next string, err error) {
	var list struct {
		Metadata struct {
			Continue string `json:"continue"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return "", fmt.Errorf("reading %s: %w", resourceName(p.Group, p.Resource), err)
	}
	for _, item := range list.Items {
		kept, err := lean(p.Group, p.Resource, item)
		if err != nil {
			return "", err
		}
		p.Items = append(p.Items, kept)
	}
	return list.Metadata.Continue, nil
}

func (t *Taker) object(ctx context.Context, w *writer, r resource, namespace, name string, count bool) error {
	said, err := answerOf(t.Cluster.GetRaw(ctx, r.path(namespace)+"/"+name))
	if err != nil {
		return err
	}
	p := r.page(namespace, name)
	switch said.Code {
	case http.StatusOK:
		kept, err := lean(r.Group, r.Resource, json.RawMessage(said.Body))
		if err != nil {
			return err
		}
		p.Items = []json.RawMessage{kept}
	case http.StatusNotFound: // as a collection of none says
	default:
		p.Refused, p.Code = json.RawMessage(said.Body), said.Code
	}
	return w.page(p, count)
}

// allowed reports whether the user has a right, as far as is known.
func (a *answers) allowed(r access.Right) bool {
	spec := r.Question()
	said, known := a.said(&spec)
	return known && said.Allowed
}
