package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Server answers clients from an archive. It takes nothing that is written.
type Server struct {
	archive *Archive
	scheme  *runtime.Scheme

	mu sync.Mutex
	// untried counts writes taken for accepted, unknown rights that the authorizer was not asked
	// about.
	untried map[string]int
	unknown map[string]bool
	// unread are objects that the user may get but not list, and that were not read.
	unread map[string]bool
}

// Serve answers from an archive.
func Serve(a *Archive) *Server {
	return &Server{archive: a, untried: map[string]int{}, unknown: map[string]bool{}, unread: map[string]bool{}}
}

// errOffline is the answer to requests that would leave the archive.
var errOffline = errors.New("there is no network to a snapshot")

// Connect makes clients that read the archive: the usual ones, with no network behind them.
func (s *Server) Connect() (*cluster.Cluster, error) {
	config := &rest.Config{
		Host:      "https://" + s.archive.Head.Server,
		Transport: s,
		// Answers are JSON, whatever clients send.
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
		Dial:          func(context.Context, string, string) (net.Conn, error) { return nil, errOffline },
	}
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, err
	}
	c.ContextName = s.archive.Head.Context
	s.scheme = c.Scheme()
	return c, nil
}

// Inspector says of single API servers what was seen of them.
func (s *Server) Inspector() *apiserver.Inspector {
	return apiserver.NewRecorded(s.archive.answers.Servers)
}

func (s *Server) accepted() (all []string) {
	for _, what := range slices.Sorted(maps.Keys(s.untried)) {
		all = append(all, fmt.Sprintf("dry run not made, and taken for accepted: %s (%d)", what, s.untried[what]))
	}
	return all
}

func (s *Server) missing() (all []string) {
	for _, right := range slices.Sorted(maps.Keys(s.unknown)) {
		all = append(all, "right not known, and taken for missing: "+right)
	}
	for _, what := range slices.Sorted(maps.Keys(s.unread)) {
		all = append(all, "object not known, since it could be read by its name alone: "+what)
	}
	return all
}

func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }() // it is in memory
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if r.URL.Host != s.archive.Head.Server {
		return nil, errOffline
	}
	a, err := s.answer(r)
	if err != nil {
		a = refusal(err)
	}
	return s.response(r, a), nil
}

func (s *Server) response(r *http.Request, a *answer) *http.Response {
	kind := a.Type
	if kind == "" {
		kind = runtime.ContentTypeJSON
	}
	return &http.Response{
		Status: http.StatusText(a.Code), StatusCode: a.Code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		// The clock is that of the archive, as the objects are that are compared with it.
		Header:        http.Header{"Content-Type": {kind}, "Date": {s.archive.Head.Time.UTC().Format(http.TimeFormat)}},
		Body:          io.NopCloser(bytes.NewReader([]byte(a.Body))),
		ContentLength: int64(len(a.Body)),
	}
}

func refusal(err error) *answer {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(st)
	if err != nil {
		return &answer{Code: http.StatusInternalServerError, Body: "{}"}
	}
	return &answer{Code: int(st.Code), Body: string(body)}
}

// absent says that the archive does not tell. It is not the answer of an API server that does not
// have something.
func absent(what string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: "NotInSnapshot",
		Message: "the snapshot does not tell: " + what,
	}}
}

func readOnly(verb, what string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: fmt.Sprintf("a snapshot is only read: %s %s is refused", strings.ToLower(verb), what),
	}}
}

func (s *Server) answer(r *http.Request) (*answer, error) {
	if r.Method != http.MethodGet {
		return s.write(r)
	}
	if r.URL.Path == "/readyz" {
		return &answer{Code: http.StatusOK, Type: "text/plain", Body: "ok"}, nil
	}
	if a, known := s.archive.answers.Paths[r.URL.Path]; known {
		return &a, nil
	}
	t, is := parse(r.URL.Path)
	switch {
	case !is && isDiscovery(r.URL.Path): // of all that there is, it was asked
		return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
	case !is || t.subresource != "":
		return nil, absent(r.URL.Path)
	case t.name != "":
		return s.get(r, t)
	}
	return s.list(r, t)
}

func isDiscovery(path string) bool { return path == "/apis" || strings.HasPrefix(path, "/apis/") }

type target struct {
	schema.GroupVersionResource
	namespace, name, subresource string
}

func (t target) String() string {
	text := resourceName(t.Group, t.Resource)
	if t.subresource != "" {
		text += "/" + t.subresource
	}
	if t.namespace != "" {
		text += " in " + t.namespace
	}
	return text
}

// parse reads the paths of objects (k8s.io/apiserver pkg/endpoints/request/requestinfo.go).
func parse(path string) (t target, is bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		t.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		t.Group, t.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return t, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		t.namespace, parts = parts[1], parts[2:]
	}
	t.Resource = parts[0]
	if len(parts) > 1 {
		t.name = parts[1]
	}
	if len(parts) > 2 {
		t.subresource = strings.Join(parts[2:], "/")
	}
	return t, true
}

