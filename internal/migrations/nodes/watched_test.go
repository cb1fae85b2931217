//go:build apiserver

package nodes

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// watchedFixture is one whose agents are played.
type watchedFixture struct {
	*fixture
	// losing is how many of ten requests of every agent fail. Guarded by the fixture's lock.
	losing int
}

func setupWatched(t *testing.T, budget int) *watchedFixture {
	t.Helper()
	f := &watchedFixture{fixture: setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Image, m.Spec.Proof = "replumb", v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled, Budget: budget}
	})}
	player := &fakekubelet.Agents{
		Client: server, Lose: func(*corev1.Pod) int { f.Mu.Lock(); defer f.Mu.Unlock(); return f.losing },
	}
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() { player.Run(ctx) })
	t.Cleanup(func() {
		stop()
		playing.Wait()
		for _, o := range []client.Object{
			&v1alpha1.NodeReport{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &corev1.ServiceAccount{}, &corev1.Service{},
		} {
			opts := []client.DeleteAllOfOption{client.HasLabels{v1alpha1.LabelMigration}}
			switch o.(type) {
			case *corev1.ServiceAccount, *corev1.Service:
				opts = append(opts, client.InNamespace(v1alpha1.SystemNamespace))
			}
			if err := server.DeleteAllOf(context.Background(), o, opts...); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
	return f
}

func (f *watchedFixture) lose(n int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.losing = n
}

// TestLossEndsTheMove: what is lost while the first node ends keeps the next one. The same command
// goes on when all is answered again.
func TestLossEndsTheMove(t *testing.T) {
	f := setupWatched(t, 5)
	f.Deployment("web", 2)
	f.ending = func(node string) {
		if node == "a" {
			f.lose(3)
		}
	}
	var loss *lossguard.LossError
	if err := f.apply(); !errors.As(err, &loss) || loss.Budget != 5 {
		t.Fatalf("ended with %v", err)
	}
	if left := f.nodes(); !strings.Contains(left, "b") {
		t.Errorf("it went on: %s", left)
	}
	f.lose(0)
	f.ending = nil
	f.again()
	f.Must(f.apply())
	f.on("c d", "web", 2)
}
