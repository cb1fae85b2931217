package offline

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/kube/access"
)

const maxBody = 16 << 20

// write answers questions that are asked by writing: for rights, and by dry runs. Any other write
// is refused.
func (s *Server) write(r *http.Request) (*answer, error) {
	t, is := parse(r.URL.Path)
	if !is {
		return nil, readOnly(r.Method, r.URL.Path)
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, maxBody)); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if r.Method == http.MethodPost && t.Group == authorizationv1.GroupName && t.Resource == "selfsubjectaccessreviews" {
		return s.review(body)
	}
	if r.URL.Query().Get("dryRun") != metav1.DryRunAll {
		return nil, readOnly(r.Method, t.String())
	}
	switch r.Method {
	case http.MethodPost:
		return s.tryCreate(t, body)
	case http.MethodPatch:
		return s.tryPatch(t, types.PatchType(r.Header.Get("Content-Type")), body)
	case http.MethodPut:
		return s.tryUpdate(t, body)
	case http.MethodDelete:
		s.note("delete", t)
		return s.get(r, t)
	}
	return nil, readOnly(r.Method, t.String())
}

func (s *Server) note(verb string, t target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untried[verb+" "+resourceName(t.Group, t.Resource)]++
}

// review gives the recorded answer of the authorizer. A right is granted as well if a wider one is.
func (s *Server) review(body []byte) (*answer, error) {
	review := &authorizationv1.SelfSubjectAccessReview{}
	if err := json.Unmarshal(body, review); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	said, known := s.archive.answers.said(&review.Spec)
	if !known {
		said.Reason = "the snapshot does not tell"
		s.mu.Lock()
		s.unknown[rightOf(&review.Spec).String()] = true
		s.mu.Unlock()
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"}
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: said.Allowed, Reason: said.Reason}
	out, err := json.Marshal(review)
	return &answer{Code: http.StatusCreated, Body: string(out)}, err
}

func rightOf(spec *authorizationv1.SelfSubjectAccessReviewSpec) access.Right {
	if n := spec.NonResourceAttributes; n != nil {
		return access.Right{Verb: n.Verb, URL: n.Path}
	}
	a := spec.ResourceAttributes
	if a == nil {
		return access.Right{}
	}
	return access.Right{
		Verb:        a.Verb,
		Group:       a.Group,
		Resource:    a.Resource,
		Subresource: a.Subresource,
		Namespace:   a.Namespace,
		Name:        a.Name,
	}
}

func everything() []access.Right {
	return []access.Right{{Verb: "*", Group: "*", Resource: "*"}, {Verb: "*", URL: "*"}}
}

// said is the answer to a question, or to the narrowest wider one that was answered with yes.
func (a *answers) said(spec *authorizationv1.SelfSubjectAccessReviewSpec) (accessReview, bool) {
	asked := rightOf(spec)
	unnamed, anywhere := asked, asked
	unnamed.Name = ""
	anywhere.Name, anywhere.Namespace = "", ""
	wider := []access.Right{unnamed, anywhere, everything()[0]}
	if asked.URL != "" {
		wider = []access.Right{everything()[1]}
	}
	by := map[access.Right]accessReview{}
	for _, one := range a.Access {
		by[rightOf(&one.Spec)] = one
	}
	if one, known := by[asked]; known {
		return one, true
	}
	for _, r := range wider {
		if one := by[r]; one.Allowed {
			return one, true
		}
	}
	return accessReview{}, false
}

// tryCreate says that something would be created, unless the archive shows that it is there, or
// that its namespace is not.
func (s *Server) tryCreate(t target, body []byte) (*answer, error) {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if a, known := s.rangeOf(t, o); known {
		return a, nil
	}
	if err := s.inNamespace(t.namespace); err != nil {
		return nil, err
	}
	name := o.GetName()
	if name == "" {
		name = o.GetGenerateName() + "00000"
	}
	if one, _, _, _ := s.archive.objects.get(t.GroupVersionResource, t.namespace, name); one != nil {
		return nil, apierrors.NewAlreadyExists(t.GroupResource(), name)
	}
	s.note("create", t)
	o.SetName(name)
	o.SetCreationTimestamp(metav1.NewTime(s.archive.Head.Time))
	o.SetUID("00000000-0000-0000-0000-000000000000")
	out, err := o.MarshalJSON()
	return &answer{Code: http.StatusCreated, Body: string(out)}, err
}

// rangeOf is the answer of the API server to a Service with an address of no range.
func (s *Server) rangeOf(t target, o *unstructured.Unstructured) (*answer, bool) {
	if t.Group != corev1.GroupName || t.Resource != "services" || len(s.archive.answers.Ranges) == 0 {
		return nil, false
	}
	ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP")
	a, known := s.archive.answers.Ranges[ip]
	return &a, known
}

func (s *Server) inNamespace(name string) error {
	of := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if name == "" {
		return nil
	}
	if one, _, refused, known := s.archive.objects.get(of, "", name); one == nil && refused == nil && known {
		return apierrors.NewNotFound(of.GroupResource(), name)
	}
	return nil
}

// tryPatch says what an object would be with a patch, without what an API server fills in.
func (s *Server) tryPatch(t target, kind types.PatchType, body []byte) (*answer, error) {
	one, name, _, _ := s.archive.objects.get(t.GroupVersionResource, t.namespace, t.name)
	if one == nil {
		if kind == types.ApplyPatchType || kind == types.ApplyCBORPatchType {
			asJSON, err := yaml.YAMLToJSON(body)
			if err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return s.tryCreate(t, asJSON)
		}
		return nil, apierrors.NewNotFound(t.GroupResource(), t.name)
	}
	have, err := typed(one.body, t.GroupVersion().String(), name)
	if err != nil {
		return nil, err
	}
	s.note("patch", t)
	out, err := s.patched(t.GroupVersion().WithKind(name), have, kind, body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &answer{Code: http.StatusOK, Body: string(out)}, nil
}

// patched is an object with a patch. Server-side apply is played by a strategic merge, which keeps
// defaulted fields of lists.
func (s *Server) patched(gvk schema.GroupVersionKind, have []byte, kind types.PatchType, patch []byte) ([]byte, error) {
	switch kind {
	case types.JSONPatchType:
		p, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return p.Apply(have)
	case types.MergePatchType:
		return jsonpatch.MergePatch(have, patch)
	case types.ApplyPatchType, types.StrategicMergePatchType:
		patch, err := yaml.YAMLToJSON(patch)
		if err != nil {
			return nil, err
		}
		if known, err := s.scheme.New(gvk); err == nil {
			return strategicpatch.StrategicMergePatch(have, patch, known)
		}
		return jsonpatch.MergePatch(have, patch)
	}
	return nil, fmt.Errorf("a patch of type %q cannot be tried on a snapshot", kind)
}

// tryUpdate says that an object that is there would be what is sent.
func (s *Server) tryUpdate(t target, body []byte) (*answer, error) {
	if one, _, _, _ := s.archive.objects.get(t.GroupVersionResource, t.namespace, t.name); one == nil {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.name)
	}
	s.note("update", t)
	return &answer{Code: http.StatusOK, Body: string(body)}, nil
}
