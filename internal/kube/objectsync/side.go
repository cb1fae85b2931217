package objectsync

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

const pageSize = 500

// Side is one of the two clusters.
type Side struct {
	*cluster.Cluster

	objects   dynamic.Interface
	meta      metadata.Interface
	discovery discovery.DiscoveryInterface
}

// Connect makes the clients that a copy needs. It sends nothing yet.
func Connect(c *cluster.Cluster) (*Side, error) {
	config := c.RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	s := &Side{Cluster: c}
	var err error
	if s.objects, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	if s.meta, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	if s.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	return s, nil
}

func (s *Side) Each(ctx context.Context, k objects.ResourceKind, do func(*unstructured.Unstructured) error) error {
	return pages(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		list, err := s.objects.Resource(k.GVR()).List(ctx, o)
		if err != nil {
			return "", err
		}
		return list.GetContinue(), eachItem(list.Items, do)
	})
}

func (s *Side) EachMeta(ctx context.Context, k objects.ResourceKind, labels string, do func(*metav1.PartialObjectMetadata) error) error {
	return pages(ctx, metav1.ListOptions{LabelSelector: labels}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		list, err := s.meta.Resource(k.GVR()).List(ctx, o)
		if err != nil {
			return "", err
		}
		return list.GetContinue(), eachItem(list.Items, do)
	})
}

func eachItem[T any](items []T, do func(*T) error) error {
	for i := range items {
		if err := do(&items[i]); err != nil {
			return err
		}
	}
	return nil
}

// pages continues a list whose version has expired with what is there now.
func pages(ctx context.Context, o metav1.ListOptions, next func(context.Context, metav1.ListOptions) (string, error)) error {
	o.Limit = pageSize
	for {
		more, err := next(ctx, o)
		if err != nil {
			var status apierrors.APIStatus
			if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) || status.Status().Continue == "" {
				return err
			}
			more = status.Status().Continue
		}
		if more == "" {
			return nil
		}
		o.Continue = more
	}
}

func (s *Side) count(ctx context.Context, k objects.ResourceKind) (int, error) {
	list, err := s.meta.Resource(k.GVR()).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}

func (s *Side) Read(ctx context.Context, k objects.ResourceKind, of objects.Key) (*unstructured.Unstructured, error) {
	if k.Namespaced {
		return s.objects.Resource(k.GVR()).Namespace(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	}
	return s.objects.Resource(k.GVR()).Get(ctx, of.Name, metav1.GetOptions{})
}

func (s *Side) MetaOf(k objects.ResourceKind, namespace string) metadata.ResourceInterface {
	if k.Namespaced {
		return s.meta.Resource(k.GVR()).Namespace(namespace)
	}
	return s.meta.Resource(k.GVR())
}

// apply writes by server-side apply. Of the answer only the metadata comes back.
func (s *Side) apply(ctx context.Context, k objects.ResourceKind, of objects.Key, body []byte, force bool) (*metav1.PartialObjectMetadata, error) {
	return s.MetaOf(k, of.Namespace).Patch(ctx, of.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: v1alpha1.FieldManager, Force: &force})
}

// remove deletes the very object that was looked at, if it is still there.
func (s *Side) remove(ctx context.Context, k objects.ResourceKind, of objects.Key, uid types.UID) error {
	err := s.MetaOf(k, of.Namespace).Delete(ctx, of.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: ptr(metav1.DeletePropagationBackground),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another one is there
	}
	return err
}

func ptr[T any](v T) *T { return &v }
