package offline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/serviceranges"
)

// Taker takes a snapshot of a cluster.
type Taker struct {
	Cluster   *cluster.Cluster
	Inspector *apiserver.Inspector
	// Rights are those that checks ask the authorizer about. Their objects are read.
	Rights  []access.Right
	Replumb string
	Now     func() time.Time
}

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

// Take reads the cluster, page by page, and writes an archive. Nothing is written to the cluster.
func (t *Taker) Take(ctx context.Context, to io.Writer) (*Head, *Manifest, error) {
	version, err := t.Cluster.ServerVersion(ctx)
	if err != nil {
		return nil, nil, err
	}
	head := &Head{
		Kind: kindOfFile, Format: Format, Replumb: t.Replumb, Time: t.Now().UTC().Truncate(time.Second),
		Server: t.Cluster.Host(), Context: t.Cluster.ContextName, Kubernetes: version.GitVersion,
	}
	if of, err := t.Cluster.Identity(ctx); err == nil { // without the right to ask, it is not known
		head.UID = of.UID
	}
	w, err := newWriter(to, head)
	if err != nil {
		return nil, nil, err
	}
	said, err := t.ask(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := w.entry(answersName, said); err != nil {
		return nil, nil, err
	}
	for _, name := range t.untold(said) {
		w.unread(name)
	}
	counted := map[schema.GroupResource]bool{}
	for _, r := range t.resources(said) {
		first := !counted[r.GroupResource()]
		counted[r.GroupResource()] = true
		if err := t.collect(ctx, w, said, r, first); err != nil {
			return nil, nil, err
		}
	}
	m, err := w.close()
	return head, m, err
}

func (t *Taker) ask(ctx context.Context) (*answers, error) {
	a := &answers{Paths: map[string]answer{}}
	for _, path := range []string{"/version", "/api", "/apis", "/api/v1"} {
		if err := t.path(ctx, a, path); err != nil {
			return nil, err
		}
	}
	groups := &metav1.APIGroupList{}
	if err := json.Unmarshal([]byte(a.Paths["/apis"].Body), groups); err != nil {
		return nil, fmt.Errorf("reading the groups of the API server: %w", err)
	}
	for i := range groups.Groups {
		for _, v := range groups.Groups[i].Versions {
			if err := t.path(ctx, a, "/apis/"+v.GroupVersion); err != nil {
				return nil, err
			}
		}
	}
	if err := t.flags(ctx, a); err != nil {
		return nil, err
	}
	if err := t.kubelets(ctx, a); err != nil {
		return nil, err
	}
	if err := t.access(ctx, a); err != nil {
		return nil, err
	}
	return a, t.servers(ctx, a)
}

// path asks for one, and keeps a refusal as well.
func (t *Taker) path(ctx context.Context, a *answers, path string) error {
	body, err := t.Cluster.GetRaw(ctx, path)
	said, err := answerOf(body, err)
	if err != nil {
		return err
	}
	a.Paths[path] = *said
	return nil
}

// answerOf tells a refusal of an API server, which is an answer, from no answer.
func answerOf(body []byte, err error) (*answer, error) {
	if err == nil {
		return &answer{Code: http.StatusOK, Body: string(body)}, nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code < http.StatusBadRequest {
		return nil, err
	}
	return refusal(err), nil
}

// flags asks the API server that answers for its flags, in the form that checks ask for, and keeps
// those that they read.
func (t *Taker) flags(ctx context.Context, a *answers) error {
	body, kind, err := apiserver.Flags(ctx, t.Cluster)
	said, err := answerOf(body, err)
	if err != nil {
		return err
	}
	if said.Type = kind; said.Code != http.StatusOK {
		said.Type = ""
	}
	a.Paths["/flagz"] = *said
	return nil
}

func (t *Taker) kubelets(ctx context.Context, a *answers) error {
	nodes, err := cluster.List[corev1.Node](ctx, t.Cluster, &corev1.NodeList{})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, k := range inventory.Kubelets(ctx, t.Cluster, nodes) {
		said := &answer{Code: http.StatusOK}
		if k.Err != nil {
			if said, err = answerOf(nil, k.Err); err != nil {
				said = refusal(apierrors.NewServiceUnavailable(k.Err.Error()))
			}
		} else {
			body, err := json.Marshal(map[string]any{
				"kubeletconfig": map[string]any{"clusterDomain": k.Domain, "clusterDNS": k.DNS},
			})
			if err != nil {
				return fmt.Errorf("node %s: %w", name, err)
			}
			said.Body = string(body)
		}
		a.Paths[inventory.KubeletPath(name)] = *said
	}
	return ctx.Err()
}

// access asks the authorizer for all rights, and for what is wider than those that are about one
// object.
func (t *Taker) access(ctx context.Context, a *answers) error {
	var ask []access.Right
	seen := map[access.Right]bool{}
	add := func(r access.Right) {
		if !seen[r] {
			seen[r] = true
			ask = append(ask, r)
		}
	}
	for _, r := range slices.Concat(everything(), t.Rights, access.Grant("", "secrets", "", "list")) {
		add(r)
		if r.Name = ""; r.URL == "" {
			add(r)
		}
	}
	all, err := t.Cluster.Access(ctx, ask)
	if err != nil {
		return err
	}
	for i := range all {
		a.Access = append(a.Access, accessReview{Spec: all[i].Right.Question(), Allowed: all[i].Allowed, Reason: all[i].Reason})
	}
	return nil
}

func (t *Taker) servers(ctx context.Context, a *answers) error {
	found := &discoveryv1.EndpointSliceList{}
	ofKubernetes := client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}
	err := t.Cluster.List(ctx, found, client.InNamespace(metav1.NamespaceDefault), ofKubernetes)
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("looking for API servers: %w", err)
	}
	addresses := apiserver.Addresses(found.Items)
	if host := t.Cluster.Host(); !slices.Contains(addresses, host) {
		addresses = append(addresses, host)
	}
	seen := t.Inspector.InspectAll(ctx, addresses)
	for i := range seen {
		a.Servers = append(a.Servers, apiserver.Record(&seen[i]))
	}
	api, err := t.Cluster.Ranges(ctx)
	if err != nil || api != serviceranges.Bitmap {
		return err
	}
	return t.flagRanges(ctx, a)
}

// flagRanges asks API servers that have a flag and no ServiceCIDRs which range they give addresses
// of, by dry runs that are refused.
func (t *Taker) flagRanges(ctx context.Context, a *answers) error {
	a.Ranges = map[string]answer{}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		svc := serviceranges.OutOfRange(family)
		ip := svc.Spec.ClusterIP
		said, err := answerOf(nil, t.Cluster.Create(ctx, svc, client.DryRunAll))
		if err != nil {
			return fmt.Errorf("asking for the range of the API server: %w", err)
		}
		if said.Code == http.StatusOK { // who takes an address of no range gives no answer
			continue
		}
		a.Ranges[ip] = *said
		for i := range a.Servers {
			r, err := t.Inspector.Gives(ctx, a.Servers[i].Address, family)
			if err != nil {
				continue
			}
			if a.Servers[i].Gives == nil {
				a.Servers[i].Gives = map[corev1.IPFamily]netip.Prefix{}
			}
			a.Servers[i].Gives[family] = r
		}
	}
	return nil
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
