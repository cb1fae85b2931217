package engine

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRetryable(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"a page that the API server keeps no more": {apierrors.NewResourceExpired("the provided continue parameter is too old"), true},
		"wrapped":     {fmt.Errorf("listing pods: %w", apierrors.NewResourceExpired("too old")), true},
		"busy":        {apierrors.NewTooManyRequestsError("busy"), true},
		"away":        {apierrors.NewServiceUnavailable("no endpoints"), true},
		"not there":   {apierrors.NewNotFound(pods, "web"), false},
		"not allowed": {apierrors.NewForbidden(pods, "web", nil), false},
		"another":     {errors.New("no"), false},
	} {
		if got := Retryable(tt.err); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