func (s *Server) served(of schema.GroupVersionResource) bool {
	path := "/apis/" + of.Group + "/" + of.Version
	if of.Group == "" {
		path = "/api/" + of.Version
	}
	have, asked := s.archive.answers.Paths[path]
	if !asked {
		return false
	}
	list := &metav1.APIResourceList{}
	if have.Code != http.StatusOK || json.Unmarshal([]byte(have.Body), list) != nil {
		return true // who knows
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == of.Resource })
}

func unserved() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}}
}

func (s *Server) get(r *http.Request, t target) (*answer, error) {
	one, kind, refused, known := s.archive.objects.get(t.GroupVersionResource, t.namespace, t.name)
	switch {
	case one != nil:
	case refused != nil:
		s.mayBe(t)
		return refused, nil
	case known:
		return nil, apierrors.NewNotFound(t.GroupResource(), t.name)
	case s.served(t.GroupVersionResource):
		return nil, absent(t.String())
	default:
		return nil, unserved()
	}
	body, err := typed(one.body, t.GroupVersion().String(), kind)
	if err != nil {
		return nil, err
	}
	if partial(r) {
		if body, err = metadataOf(body); err != nil {
			return nil, err
		}
	}
	return &answer{Code: http.StatusOK, Body: string(body)}, nil
}

// mayBe remembers an object that the archive does not tell of, where the user could have asked the
// API server for it.
func (s *Server) mayBe(t target) {
	right := access.Right{Verb: "get", Group: t.Group, Resource: t.Resource, Namespace: t.namespace, Name: t.name}
	_, asked := s.archive.objects.by[scope{of: t.GroupVersionResource, namespace: t.namespace, name: t.name}]
	if asked || !s.archive.answers.allowed(right) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread[t.String()+" "+t.name] = true
}

// list answers a page. Where it ended is a number.
func (s *Server) list(r *http.Request, t target) (*answer, error) {
	q := r.URL.Query()
	if on, _ := strconv.ParseBool(q.Get("watch")); on {
		return nil, readOnly("watch", t.String())
	}
	c := s.archive.objects.list(t.GroupVersionResource, t.namespace)
	switch {
	case c == nil && s.served(t.GroupVersionResource):
		return nil, absent(t.String())
	case c == nil:
		return nil, unserved()
	case c.refused != nil:
		return c.refused, nil
	}
	found, err := selectFrom(c, q)
	if err != nil {
		return nil, err
	}
	total := len(found)
	from, _ := strconv.Atoi(q.Get("continue"))
	from = min(max(from, 0), total)
	to := total
	if limit, _ := strconv.Atoi(q.Get("limit")); limit > 0 {
		to = min(from+limit, total)
	}
	meta := map[string]any{"resourceVersion": "1"}
	if to < total {
		meta["continue"], meta["remainingItemCount"] = strconv.Itoa(to), total-to
	}
	return listOf(t.GroupVersion().String(), c.kind, meta, found[from:to], partial(r))
}

func selectFrom(c *collection, q url.Values) (found []*object, err error) {
	var l labels.Selector
	var f fields.Selector
	if text := q.Get("labelSelector"); text != "" {
		if l, err = labels.Parse(text); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if text := q.Get("fieldSelector"); text != "" {
		if f, err = fields.ParseSelector(text); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	for _, one := range c.objects {
		if one.selected(l, f) {
			found = append(found, one)
		}
	}
	return found, nil
}

func listOf(version, kind string, meta map[string]any, of []*object, asMetadata bool) (*answer, error) {
	items := make([]json.RawMessage, 0, len(of))
	for _, one := range of {
		body := one.body
		if asMetadata {
			var err error
			if body, err = metadataOf(body); err != nil {
				return nil, err
			}
		}
		items = append(items, body)
	}
	if asMetadata {
		version, kind = metav1.SchemeGroupVersion.String(), "PartialObjectMetadata"
	}
	body, err := json.Marshal(map[string]any{"apiVersion": version, "kind": kind + "List", "metadata": meta, "items": items})
	if err != nil {
		return nil, fmt.Errorf("answering a list: %w", err)
	}
	return &answer{Code: http.StatusOK, Body: string(body)}, nil
}

func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func metadataOf(body json.RawMessage) (json.RawMessage, error) {
	var o struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"apiVersion": metav1.SchemeGroupVersion.String(), "kind": "PartialObjectMetadata", "metadata": o.Metadata,
	})
}

// typed gives an object its version and kind, which it does not have in a list.
func typed(body json.RawMessage, version, kind string) (json.RawMessage, error) {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err
	}
	var err error
	if o["apiVersion"], err = json.Marshal(version); err != nil {
		return nil, err
	}
	if o["kind"], err = json.Marshal(kind); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}
