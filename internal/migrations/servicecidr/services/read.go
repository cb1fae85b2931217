package services

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Read returns the Service as it is now; nil, if it is gone.
func (e *Entry) Read(ctx context.Context, c client.Client) (*corev1.Service, error) {
	svc := &corev1.Service{}
	err := c.Get(ctx, e.Key(), svc)
	if apierrors.IsNotFound(err) || (err == nil && svc.UID != e.Service.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", e.Key(), err)
	}
	return svc, nil
}

// ChangedError is an error about a Service that others have changed in the middle of its move.
func ChangedError(key types.NamespacedName, format string, args ...any) error {
	return &fault.Hinted{
		Err: fmt.Errorf("service %s "+format, append([]any{key}, args...)...),
		Hint: fmt.Sprintf("others have changed it meanwhile. Take the change back, and run the same command again; or let it keep its address: "+
			"kubectl annotate service -n %s %s %s=%s", key.Namespace, key.Name, v1alpha1.AnnotationStrategy, v1alpha1.StrategyPin),
	}
}
