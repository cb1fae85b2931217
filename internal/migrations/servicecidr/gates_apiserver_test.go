//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/verify/agent"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// unreachable is where the operator's machine does not reach the API servers' own addresses.
type unreachable struct{}

func (unreachable) InspectAll(_ context.Context, addresses []string) []apiserver.APIServer {
	var all []apiserver.APIServer
	for _, a := range addresses {
		err := fmt.Errorf("certificate of API server %s: no route to host", a)
		all = append(all, apiserver.APIServer{Address: a, CertErr: err, FlagsErr: err})
	}
	return all
}

// observed is a cluster whose API server only its nodes reach, and a run that follows what their
// agents report.
type observed struct {
	*fixture
	ranges  *ranges.RangePlan
	address string
	// late is by how much the clock of the run is ahead, in nanoseconds.
	late atomic.Int64
}

func observe(t *testing.T) *observed {
	f := &observed{fixture: setup(t)}
	f.must(server.Define(t.Context(), cluster.NodeReport))
	server.Namespace(t, v1alpha1.SystemNamespace)
	f.node("cp", "192.0.2.1")
	f.node("worker", "192.0.2.2")
	node := &corev1.Node{}
	f.must(server.Get(t.Context(), client.ObjectKey{Name: "cp"}, node))
	node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	f.must(server.Update(t.Context(), node))
	watch := &lossguard.Watch{
		Client: server, Migration: "m", Patience: time.Hour, Lenient: true,
		Now: func() time.Time { return time.Now().Add(time.Duration(f.late.Load())) },
	}
	_, stop := watch.Start(t.Context())
	f.Cleanup(func() {
		stop()
		err := server.DeleteAllOf(context.Background(), &v1alpha1.NodeReport{}, client.HasLabels{v1alpha1.LabelMigration})
		if client.IgnoreNotFound(err) != nil {
			f.Error(err)
		}
	})
	p := f.gone(unreachable{})
	p.Agents = &lossguard.Agents{Watch: watch, Set: &agentset.Set{Interval: 100 * time.Millisecond}}
	f.address = strings.TrimPrefix(server.Host(), "https://")
	f.ranges = p.ranges()
	f.ranges.Servers.Addresses = []string{f.address}
	return f
}

// agentPod is that of an agent in the network of its node; it returns its UID.
func (f *observed) agentPod(node string) string {
	f.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: "agent-" + node,
			Labels: map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleAgent},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	f.must(server.Create(f.Context(), p))
	return string(p.UID)
}

// agent runs the agent of a node, in the name of a pod, until end is called. It looks at the API
// server as the real one does, unless it lies.
func (f *observed) agent(node, uid string, lies ...v1alpha1.APIServerReport) (end func()) {
	f.Helper()
	inspector := apiserver.New(server.Config)
	a := &agent.Agent{
		Client:    server,
		Origin:    v1alpha1.FromHost,
		Migration: "m",
		Node:      node,
		NodeIPs:   []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Instance:  uid,
		Interval:  100 * time.Millisecond,
		Ranges:    []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Servers: func(ctx context.Context) []v1alpha1.APIServerReport {
			if len(lies) > 0 {
				return lies
			}
			return apiserver.Report(inspector.InspectAll(ctx, []string{f.address}), time.Now())
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return func() {
		stop()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	}
}

// says waits until a look does not succeed and says all of some texts.
func (f *observed) says(what string, look func(context.Context) error, texts ...string) {
	f.Helper()
	f.eventually(what, func() error {
		err := look(f.Context())
		if err == nil {
			return errors.New("it passes")
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("%q is not in: %w", text, err)
			}
		}
		return nil
	})
}

// TestGatesLookFromNodes: a real API server that only nodes reach is seen through the real agent of
// its control-plane node. As controls, the gates do not pass, and name what is not seen, without a
// report; by the report of another node; by one in the name of a pod that is not on the node; and
// by one that is old. Nor do they pass on what the API server does not have.
func TestGatesLookFromNodes(t *testing.T) {
	f := observe(t)
	has, lacks := f.ranges.Look(), f.ranges.Look()
	named, unnamed := has.Certified(netip.MustParseAddr("127.0.0.1")), lacks.Certified(netip.MustParseAddr("172.24.0.1"))
	onOld := f.ranges.OnRange(f.ranges.Look(), parseRanges("10.96.0.0/16"), ranges.Repointed, false)
	onNew := f.ranges.OnRange(f.ranges.Look(), parseRanges("172.24.0.0/16"), ranges.Repointed, false)

	f.says("no agent", named, "not known", f.address, "no route to host", "node cp: its agent has not reported")
	f.says("no agent", onOld, "cannot be seen from here", f.address, "node cp: its agent has not reported")
	worker := f.agentPod("worker")
	defer f.agent("worker", worker)()
	f.eventually("the worker has seen it", func() error {
		r := &v1alpha1.NodeReport{}
		if err := server.Get(t.Context(), client.ObjectKey{Name: "worker"}, r); err != nil {
			return err
		}
		if len(r.Status.APIServers) != 1 || r.Status.Agents[0].Sequence < 5 || r.Status.APIServers[0].Problem != "" {
			return fmt.Errorf("it reports %+v", r.Status.APIServers)
		}
		return nil
	})
	f.says("a worker alone", named, "node cp: its agent has not reported")

	end := f.agent("cp", worker, v1alpha1.APIServerReport{
		Address: f.address, SeenAt: metav1.NowMicro(), SANs: []string{"127.0.0.1", "172.24.0.1"}, Ranges: []string{"172.24.0.0/16"},
	})
	f.says("the pod of another node", unnamed, "node cp: ", "which is no pod of replumb there, and does not count")
	end()

	end = f.agent("cp", f.agentPod("cp"))
	f.eventually("the control plane has seen it", func() error { return errors.Join(named(t.Context()), onOld(t.Context())) })
	if got, want := has.Remark(), "API server "+f.address+" was seen from node cp"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	f.says("what the certificate lacks", unnamed, "172.24.0.1 is not in the certificate of "+f.address)
	f.says("what the flag is not", onNew, "--service-cluster-ip-range is not 172.24.0.0/16 on "+f.address+" (10.96.0.0/16)")
	end()
	f.late.Store(int64(time.Hour))
	f.says("long ago", named, "node cp: its agent has not reported for 1h0m")
	if got := has.Remark(); got != "" {
		t.Errorf("says %q of what is not seen", got)
	}
}
