//go:build apiserver && long

package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestBarrierIsPassed(t *testing.T) {
	f := newFixture(t)
	h := f.kubeProxy()
	h.says("shop", "other", 1)
	f.start(v1alpha1.FromHost, "uid-1")
	st := f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return len(st.Agents) == 1 })
	if len(st.Barriers) > 0 || st.Agents[0].Instance != "uid-1" || st.Agents[0].Version != "v1" {
		t.Errorf("first report: %+v", st)
	}
	s := f.sentinel(h.port())
	f.until("kube-proxy is asked", func() bool { return h.asked.Load() > 2 })
	h.says(s.Namespace, s.Name, 0)
	asked := h.asked.Load()
	f.until("kube-proxy is asked again", func() bool { return h.asked.Load() > asked+1 })
	if st := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true }); len(st.Barriers) > 0 {
		t.Fatalf("passed without an endpoint: %+v", st.Barriers)
	}
	h.says(s.Namespace, s.Name, 1)
	f.report("the barrier is passed", passed(s.UID))
	f.must(f.Delete(f.Context(), s))
	h.answer.Store(nil)
	second := f.sentinel(h.port())
	h.says(second.Namespace, second.Name, 1)
	f.report("the next barrier is passed", passed(second.UID))
	f.report("the one before is known still", passed(s.UID))
}

func passed(sentinel types.UID) func(v1alpha1.NodeReportStatus) bool {
	return func(st v1alpha1.NodeReportStatus) bool {
		return slices.ContainsFunc(st.Barriers, func(b v1alpha1.BarrierReport) bool { return b.Sentinel == string(sentinel) })
	}
}

// TestOthersSentinelsAreNotAskedAbout has a Service in a tenant's namespace say that it is a
// sentinel.
func TestOthersSentinelsAreNotAskedAbout(t *testing.T) {
	f := newFixture(t)
	lure, h := f.kubeProxy(), f.kubeProxy()
	f.start(v1alpha1.FromHost, "uid-1")
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return len(st.Agents) == 1 })
	f.sentinelIn("shop", lure.port())
	s := f.sentinel(h.port())
	h.says(s.Namespace, s.Name, 1)
	f.report("the barrier is passed", passed(s.UID))
	if n := lure.asked.Load(); n > 0 {
		t.Errorf("a tenant's was asked about %d times", n)
	}
}

func TestLossIsReportedAtOnce(t *testing.T) {
	f := newFixture(t)
	stop := f.answers("127.64.7.1")
	f.target(v1alpha1.RequestHTTP, "http://127.64.7.1/")
	f.start(v1alpha1.FromPod, "uid-1") // the next report without news is an hour away
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return len(st.Agents) == 1 })
	stop()
	st := f.report("a loss", func(st v1alpha1.NodeReportStatus) bool { p := entry(st, "pod/shop"); return p != nil && p.Failed > 0 })
	p := entry(st, "pod/shop")
	if len(p.Losses) != 1 || p.Losses[0].Failed != int(p.Failed) || !strings.Contains(p.Losses[0].Error, "refused") ||
		p.Instance != "uid-1" || p.Kind != v1alpha1.RequestHTTP || p.Address != "http://127.64.7.1/" {
		t.Errorf("entry %+v", p)
	}
	f.answers("127.64.7.1")
}

// TestRestartedAgentGoesOn has an agent end and another one follow: it counts from zero, beside the
// other network's agent.
func TestRestartedAgentGoesOn(t *testing.T) {
	f := newFixture(t)
	f.answers("127.64.7.2")
	f.target(v1alpha1.RequestTCP, "127.64.7.2:80")
	end := f.start(v1alpha1.FromHost, "uid-1", often)
	f.start(v1alpha1.FromPod, "uid-2", often)
	f.report("both probe", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("host/shop", 15)(st) && sentTo("pod/shop", 15)(st) && len(st.Agents) == 2
	})
	end()
	st := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true })
	if p := entry(st, "host/shop"); p.Failed != 0 || p.Sent != sentIn(p.Recent) {
		t.Errorf("the last word is %+v", p)
	}
	f.start(v1alpha1.FromHost, "uid-3", often)
	st = f.report("the new one probes", func(st v1alpha1.NodeReportStatus) bool {
		p := entry(st, "host/shop")
		return p != nil && p.Instance == "uid-3" && p.Sent > 15
	})
	for _, p := range st.Probes {
		if p.Failed != 0 || len(p.Recent) == 0 || p.Recent[0].Latency == "" {
			t.Errorf("entry %+v", p)
		}
	}
	r := &v1alpha1.NodeReport{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "node-a"}, r))
	if r.Labels[v1alpha1.LabelMigration] != "m" || len(r.Status.Agents) != 2 {
		t.Errorf("report %+v", r)
	}
	var managers []string
	for _, m := range r.ManagedFields {
		managers = append(managers, m.Manager+m.Subresource)
	}
	for _, m := range []string{"replumb-agent-hoststatus", "replumb-agent-podstatus"} {
		if !slices.Contains(managers, m) {
			t.Errorf("managers are %v, without %s", managers, m)
		}
	}
}

func sentIn(recent []v1alpha1.ProbeWindow) (n int64) {
	for _, w := range recent {
		n += int64(w.Sent)
	}
	return n
}

