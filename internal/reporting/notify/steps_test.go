package notify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// usedAddress is a cluster of one node, on which a pod has a connection to an old address open.
type usedAddress struct{ client.Reader }

func (usedAddress) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.NodeList:
		list.Items = []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}}
	case *v1alpha1.NodeReportList:
		list.Items = []v1alpha1.NodeReport{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.NodeReportStatus{
			Agents:  []v1alpha1.AgentReport{{Origin: v1alpha1.FromHost, Instance: "1", Sequence: 1}},
			Clients: []v1alpha1.OldAddressClient{{Address: "10.96.0.9:80", Service: "shop/cart", Pod: "shop/web", Open: 1}},
		}}}
	}
	return nil
}

// TestNewsOfWaits runs steps that wait for the operator, whatever they are called, until the lock
// is lost.
func TestNewsOfWaits(t *testing.T) {
	never := func(context.Context) error { return engine.NotYet("not yet") }
	for name, tt := range map[string]struct {
		step  engine.Step
		waits bool
	}{
		"a gate": {&engine.Gate{
			Wait: engine.Wait{Name: "join", About: "Join", For: never}, Instructions: func() string { return "add nodes" },
		}, true},
		"a gate that needs no help yet": {&engine.Gate{Wait: engine.Wait{Name: "gate/x", About: "Wait", For: never}}, false},
		"clients of old addresses":      {&lossguard.Soak{Client: usedAddress{}, Migration: "shop", Length: time.Hour}, true},
		"a wait":                        {&engine.Wait{Name: "gate/settle", About: "Settle", For: never}, false},
		"a barrier":                     {&engine.Wait{Name: "barrier/1", About: "Pass", For: never, As: engine.RoleBarrier}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, lose := context.WithCancelCause(t.Context())
			var n news
			var heard []engine.EventKind
			sink := func(e engine.Event) {
				if n.is(e) {
					heard = append(heard, e.Kind)
				}
				if e.Kind == engine.StepWaiting {
					lose(&lease.LostError{Why: errors.New("it was taken")})
				}
			}
			p := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Steps: []engine.Step{tt.step}}}}}}
			err := (&engine.Runner{Sink: sink}).Run(ctx, p)
			if !errors.Is(err, engine.ErrInterrupted) || !strings.Contains(err.Error(), "it was taken") {
				t.Fatalf("ended with %v", err)
			}
			want := []engine.EventKind{engine.RunStarted, engine.PhaseStarted, engine.StepWaiting, engine.RunInterrupted}
			if !tt.waits {
				want = slices.Delete(want, 2, 3)
			}
			if !slices.Equal(heard, want) {
				t.Errorf("heard %v, want %v", heard, want)
			}
		})
	}
}
