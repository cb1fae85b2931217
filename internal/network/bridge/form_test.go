package bridge

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestTriedBehindADeadWebhook: what the API server answers in its name is the refusal at once.
func TestTriedBehindADeadWebhook(t *testing.T) {
	asked := 0
	says := func(err error) client.Client {
		return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				asked++
				return err
			},
		})
	}
	dead := apierrors.NewInternalError(errors.New(`failed calling webhook "a.example.com": service "webhook" not found`))
	refused, err := TryService(t.Context(), says(dead), &corev1.Service{})
	if refused == nil || !refused.Down || refused.By != "webhook a.example.com" || err != nil || asked != 1 {
		t.Errorf("asked %d times: %v, %v", asked, refused, err)
	}
	busy := apierrors.NewServiceUnavailable("busy")
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if refused, err := TryService(ctx, says(busy), &corev1.Service{}); refused != nil || !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got %v, %v", refused, err)
	}
}
