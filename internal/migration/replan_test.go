package migration

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestAgain: what an API server that is away for a moment answers ends no command that is under
// way; other errors do at once.
func TestAgain(t *testing.T) {
	no := errors.New("the backup was changed")
	for name, tt := range map[string]struct {
		answers []error
		want    error
		looks   int
	}{
		"at once":          {[]error{nil}, nil, 1},
		"away for a while": {[]error{apierrors.NewServiceUnavailable("starting"), apierrors.NewResourceExpired("too old"), nil}, nil, 3},
		"wrong":            {[]error{no, nil}, no, 1},
	} {
		looks := 0
		_, err := replan(t.Context(), func(context.Context) (Plans, error) {
			looks++
			return nil, tt.answers[looks-1]
		})
		if !errors.Is(err, tt.want) || looks != tt.looks {
			t.Errorf("%s: %v after %d looks", name, err, looks)
		}
	}
}
