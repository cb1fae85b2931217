package objectsync

import (
	"context"
	"errors"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// stream is the objects of a kind in the order of their names, a page of them at a time.
type stream struct {
	next func(more string) (*unstructured.UnstructuredList, error)
	page []unstructured.Unstructured
	more string
	done bool
	err  error
}

func (s *Side) stream(ctx context.Context, k objects.ResourceKind) *stream {
	return &stream{next: func(more string) (*unstructured.UnstructuredList, error) {
		return s.objects.Resource(k.GVR()).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: more})
	}}
}

func (s *stream) peek() *unstructured.Unstructured {
	for len(s.page) == 0 && !s.done {
		list, err := s.next(s.more)
		var status apierrors.APIStatus
		switch {
		case err == nil:
			s.page, s.more = list.Items, list.GetContinue()
		case apierrors.IsResourceExpired(err) && errors.As(err, &status) && status.Status().Continue != "":
			s.more = status.Status().Continue // see pages
			continue
		case apierrors.IsNotFound(err): // the kind is not served: there is none
		default:
			s.err = err
		}
		s.done = s.err != nil || s.more == ""
	}
	if len(s.page) == 0 {
		return nil
	}
	return &s.page[0]
}

func (s *stream) take(of string) *unstructured.Unstructured {
	o := s.peek()
	if o == nil || place(o) != of {
		return nil
	}
	s.page = s.page[1:]
	return o
}

// place is where an object stands in a list, sorted by keys in etcd as API servers do.
func place(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// earlier is the place of the one that comes first.
func earlier(a, b *unstructured.Unstructured) (of string, more bool) {
	switch {
	case a == nil && b == nil:
		return "", false
	case a == nil:
		return place(b), true
	case b == nil:
		return place(a), true
	}
	return min(place(a), place(b)), true
}

func (s *Side) scaled(ctx context.Context) (map[objects.Ref]bool, error) {
	all := map[objects.Ref]bool{}
	k := objects.ResourceKind{Group: "autoscaling", Version: autoscalingv2.SchemeGroupVersion.Version, Resource: "horizontalpodautoscalers"}
	resources := map[string]string{"Deployment": "deployments.apps", "StatefulSet": "statefulsets.apps", "ReplicaSet": "replicasets.apps"}
	err := s.Each(ctx, k, func(o *unstructured.Unstructured) error {
		of := objects.Inside(o.Object, "spec", "scaleTargetRef")
		kind, _ := of["kind"].(string)
		name, _ := of["name"].(string)
		if resource := resources[kind]; resource != "" {
			all[objects.Ref{Resource: resource, Namespace: o.GetNamespace(), Name: name}] = true
		}
		return nil
	})
	return all, err
}
