//go:build apiserver

package podcidr

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// watchedFixture is one whose agents are played.
type watchedFixture struct {
	*fixture
	// losing is how many of ten requests of every agent fail, mute a node whose agents say nothing. Guarded by the fixture's lock.
	losing int
	mute   string
}

func setupWatched(t *testing.T, change ...func(*v1alpha1.Migration)) *watchedFixture {
	t.Helper()
	f := &watchedFixture{fixture: setup(t, append([]func(*v1alpha1.Migration){watched}, change...)...)}
	player := &fakekubelet.Agents{
		Client: server,
		Lose:   func(*corev1.Pod) int { f.Mu.Lock(); defer f.Mu.Unlock(); return f.losing },
		Mute:   func(p *corev1.Pod) bool { f.Mu.Lock(); defer f.Mu.Unlock(); return p.Spec.NodeName == f.mute },
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

// status is that of the Migration, while a run goes on.
func (f *watchedFixture) status() v1alpha1.MigrationStatus {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.Must(err)
	if m == nil {
		return v1alpha1.MigrationStatus{}
	}
	return m.Status
}

// gone fails unless nothing of the agents is left.
func (f *watchedFixture) gone() {
	f.Helper()
	for _, o := range []client.Object{
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: agentset.HostSet}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: agentset.PodSet}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: agentset.Service}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "replumb-agent"}},
		&v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
	} {
		if err := server.Get(f.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			f.Errorf("%T %s is left: %v", o, o.GetName(), err)
		}
	}
}

// TestLossEndsTheMove: more than the budget is lost while a workload restarts. What has begun is finished, nothing else is begun, and the
// same command goes on when all is answered again. A rollback reports losses, and is not stopped by them.
func TestLossEndsTheMove(t *testing.T) {
	f := setupWatched(t, func(m *v1alpha1.Migration) { m.Spec.Proof.Budget = 5; m.Spec.Batch.Size = 1 })
	f.populate()
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.lose(3)
	f.Until("the budget to be used up", func() bool {
		st := f.status()
		return st.Proof != nil && st.Proof.Failed > 5
	})
	f.set(&f.obstacle, "")
	var loss *lossguard.LossError
	if err := <-ended; !errors.As(err, &loss) || loss.Budget != 5 || !strings.Contains(loss.Error(), "/address on node") {
		t.Fatalf("ended with %v", err)
	}
	if moved := f.again().Counts.Moved; moved == 7 {
		t.Error("it went on to its end")
	}
	f.lose(0)
	f.Must(f.apply())
	f.allIn(newRange)
	back := make(chan error, 1)
	f.set(&f.obstacle, "slow again")
	go func() { back <- f.rollback() }()
	f.Waiting("ImagePullBackOff slow again")
	f.lose(3)
	f.Until("losses to be reported", func() bool {
		st := f.status()
		return st.Proof != nil && st.Proof.Failed > 5
	})
	f.lose(0)
	f.set(&f.obstacle, "")
	f.Must(<-back)
	f.allIn(oldRange)
	f.onlyPool(oldRange)
	f.gone()
}
