package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestNothingLeadsThere: a sentinel that wants servers forgotten is passed once no entry is left,
// and by no agent that cannot tell.
func TestNothingLeadsThere(t *testing.T) {
	flows := &fakeFlows{left: 3}
	b := &barrier{forget: flows.Forget}
	sentinel := &corev1.Service{}
	if err := b.clear(sentinel, &clearing{}); err != nil || len(flows.forgotten) > 0 {
		t.Errorf("nothing is to be forgotten: %v, %q", err, flows.forgotten)
	}
	sentinel.Annotations = map[string]string{v1alpha1.AnnotationForget: "10.244.1.7,nonsense,fd44::7"}
	c := &clearing{}
	if err := b.clear(sentinel, c); err == nil {
		t.Error("passed while entries are left")
	}
	flows.left = 0
	if err := b.clear(sentinel, c); err == nil || len(flows.forgotten) != 1 {
		t.Errorf("looked again at once: %v, %q", err, flows.forgotten)
	}
	c.since, c.latest = time.Now().Add(-20*time.Second), time.Time{}
	if err := b.clear(sentinel, c); err != nil {
		t.Error(err)
	}
	if want := []string{"[10.244.1.7 fd44::7] 6s", "[10.244.1.7 fd44::7] 2s"}; !slices.Equal(flows.forgotten, want) {
		t.Errorf("forgot %q, want %q", flows.forgotten, want)
	}
	flows.err = errors.New("no right")
	if err := b.clear(sentinel, &clearing{}); err == nil {
		t.Error("passed without having looked")
	}
	if err := (&barrier{}).clear(sentinel, &clearing{}); err == nil {
		t.Error("passed by an agent that reads no connection tracking")
	}
}