// TestAgentOutlivesItsAPIServer goes on probing meanwhile, tells what happened after, and hears
// what is new.
func TestAgentOutlivesItsAPIServer(t *testing.T) {
	f := newFixture(t)
	stop := f.answers("127.64.7.3")
	f.target(v1alpha1.RequestHTTP, "http://127.64.7.3/")
	h := f.kubeProxy()
	f.start(v1alpha1.FromHost, "uid-1", often)
	f.report("it probes", sentTo("host/shop", 10))
	f.must(f.Restart(func() error { stop(); f.answers("127.64.7.3"); return nil }))
	f.until("the API server is ready", func() bool { return f.List(f.Context(), &v1alpha1.NodeReportList{}) == nil })
	before := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true })
	st := f.report("it reports again", func(st v1alpha1.NodeReportStatus) bool {
		return st.Agents[0].Sequence > before.Agents[0].Sequence+1 && len(entry(st, "host/shop").Recent) > 1
	})
	p := entry(st, "host/shop")
	for i := 1; i < len(p.Recent); i++ {
		if p.Recent[i].Start != p.Recent[i-1].End {
			t.Errorf("a hole in %+v", p.Recent)
		}
	}
	if p.Instance != "uid-1" {
		t.Errorf("instance %s", p.Instance)
	}
	s := f.sentinel(h.port())
	h.says(s.Namespace, s.Name, 1)
	f.report("a barrier made since is passed", passed(s.UID))
	f.report("nothing is wrong", func(st v1alpha1.NodeReportStatus) bool { return !strings.Contains(st.Agents[0].Problem, "watching") })
}

// theProbe makes the Service probe at an address.
func (f *fixture) theProbe(at string) *corev1.Service {
	f.Helper()
	svc := theProbe(at)
	svc.UID = ""
	svc.Labels[v1alpha1.LabelMigration] = "m"
	f.must(f.Create(f.Context(), svc))
	return svc
}

// TestServiceProbeMoves follows the agents' own probes from before the move to past the point of no
// return, where the old address ends without a loss.
func TestServiceProbeMoves(t *testing.T) {
	f := newFixture(t)
	stopOld := f.answers("127.64.8.1")
	f.answers("127.64.8.2")
	svc := f.theProbe("127.64.8.1")
	f.start(v1alpha1.FromPod, "uid-1", often)
	st := f.report("the old address is probed", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("pod/old-address", 10)(st) && sentTo("pod/udp", 10)(st) && sentTo("pod/stream", 10)(st)
	})
	if !strings.Contains(st.Agents[0].Problem, "the name of service replumb-system/probe was not found yet") ||
		entry(st, "pod/name") != nil {
		t.Errorf("no cluster DNS here, and the problem is %q", st.Agents[0].Problem)
	}
	f.must(f.Delete(f.Context(), svc))
	moved := theProbe("127.64.8.2", movedAt(time.Now().UTC().Format(time.RFC3339Nano)))
	moved.UID = ""
	moved.Annotations[v1alpha1.AnnotationOldIP], moved.Annotations[v1alpha1.AnnotationTargetIP] = "127.64.8.1", "127.64.8.2"
	f.must(f.Create(f.Context(), moved))
	st = f.report("both are probed", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("pod/old-address", 40)(st) && sentTo("pod/new-address", 20)(st)
	})
	if p := entry(st, "pod/stream"); p.Address != "127.64.8.1:7" {
		t.Errorf("stream goes to %s", p.Address)
	}
	m := &v1alpha1.Migration{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "m"}, m))
	m.Status.PointOfNoReturnPassed = true
	f.must(f.Status().Update(f.Context(), m))
	f.report("stream and datagrams go to the new address", func(st v1alpha1.NodeReportStatus) bool {
		return entry(st, "pod/stream").Address == "127.64.8.2:7" && entry(st, "pod/udp").Address == "127.64.8.2:7"
	})
	stopOld()
	st = f.report(
		"the old address is no longer reported",
		func(st v1alpha1.NodeReportStatus) bool { return entry(st, "pod/old-address") == nil },
	)
	sent := entry(st, "pod/new-address").Sent
	st = f.report("the new one goes on", sentTo("pod/new-address", sent+10))
	for _, p := range st.Probes {
		if p.Failed > 0 {
			t.Errorf("lost %+v", p)
		}
	}
}

// TestProblemsAreTold has an agent without a right, and with one that came late.
func TestProblemsAreTold(t *testing.T) {
	f := newFixture(t)
	rights := &rbacv1.ClusterRole{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "agent"}, rights))
	whole := rights.DeepCopy()
	rights.Rules = rights.Rules[1:]
	f.must(f.Update(f.Context(), rights))
	f.Cleanup(func() {
		rights.Rules = whole.Rules
		if err := f.Update(context.Background(), rights); err != nil && !apierrors.IsConflict(err) {
			f.Error(err)
		}
	})
	flows := &fakeFlows{err: errors.New("not permitted")}
	f.start(v1alpha1.FromHost, "uid-1", often, func(a *Agent) { a.Flows = flows })
	f.report("what it may not is reported", func(st v1alpha1.NodeReportStatus) bool {
		return len(st.Agents) == 1 && strings.Contains(st.Agents[0].Problem, "watching services: services is forbidden")
	})
	rights.Rules = whole.Rules
	f.must(f.Update(f.Context(), rights))
	f.report("it goes on", func(st v1alpha1.NodeReportStatus) bool {
		return st.Agents[0].Problem == "there is no Service that leads to the agents' own servers"
	})
}
