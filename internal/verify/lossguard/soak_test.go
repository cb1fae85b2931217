//go:build apiserver && long

package lossguard_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func TestSoak(t *testing.T) {
	server := apitest.Start(t, "10.96.0.0/16")
	if all, more, err := lossguard.ListClients(t.Context(), server, "move"); err != nil || len(all)+more > 0 {
		t.Errorf("a cluster without NodeReports has clients %v, %d, %v", all, more, err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	must(t, yaml.UnmarshalStrict(crds.NodeReports, crd))
	_, err := envtest.InstallCRDs(server.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}})
	must(t, err)
	for name, test := range map[string]func(*soaking){
		"no clients": soakNoClients, "clients": soakClients, "a node's clock": soakClock, "silent": soakSilent, "dead from the start": soakDead,
		"cannot see": soakProblem, "not ready": soakUnready, "left behind": soakLeftBehind, "too many": soakMany, "outage": soakOutage,
		"joins late": soakLate, "agent restarted": soakRestarted, "not at all": soakZero, "by the engine": soakRun,
		"comes back": soakVisits, "only remembered": soakRemembered, "from node to node": soakWanders,
	} {
		t.Run(name, func(t *testing.T) {
			server.Clean(t)
			server.Namespace(t, "shop")
			must(t, server.DeleteAllOf(t.Context(), &v1alpha1.NodeReport{}))
			s := &soaking{T: t, server: server, clock: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
			s.Soak = &lossguard.Soak{
				Client: server, Migration: "move", Length: time.Minute, Limit: 2 * time.Minute, Now: func() time.Time { return s.clock },
			}
			test(s)
		})
	}
}

func soakNoClients(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.node("b", corev1.ConditionTrue)
	s.report("a")
	s.report("b")
	s.waits(still)
	s.quiet(50*time.Second, "a", "b")
	if s.Guide() != "" {
		s.Errorf("guides although there is no client: %s", s.Guide())
	}
	s.pass(10 * time.Second)
	s.report("a")
	s.report("b")
	s.waits("no client is seen to use an old address: waiting for the next report of nodes a, b")
	s.pass(5 * time.Second)
	s.report("b")
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(5 * time.Second)
	s.report("a")
	s.over()
	if s.Note() != "" {
		s.Errorf("notes %s", s.Note())
	}
}

func soakClients(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a", web(1, 3, s.clock), web(2, 0, s.clock.Add(-time.Minute)))
	const (
		first  = "pod shop/web-1 on node a at 10.96.0.5:80 (service shop/cart), 3 connections open"
		second = "pod shop/web-2 on node a at 10.96.0.5:80 (service shop/cart), no connection open"
	)
	s.waits("2 clients still use old addresses: " + first + "; " + second)
	if g := s.Guide(); !strings.Contains(g, "replumb finish move --leave-clients") {
		s.Errorf("guide: %s", g)
	}
	for range 7 { // one that stays open is used, however long nothing is sent; the other one is only a memory
		s.pass(10 * time.Second)
		s.report("a")
		if s.clock.Minute() == 0 {
			s.waits("2 clients still use old addresses: " + first + "; " + second)
		} else {
			s.waits("1 client still uses old addresses: " + first)
		}
	}
	seen := s.clock
	s.report("a", noClients, web(1, 0, seen))
	s.pass(time.Second)
	s.waits("1 client still uses old addresses: " + strings.Replace(first, "3 connections open", "no connection open", 1))
	for range 6 {
		s.pass(10 * time.Second)
		s.report("a")
		if err := s.Verify(s.Context()); err == nil {
			s.Fatal("over too early")
		}
	}
	s.pass(10 * time.Second)
	s.report("a")
	s.over()

	all, more, err := lossguard.ListClients(s.Context(), s.server, "move")
	if err != nil || more != 0 || len(all) != 1 || all[0].Node != "a" || all[0].PodOrSource() != "pod shop/web-1" {
		s.Errorf("clients %v, %d, %v", all, more, err)
	}
	if all, _, err := lossguard.ListClients(s.Context(), s.server, "another"); err != nil || len(all) > 0 {
		s.Errorf("another migration has clients %v, %v", all, err)
	}
}

// soakClock has a node whose clock is hours off, and is set back: the change says that an address
// was used.
func soakClock(s *soaking) {
	off := s.clock.Add(9 * time.Hour)
	s.node("a", corev1.ConditionTrue)
	s.report("a", web(1, 0, off))
	const text = "1 client still uses old addresses: pod shop/web-1 on node a at 10.96.0.5:80 (service shop/cart), no connection open"
	s.waits(text)
	if s.Guide() != "" {
		s.Error("a memory of the node is no reason to call people")
	}
	s.pass(50 * time.Second)
	s.report("a", noClients, web(1, 0, off.Add(-18*time.Hour)))
	s.waits(text)
	if s.Guide() == "" {
		s.Error("a client that comes back is a reason to call people")
	}
	s.pass(50 * time.Second)
	s.report("a")
	s.waits(text)
	s.pass(10 * time.Second)
	s.report("a")
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
}

func soakSilent(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.node("b", corev1.ConditionTrue)
	s.report("a")
	s.report("b")
	s.waits(still)
	s.pass(10 * time.Second)
	s.report("b")
	s.waits(still)
	for range 11 {
		s.pass(10 * time.Second)
		s.report("a")
		if err := s.Verify(s.Context()); !engine.Retryable(err) {
			s.Fatalf("%s: %v", s.clock.Format("04:05"), err)
		}
	}
	s.waits("no client is seen to use an old address: waiting for the next report of node b")
	s.pass(10 * time.Second)
	s.fails("node b: its agent has not reported for 2m0s")
}

// soakDead has a report that an agent left which has gone before, and a node that has none at all.
func soakDead(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a")
	s.waits(still)
	s.pass(time.Minute)
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(59 * time.Second)
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(time.Second / 2)
	s.node("b", corev1.ConditionTrue)
	s.report("a")
	s.waits("no client is seen to use an old address: waiting for the next report of node b")
	for range 2 {
		s.pass(59 * time.Second)
		s.report("a")
		s.waits("no client is seen to use an old address: waiting for the next report of node b")
	}
	s.pass(2 * time.Second)
	s.report("a")
	s.fails("node b: its agent has not reported for 2m0s")
}

func soakProblem(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a")
	s.waits(still)
	for range 11 {
		s.pass(10 * time.Second)
		s.report("a", func(st *v1alpha1.NodeReportStatus) { st.Agents[1].Problem = "operation not permitted" })
		if err := s.Verify(s.Context()); !engine.Retryable(err) {
			s.Fatalf("%s: %v", s.clock.Format("04:05"), err)
		}
	}
	s.pass(10 * time.Second)
	s.report("a")
	s.fails("node a: its agent cannot see who uses old addresses: operation not permitted")
}

// soakUnready has a node that is not ready, with a report that it left, and one that has gone.
func soakUnready(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.node("b", corev1.ConditionUnknown)
	s.report("a")
	s.report("b", web(1, 4, s.clock))
	s.report("gone", web(2, 4, s.clock))
	if err := s.Verify(s.Context()); err == nil || !strings.HasPrefix(err.Error(), "2 clients still use") {
		s.Errorf("what was reported last is not known: %v", err)
	}
	for range 6 {
		s.pass(10 * time.Second)
		s.report("a")
		if err := s.Verify(s.Context()); err == nil {
			s.Fatal("over too early")
		}
	}
	s.pass(10 * time.Second)
	s.report("a")
	s.over()
	if want := "not ready, and not waited for: node b. Who uses old addresses there is not known"; s.Note() != want {
		s.Errorf("notes %q", s.Note())
	}
}

// soakLeftBehind has a node that comes back when it is nearly over, with a client.
func soakLeftBehind(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.node("b", corev1.ConditionFalse)
	s.report("a")
	s.waits(still)
	s.pass(10 * time.Minute)
	s.node("b", corev1.ConditionTrue)
	s.report("a")
	s.waits("no client is seen to use an old address: waiting for the next report of nodes a, b")
	s.pass(10 * time.Second)
	s.report("a")
	s.report("b", web(1, 1, s.clock))
	s.waits("1 client still uses old addresses: pod shop/web-1 on node b at 10.96.0.5:80 (service shop/cart), 1 connection open")
}

func soakMany(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a", web(1, 1, s.clock), web(2, 1, s.clock), web(3, 1, s.clock), web(4, 1, s.clock),
		func(st *v1alpha1.NodeReportStatus) { st.MoreClients = 10 })
	err := s.Verify(s.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "14 clients still use old addresses: pod shop/web-1 ") ||
		!strings.HasSuffix(err.Error(), "; and 11 more") || strings.Count(err.Error(), ";") != 3 {
		s.Errorf("says %v", err)
	}
	s.pass(2 * time.Minute)
	s.report("a", noClients, func(st *v1alpha1.NodeReportStatus) { st.MoreClients = 10 })
	s.waits("10 more clients than nodes have room for in their reports may use old addresses")
}

