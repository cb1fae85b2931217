//go:build apiserver && long

package lossguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// player reports for both agents of node a, over and over, until the test ends.
type player struct {
	*testing.T
	server *apitest.Server
	watch  *lossguard.Watch
	report *v1alpha1.NodeReport
	window int64
	// late is how many answers of the next report are late.
	late int
}

func newPlayer(t *testing.T) *player {
	t.Helper()
	server := apitest.Start(t, "10.96.0.0/16")
	p := &player{T: t, server: server, window: 1_700_000_000}
	p.watch = &lossguard.Watch{Client: server.Cluster, Migration: "move", Patience: 20 * time.Second}
	return p
}

// define makes the cluster know NodeReports, and gives it a node with a report.
func (p *player) define() {
	p.Helper()
	must(p.T, p.server.Define(p.Context(), cluster.NodeReport))
	must(p.T, engine.Drive(p.Context(), &defined{p.server.Cluster}))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	must(p.T, p.server.Create(p.Context(), n))
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(p.T, p.server.Status().Update(p.Context(), n))
	p.report = &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1alpha1.LabelMigration: "move"}}}
	must(p.T, p.server.Create(p.Context(), p.report))
	p.server.Namespace(p.T, v1alpha1.SystemNamespace)
	for origin, role := range map[v1alpha1.ProbeOrigin]string{v1alpha1.FromHost: v1alpha1.RoleAgent, v1alpha1.FromPod: v1alpha1.RoleProbe} {
		instance := string(p.pod(role).UID)
		p.report.Status.Agents = append(p.report.Status.Agents, v1alpha1.AgentReport{Origin: origin, Instance: instance})
		p.report.Status.Probes = append(p.report.Status.Probes, v1alpha1.ProbeReport{
			Name: strings.ToLower(
				string(origin),
			) + "/name",
			Origin:   origin,
			Kind:     v1alpha1.RequestHTTP,
			Instance: instance,
			Address:  "10.96.0.9:80",
			Since:    metav1.NowMicro(),
		})
	}
}

// pod makes the pod of an agent on node a.
func (p *player) pod(role string) *corev1.Pod {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: role + "-",
			Labels: map[string]string{v1alpha1.LabelMigration: "move", v1alpha1.LabelRole: role},
		},
		Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "example.com/c:v1"}}},
	}
	must(p.T, p.server.Create(p.Context(), pod))
	return pod
}

// defined waits until NodeReports are served.
type defined struct{ cluster *cluster.Cluster }

func (*defined) ID() string                                  { return "defined" }
func (*defined) Title() string                               { return "defined" }
func (*defined) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*defined) Do(context.Context) error                    { return nil }
func (d *defined) Verify(ctx context.Context) error {
	ok, err := d.cluster.Current(ctx, cluster.NodeReport)
	if err == nil && !ok {
		return engine.NotYet("not yet")
	}
	return err
}

// tick reports once more: ten requests each, of which some failed.
func (p *player) tick(failed int) {
	p.Helper()
	st := &p.report.Status
	for i := range st.Agents {
		st.Agents[i].Sequence++
		st.Agents[i].ReportedAt = metav1.NowMicro()
		probe := &st.Probes[i]
		probe.Sent += 10
		probe.Failed += int64(failed)
		probe.Late += int64(p.late)
		probe.Recent = append(probe.Recent, v1alpha1.ProbeWindow{
			Start: p.window, End: p.window + 2, Sent: 10, Failed: failed, Late: p.late,
		})
		probe.Recent = probe.Recent[max(0, len(probe.Recent)-16):]
		if failed > 0 {
			probe.Losses = []v1alpha1.LossWindow{{Start: metav1.NowMicro(), End: metav1.NowMicro(), Failed: failed, Error: "refused"}}
		}
	}
	p.window += 2
	must(p.T, p.server.Status().Update(p.Context(), p.report))
}

// steady reports until losses count.
func (p *player) steady(ctx context.Context) {
	p.Helper()
	done := make(chan error, 1)
	go func() { done <- engine.Drive(ctx, &lossguard.Steady{Watch: p.watch, Limit: 30 * time.Second}) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 8 { // windows of two seconds each
		p.tick(0)
		<-tick.C
	}
	must(p.T, <-done)
}

// ended waits for the end of a run and returns its cause.
func (p *player) ended(ctx context.Context, within time.Duration) error {
	p.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(within):
		p.Fatal("the run goes on")
		return nil
	}
}

func TestWatch(t *testing.T) {
	p := newPlayer(t)
	ctx, stop := p.watch.Start(t.Context()) // before there are NodeReports at all
	p.define()
	p.steady(ctx)
	lost := time.Now()
	p.tick(2)
	var loss *lossguard.LossError
	if err := p.ended(ctx, time.Minute); !errors.As(err, &loss) {
		t.Fatalf("ended with %v", err)
	}
	t.Logf("ended %s after the report: %v", time.Since(lost), loss)
	if loss.Failed < 2 || !strings.Contains(loss.Error(), "on node a") || !strings.Contains(loss.Error(), "refused") ||
		loss.Advice() == "" {
		t.Errorf("says %v", loss)
	}
	stop()

	t.Run("what was lost before does not count", func(t *testing.T) {
		p := p.in(t)
		ctx, stop := p.watch.Start(t.Context())
		defer stop()
		p.steady(ctx)
		p.tick(0)
		if ctx.Err() != nil {
			t.Errorf("ended with %v", context.Cause(ctx))
		}
	})
	t.Run("a run that must not be stopped", func(t *testing.T) {
		p := p.in(t)
		p.watch = &lossguard.Watch{Client: p.server.Cluster, Migration: "move", Patience: 20 * time.Second, Lenient: true}
		ctx, stop := p.watch.Start(t.Context())
		p.steady(ctx)
		p.tick(1)
		stop()
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			t.Errorf("ended with %v", cause)
		}
	})
	t.Run("late answers beyond their budget", func(t *testing.T) {
		p := p.in(t)
		budget := 3
		p.watch = &lossguard.Watch{Client: p.server.Cluster, Migration: "move", Patience: 20 * time.Second, LateBudget: &budget}
		ctx, stop := p.watch.Start(t.Context())
		defer stop()
		p.steady(ctx)
		p.window = time.Now().Unix() + 60 // what was due before the run's losses count does not
		p.late = 2
		p.tick(0)
		var loss *lossguard.LossError
		if err := p.ended(ctx, time.Minute); !errors.As(err, &loss) || loss.Late != 4 || loss.Failed != 0 ||
			!strings.Contains(err.Error(), "4 answers were late, and spec.proof.lateBudget is 3; they are no losses") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		p := p.in(t)
		p.watch = &lossguard.Watch{
			Client: p.server.Cluster, Migration: "move", Patience: 5 * time.Second,
		}
		p.watch.Diagnose(diagnosis{why: func(node string, origin v1alpha1.ProbeOrigin) agentset.Silent {
			return agentset.Silent{Node: node, Origin: origin, Reason: "it sleeps"}
		}})
		ctx, stop := p.watch.Start(t.Context())
		defer stop()
		p.steady(ctx)
		var silent *agentset.SilentError
		if err := p.ended(ctx, time.Minute); !errors.As(err, &silent) || !strings.Contains(err.Error(), "node a: it sleeps") {
			t.Errorf("ended with %v", err)
		}
	})
}

// in is the same player in a subtest. Time goes on.
func (p *player) in(t *testing.T) *player {
	t.Helper()
	q := *p
	q.T = t
	q.window = p.report.Status.Probes[0].Recent[len(p.report.Status.Probes[0].Recent)-1].End
	return &q
}
