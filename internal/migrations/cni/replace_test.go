//go:build apiserver && long

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// replacing is a Migration whose nodes are replaced by a person or, with an action, by what that
// does.
func replacing(wait time.Duration, action *v1alpha1.Action) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) {
		m.Spec.CNI.Nodes = v1alpha1.CNINodesSpec{Mode: v1alpha1.CNINodesReplace, Replace: action}
		m.Spec.CNI.GateWait = &metav1.Duration{Duration: wait}
	}
}

// cloud is an action over HTTP. It keeps what it was asked for, and does what do says.
type cloud struct {
	asked []switchover.Request
	do    func(context.Context) error
}

func (c *cloud) action(t *testing.T, timeout time.Duration) *v1alpha1.Action {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := switchover.Request{}
		err := json.NewDecoder(r.Body).Decode(&asked)
		if c.asked = append(c.asked, asked); err == nil {
			err = c.do(r.Context())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return &v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: s.URL}, Timeout: &metav1.Duration{Duration: timeout}}
}

// join brings nodes.
func (f *fixture) join(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := f.fleet.Node(ctx, name, netip.MustParseAddr("192.0.2."+fmt.Sprint(name[0]))); err != nil {
			return err
		}
	}
	return nil
}

// leave ends nodes and all that ran there.
func (f *fixture) leave(ctx context.Context, names ...string) error {
	for _, name := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := client.IgnoreNotFound(server.Delete(ctx, node)); err != nil {
			return err
		}
	}
	for { // a scheduler that has not heard of it yet may put some more there
		pods := &corev1.PodList{}
		if err := server.List(ctx, pods); err != nil {
			return err
		}
		there := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !slices.Contains(names, p.Spec.NodeName) })
		if len(there) == 0 {
			return nil
		}
		for i := range there {
			if err := client.IgnoreNotFound(server.Delete(ctx, &there[i], client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
	}
}

// moved fails the test unless every pod of the shop is ready on one of the nodes, with an address
// of the range.
func (f *fixture) moved(within string, nodes ...string) {
	f.Helper()
	all := append(f.pods("shop", "web"), f.pods("shop", "tool")...)
	if len(all) != 4 {
		f.Errorf("%d pods are ready, want 4", len(all))
	}
	for _, p := range all {
		if a := netip.MustParseAddr(
			p.Status.PodIP,
		); !netip.MustParsePrefix(within).Contains(a) ||
			!slices.Contains(nodes, p.Spec.NodeName) {
			f.Errorf("pod %s has the address %s on node %s", p.Name, a, p.Spec.NodeName)
		}
	}
}

// TestNodesAreReplaced by an action: pods come up on the new nodes with the new network, those
// without an owner too, no node is cleaned, and the rest is as ever.
func TestNodesAreReplaced(t *testing.T) {
	c := &cloud{}
	f := setup(t, replacing(patience, c.action(t, patience)))
	c.do = func(ctx context.Context) error {
		if err := f.join(ctx, "c", "d"); err != nil {
			return err
		}
		return f.leave(ctx, "a", "b")
	}
	f.deployment("web", 3)
	f.bare("tool") // on node a
	f.Must(f.forward())
	f.moved("10.245.0.0/16", "c", "d")
	if len(c.asked) != 1 || c.asked[0].Action != "replace" || c.asked[0].Migration != "m" ||
		!slices.Equal(c.asked[0].Nodes, []string{"a", "b"}) {
		t.Errorf("the action was asked for %+v", c.asked)
	}
	for _, e := range f.Events {
		if strings.HasPrefix(e.Step, "clean/") {
			t.Errorf("step %s", e.Step)
		}
	}
	if st := f.status(); st.Phase != v1alpha1.PhaseMoved || st.CNI.Network != v1alpha1.Calico || st.LastError != "" {
		t.Errorf("status after apply: %+v %+v", st, st.CNI)
	}
	f.Events = nil
	f.Must(f.forward())
	for _, e := range f.Events {
		if e.Kind == engine.StepDone {
			t.Errorf("a second apply did %s", e.Step)
		}
	}
	if len(c.asked) != 1 {
		t.Error("the action was called again")
	}
	f.Must(f.job.Finish(t.Context(), f.runner))
	if st := f.status(); st.Phase != v1alpha1.PhaseFinished || !st.PointOfNoReturnPassed {
		t.Errorf("status after finish: %+v", st)
	}
	f.moved("10.245.0.0/16", "c", "d")
}

// TestReplacedByHandAndBack: the gate says what it waits for, one node after the other; the way
// back takes place on the nodes that are there.
func TestReplacedByHandAndBack(t *testing.T) {
	f := setup(t, replacing(3*patience, nil))
	f.deployment("web", 3)
	f.bare("tool")
	ended := make(chan error, 1)
	go func() { ended <- f.forward() }()
	f.Waiting("node a is still there")
	f.Must(f.join(t.Context(), "c"))
	f.Must(f.leave(t.Context(), "a"))
	f.Waiting("node b is still there")
	f.Must(f.leave(t.Context(), "b"))
	f.Waiting("1 of 2 new nodes are ready")
	f.Must(f.join(t.Context(), "d"))
	f.Must(<-ended)
	f.moved("10.245.0.0/16", "c", "d")

	f.Must(f.job.Rollback(t.Context(), f.runner))
	f.moved("10.244.0.0/16", "c", "d")
	if f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps) == nil ||
		f.have("DaemonSet", "kube-system", "calico-node", apps) != nil {
		t.Error("the old network is not back, or the new one is not gone")
	}
	if st := f.status(); st.Phase != v1alpha1.PhaseRolledBack || st.CNI != nil {
		t.Errorf("status after rollback: %+v, %+v", st, st.CNI)
	}
}

// TestReplacementThatNeverComes ends the run with what is missing, whether the action fails, does
// nothing or does half of it. The same command carries on from there, once it does the rest.
func TestReplacementThatNeverComes(t *testing.T) {
	c := &cloud{}
	f := setup(t, replacing(2*time.Second, c.action(t, 4*time.Second)))
	f.deployment("web", 3)
	f.bare("tool")
	for _, tt := range []struct {
		name string
		do   func(context.Context) error
		says []string
	}{
		{"fails", func(context.Context) error { return fmt.Errorf("no quota") }, []string{"step replace: ", "hook replace: ", "500"}},
		{"does nothing", func(context.Context) error { return nil }, []string{"step replace: ", "node a is still there (gave up after 6s)"}},
		{
			"brings one, and ends both", func(ctx context.Context) error {
				if err := f.join(ctx, "c"); err != nil {
					return err
				}
				return f.leave(ctx, "a", "b")
			}, []string{"step replace: ", "1 of 2 new nodes are ready (gave up after 6s)"},
		},
	} {
		c.do = tt.do
		err := f.forward()
		f.Fails(err, tt.says...)
		if fault.Advice(err) == "" && tt.name != "fails" {
			t.Errorf("%s: no hint", tt.name)
		}
		if st := f.status(); st.LastError == "" || st.CNI.Network == v1alpha1.Calico {
			t.Errorf("%s: status %+v %+v", tt.name, st, st.CNI)
		}
	}
	c.do = func(ctx context.Context) error { return f.join(ctx, "d") }
	f.Must(f.forward())
	f.moved("10.245.0.0/16", "c", "d")
	for _, asked := range c.asked {
		if !slices.Equal(asked.Nodes, []string{"a", "b"}) {
			t.Errorf("the action was asked for nodes %v", asked.Nodes)
		}
	}
}