// soakOutage has an API server that is not there for longer than agents may be silent.
func soakOutage(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a")
	s.waits(still)
	config := rest.CopyConfig(s.server.Config)
	config.Host = "127.0.0.1:1"
	away, err := cluster.Connect(config)
	must(s.T, err)
	s.Client = away
	s.pass(time.Hour)
	if err := s.Verify(s.Context()); err == nil || !engine.Retryable(err) {
		s.Errorf("an API server that is away: %v", err)
	}
	s.Client = s.server
	s.pass(time.Hour)
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(10 * time.Second)
	s.report("a")
	s.over()
}

// soakLate has a node that joins, whose agent takes its time.
func soakLate(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.waits(still)
	s.pass(time.Minute)
	s.report("a") // it may be from any time since the look before
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(time.Second)
	s.report("a")
	s.over()
}

// soakRestarted has an agent that is another one by now, and has counted to where the one before
// had got.
func soakRestarted(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a")
	s.waits(still)
	s.pass(119 * time.Second)
	s.waits("no client is seen to use an old address: waiting for the next report of node a")
	s.pass(time.Second / 2)
	s.report("a", func(st *v1alpha1.NodeReportStatus) { st.Agents[1].Instance, st.Agents[1].Sequence = "two", 1 })
	s.over()
}

