package lossguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestBlame: what is lost to an agent that ends is no loss, and anything beside that is.
func TestBlame(t *testing.T) {
	at := metav1.NewMicroTime(time.Date(2026, 11, 22, 9, 0, 10, 0, time.UTC))
	loss := func(name, text string) v1alpha1.Loss {
		return v1alpha1.Loss{Node: "a", Probe: name, LossWindow: v1alpha1.LossWindow{Start: at, End: at, Failed: 1, Error: text}}
	}
	refused, reset := loss("host/name", "connect-refused: no"), loss("pod/stream", "reset: by peer")
	ends := func(_ context.Context, since time.Time) string {
		if at.Sub(since) > 10*time.Second {
			return "" // it goes by the first loss
		}
		return "node b: pod probe-1 ended with code 137"
	}
	for _, tt := range []struct {
		name   string
		losses []v1alpha1.Loss
		ended  func(context.Context, time.Time) string
		blamed bool
	}{
		{"ended", []v1alpha1.Loss{refused, reset}, ends, true},
		{"no agent ended", []v1alpha1.Loss{refused}, func(context.Context, time.Time) string { return "" }, false},
		{"it is not known", []v1alpha1.Loss{refused}, nil, false},
		{"a time-out beside it", []v1alpha1.Loss{refused, loss("host/name", "connect-timeout: late")}, ends, false},
		{"another one beside it", []v1alpha1.Loss{refused, loss("host/shop", "connect-refused: no")}, ends, false},
		{"a Service that moved", []v1alpha1.Loss{loss("shop/cart", "connection refused")}, ends, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &lossguard.Watch{}
				if tt.ended != nil {
					w.Diagnose(diagnosis{ended: tt.ended})
				}
				err := w.Blame(t.Context(), &lossguard.LossError{Migration: "m", Failed: 1, Losses: tt.losses})
				var lost *lossguard.LossError
				var ended *lossguard.EndedError
				if errors.As(err, &ended) != tt.blamed || errors.As(err, &lost) == tt.blamed {
					t.Errorf("got %T: %v", err, err)
				}
				if tt.blamed && (!strings.Contains(err.Error(), "node b: pod probe-1") || ended.Advice() == "") {
					t.Errorf("says %v", err)
				}
			})
		})
	}
}

// diagnosis knows what a test says.
type diagnosis struct {
	why   func(node string, origin v1alpha1.ProbeOrigin) agentset.Silent
	ended func(context.Context, time.Time) string
}

func (d diagnosis) Why(_ context.Context, node string, origin v1alpha1.ProbeOrigin) agentset.Silent {
	return d.why(node, origin)
}

func (d diagnosis) Ended(ctx context.Context, since time.Time) string { return d.ended(ctx, since) }
