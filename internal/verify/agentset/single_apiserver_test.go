//go:build apiserver && long

package agentset

import (
	"context"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestSingleRolls: another pod takes the place of the one server, which goes on answering; one roll
// at a time, and none that another process takes back.
func TestSingleRolls(t *testing.T) {
	f := setup(t)
	f.rolls(f.set, false) // there is none yet
	f.set.Pool = pool()
	f.migration("m", v1alpha1.PhaseApplying)
	_, err := f.install(f.set)
	f.Must(err)
	d := f.complete()
	before := f.servers()
	f.rolls(f.set, true)
	f.rolls(f.set, false)
	rolled := f.complete()
	if rolled.Generation != d.Generation+1 {
		t.Errorf("its generation is %d, was %d", rolled.Generation, d.Generation)
	}
	if after := f.servers(); len(after) != 1 || slices.Equal(after, before) {
		t.Errorf("the servers are %v, were %v", after, before)
	}
	pod := rolled.Spec.Template.Spec
	if stop := pod.Containers[0].Lifecycle.PreStop; stop.Sleep == nil || stop.Sleep.Seconds != rolledLameDuck ||
		*pod.TerminationGracePeriodSeconds < rolledLameDuck+echoDrain {
		t.Errorf("it ends by %+v, within %d s", stop, *pod.TerminationGracePeriodSeconds)
	}
	if done, err := f.install(f.newSet("m")); err != nil || !slices.Equal(done, []string{"agents/reporting"}) {
		t.Errorf("another process did %v, %v", done, err)
	}
	other := f.newSet("another")
	other.Now = func() time.Time { return time.Now().Add(time.Hour) }
	f.rolls(other, false)
	f.set.Now = other.Now
	f.rolls(f.set, true)
	if now := f.complete(); now.Generation != rolled.Generation+1 {
		t.Errorf("its generation is %d, was %d", now.Generation, rolled.Generation)
	}
}

func (f *fixture) rolls(s *Set, want bool) {
	f.Helper()
	if got, err := s.RollSingle(f.Context()); err != nil || got != want {
		f.Errorf("it rolls: %v, want %v (%v)", got, want, err)
	}
}

// complete waits until the one server is that of the template.
func (f *fixture) complete() *appsv1.Deployment {
	f.Helper()
	d := &appsv1.Deployment{ObjectMeta: inSystem()}
	f.Must(engine.Drive(f.Context(), &engine.Wait{Name: "single", For: func(context.Context) error {
		if !f.get(d, Single) || !whole(d) || len(f.servers()) != 1 {
			return engine.NotYet("the server is not complete")
		}
		return nil
	}}))
	return d
}

func (f *fixture) servers() (uids []types.UID) {
	f.Helper()
	pods := &corev1.PodList{}
	f.Must(server.List(f.Context(), pods, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSingle}))
	for i := range pods.Items {
		uids = append(uids, pods.Items[i].UID)
	}
	return uids
}
