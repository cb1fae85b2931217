package offline

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func served(t *testing.T) (*Server, *cluster.Cluster) {
	t.Helper()
	a, err := Read(bytes.NewReader(written(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(a)
	c, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func TestLists(t *testing.T) {
	_, c := served(t)
	for _, tt := range []struct {
		name string
		opts []client.ListOption
		want string
	}{
		{"all", nil, "back/c shop/a shop/b"},
		{"a page", []client.ListOption{client.Limit(2)}, "back/c shop/a +1"},
		{"the page after it", []client.ListOption{client.Limit(2), client.Continue("2")}, "shop/b"},
		{"beyond the end", []client.ListOption{client.Continue("9")}, ""},
		{"a namespace", []client.ListOption{client.InNamespace("shop")}, "shop/a shop/b"},
		{"a label", []client.ListOption{client.MatchingLabels{"app": "b"}}, "shop/b"},
		{"a field", []client.ListOption{client.MatchingFields{"spec.nodeName": "one"}}, "back/c shop/a"},
		{"a name", []client.ListOption{client.MatchingFields{"metadata.name": "b"}}, "shop/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, list := range []client.ObjectList{&corev1.PodList{}, &metav1.PartialObjectMetadataList{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			}} {
				if err := c.List(t.Context(), list, tt.opts...); err != nil {
					t.Fatal(err)
				}
				var got []string
				switch list := list.(type) {
				case *corev1.PodList:
					for i := range list.Items {
						got = append(got, list.Items[i].Namespace+"/"+list.Items[i].Name)
					}
				case *metav1.PartialObjectMetadataList:
					for i := range list.Items {
						got = append(got, list.Items[i].Namespace+"/"+list.Items[i].Name)
					}
				}
				if left := list.GetRemainingItemCount(); left != nil {
					got = append(got, fmt.Sprintf("+%d", *left))
				}
				if text := strings.Join(got, " "); text != tt.want {
					t.Errorf("%T: got %q, want %q", list, text, tt.want)
				}
			}
		})
	}
}

// TestAnswers: what is there, what is not, what the user may not read, and what the archive does
// not tell, are told apart.
func TestAnswers(t *testing.T) {
	_, c := served(t)
	get := func(o client.Object, namespace, name string) error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	}
	pod := &corev1.Pod{}
	if err := get(pod, "shop", "b"); err != nil || pod.Spec.NodeName != "two" {
		t.Errorf("%v, %+v", err, pod.Spec)
	}
	if err := get(&corev1.Pod{}, "shop", "c"); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not there: %v", err)
	}
	if err := get(&corev1.Node{}, "", "one"); err != nil {
		t.Errorf("an object that was asked for by its name: %v", err)
	}
	if err := get(&corev1.Node{}, "", "two"); !apierrors.IsForbidden(err) {
		t.Errorf("one of a collection that was refused: %v", err)
	}
	if err := c.List(t.Context(), &corev1.NodeList{}); !apierrors.IsForbidden(err) {
		t.Errorf("a collection that was refused: %v", err)
	}
	if err := c.List(t.Context(), &corev1.ServiceList{}); !apierrors.IsNotFound(err) {
		t.Errorf("a resource that the API server did not have: %v", err)
	}
	if err := c.List(
		t.Context(),
		&corev1.EventList{},
	); err == nil || apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), "the snapshot does not tell") {
		t.Errorf("a resource that was not read: %v", err)
	}
	if _, err := c.GetRaw(t.Context(), "/api/v1/nodes/one:10256/proxy/"); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("a path that was not asked: %v", err)
	}
	if of, err := c.ServerVersion(t.Context()); err != nil || of.GitVersion != "v1.36.3" || c.Host() != "192.0.2.1:6443" {
		t.Errorf("%+v, %v, %s", of, err, c.Host())
	}
	if _, err := c.Watch(t.Context(), &corev1.PodList{}); err == nil {
		t.Error("a snapshot was watched")
	}
}

func TestWritesAreRefused(t *testing.T) {
	s, c := served(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}}
	have := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
	for name, err := range map[string]error{
		"create": c.Create(t.Context(), pod.DeepCopy()), "update": c.Update(t.Context(), have.DeepCopy()),
		"patch": c.Patch(t.Context(), have.DeepCopy(), patch), "delete": c.Delete(t.Context(), have.DeepCopy()),
	} {
		if err == nil || !strings.Contains(err.Error(), "a snapshot is only read") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := s.Reading().Warnings(); len(left) > 0 {
		t.Errorf("untried: %q", left)
	}

	if err := c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if err := c.Create(t.Context(), have.DeepCopy(), client.DryRunAll); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the dry run of one that is there: %v", err)
	}
	pod.Namespace = "nowhere"
	if err := c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run where no namespace is: %v", err)
	}
	would := have.DeepCopy()
	if err := c.Patch(t.Context(), would, patch, client.DryRunAll); err != nil || would.Labels["x"] != "y" || would.Labels["app"] != "b" {
		t.Errorf("the dry run of a patch: %v, %v", err, would.Labels)
	}
	want := []string{
		"dry run not made, and taken for accepted: create pods (1)",
		"dry run not made, and taken for accepted: patch pods (1)",
	}
	if got := s.Reading().Warnings(); !slices.Equal(got, want) {
		t.Errorf("untried %q, want %q", got, want)
	}
}

func TestRights(t *testing.T) {
	question := func(r access.Right, allowed bool) accessReview {
		return accessReview{Spec: r.Question(), Allowed: allowed, Reason: "said"}
	}
	list := func(allowed bool) accessReview {
		return question(access.Right{Verb: "list", Resource: "pods"}, allowed)
	}
	for _, tt := range []struct {
		name           string
		have           []accessReview
		ask            access.Right
		allowed, known bool
	}{
		{"asked", []accessReview{list(true)}, access.Right{Verb: "list", Resource: "pods"}, true, true},
		{"denied", []accessReview{list(false)}, access.Right{Verb: "list", Resource: "pods"}, false, true},
		{"part of a wider one", []accessReview{list(true)}, access.Right{Verb: "list", Resource: "pods", Namespace: "shop"}, true, true},
		{"part of one that is denied", []accessReview{list(false)}, access.Right{Verb: "list", Resource: "pods", Namespace: "shop"}, false, false},
		{"not asked", []accessReview{list(true)}, access.Right{Verb: "list", Resource: "nodes"}, false, false},
		{"an administrator's", []accessReview{question(everything()[0], true)}, access.Right{Verb: "patch", Group: "x", Resource: "y"}, true, true},
		{"not of paths", []accessReview{question(everything()[0], true)}, access.Right{Verb: "get", URL: "/flagz"}, false, false},
		{"of paths", []accessReview{question(everything()[1], true)}, access.Right{Verb: "get", URL: "/flagz"}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &answers{Access: tt.have}
			spec := tt.ask.Question()
			if got, known := a.said(&spec); got.Allowed != tt.allowed || known != tt.known {
				t.Errorf("got %v, %v", got.Allowed, known)
			}
		})
	}
	s, c := served(t)
	answers, err := c.Access(t.Context(), []access.Right{{Verb: "list", Resource: "pods"}})
	if err != nil || answers[0].Allowed {
		t.Errorf("%+v, %v", answers, err)
	}
	if got := s.Reading().Warnings(); len(got) != 1 || !strings.Contains(got[0], "right not known, and taken for missing: list pods") {
		t.Errorf("untried %q", got)
	}
}
