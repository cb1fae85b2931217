//go:build apiserver && long

package podcidr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// watchedFixture is one whose agents are played.
type watchedFixture struct {
	*fixture
	// losing is how many of ten requests of every agent fail, mute a node whose agents say nothing.
	// Guarded by the fixture's lock.
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

// order is where steps stand among those that began.
func (f *watchedFixture) order(steps ...string) []int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	var all []int
	for _, s := range steps {
		all = append(all, slices.IndexFunc(f.Events, func(e engine.Event) bool { return e.Kind == engine.StepStarted && e.Step == s }))
	}
	return all
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

// TestWatched: agents come before anything is changed, their own pods move before all others, and
// they leave at the end.
func TestWatched(t *testing.T) {
	f := setupWatched(t)
	f.populate()
	f.Must(f.apply())
	f.allIn(newRange)
	order := f.order("agents/service", "agents/steady", "add/"+newPool, "own/agents", "agents/steady/the pods that agents call",
		"restart/Deployment/shop/web")
	if !slices.IsSorted(order) || slices.Contains(order, -1) {
		t.Errorf("steps began in the order %v of: %v", order, f.Events)
	}
	st := f.again()
	if p := st.Proof; p == nil || p.Nodes != 2 || p.Sent == 0 || p.Failed != 0 || len(p.Silent) > 0 {
		t.Errorf("proof: %+v", p)
	}
	if st.Counts.Total != 7 {
		t.Errorf("replumb's own pods are counted: %+v", st.Counts)
	}
	ds := &appsv1.DaemonSet{}
	f.Must(server.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: agentset.PodSet}, ds))
	if u := ds.Spec.UpdateStrategy.RollingUpdate; u.MaxSurge == nil || u.MaxSurge.String() == "0" {
		t.Errorf("pods that agents call end before others begin: %+v", u)
	}
	f.Mu.Lock()
	f.Events = nil
	f.Mu.Unlock()
	f.Must(f.apply())
	if began := f.order("agents/reporting"); began[0] >= 0 {
		t.Error("agents are waited for, and there is nothing to do")
	}
	f.Must(f.finish())
	f.onlyPool(newRange)
	f.gone()
}

// TestLossEndsTheMove: more than the budget is lost while a workload restarts. What has begun is
// finished, nothing else is begun, and the same command goes on when all is answered again. A
// rollback reports losses, and is not stopped by them.
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

// TestSilenceEndsTheMove: the node is named.
func TestSilenceEndsTheMove(t *testing.T) {
	f := setupWatched(t, func(m *v1alpha1.Migration) { m.Spec.Proof.Wait = &metav1.Duration{Duration: 15 * time.Second} })
	f.Deployment("web", 2)
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.set(&f.mute, "b")
	var silent *agentset.SilentError
	if err := <-ended; !errors.As(err, &silent) || silent.For == 0 || !strings.Contains(silent.Error(), "node b: pod ") {
		t.Fatalf("ended with %v", err)
	}
	f.set(&f.mute, "")
	f.set(&f.obstacle, "")
	f.Must(f.apply())
	f.in(newRange, "web", 2)
}

// TestBackWithoutAgents: the way back goes on when agents do not report.
func TestBackWithoutAgents(t *testing.T) {
	f := setupWatched(t, func(m *v1alpha1.Migration) { m.Spec.Proof.Wait = &metav1.Duration{Duration: 15 * time.Second} })
	f.Deployment("web", 2)
	f.Must(f.apply())
	f.set(&f.mute, "b")
	f.Must(f.rollback())
	f.in(oldRange, "web", 2)
	f.gone()
}

// TestGoneOnWithout: what an earlier run has left of agents goes with the migration, though it has
// gone on without them.
func TestGoneOnWithout(t *testing.T) {
	f := setupWatched(t)
	f.Deployment("web", 2)
	f.job.Until = "agents"
	f.Must(f.apply())
	f.job.Until = ""
	f.job.Migration.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	f.Must(f.apply())
	f.in(newRange, "web", 2)
	f.Must(f.finish())
	f.onlyPool(newRange)
	f.gone()
}