// soakZero waits no longer than it takes every agent to say that there is no client.
func soakZero(s *soaking) {
	s.Length = 0
	s.node("a", corev1.ConditionTrue)
	s.report("a", web(1, 1, s.clock))
	const text = "1 client still uses old addresses: pod shop/web-1 on node a at 10.96.0.5:80 (service shop/cart), 1 connection open"
	s.waits(text)
	s.pass(10 * time.Second)
	s.report("a")
	s.waits(text)
	s.pass(10 * time.Second)
	s.report("a", noClients)
	s.over()
}

// soakRun has the engine run the step. Its agent reports whenever it is looked at.
func soakRun(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.Length = 3 * time.Second
	seen, open := s.clock, 1
	s.Now = func() time.Time {
		s.pass(time.Second)
		s.report("a", noClients, web(1, open, seen))
		open = 0
		return s.clock
	}
	var events []string
	r := &engine.Runner{Sink: func(e engine.Event) {
		if e.Step != "" {
			events = append(events, string(e.Kind))
		}
		if e.Guide != "" {
			events = append(events, "guide")
		}
	}}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "soak", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{s.Soak}}}}}}
	must(s.T, r.Run(ctx, plan))
	if got := strings.Join(
		events,
		" ",
	); !strings.HasPrefix(got, "StepStarted StepWaiting guide StepWaiting") ||
		!strings.HasSuffix(got, " StepDone") {
		s.Errorf("events: %s", got)
	}
	if s.Soak.Deadline() != 24*time.Hour {
		s.Errorf("deadline %s", s.Soak.Deadline())
	}
}
