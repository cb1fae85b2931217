// Package samplereport makes a report of a migration of Services for tests.
package samplereport

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// Hostile is text that must never become markup or script.
const Hostile = `</script><script>document.title="owned"</script><img src=x onerror="document.title='owned'">`

// Begin is when the migration of the fixture begins.
func Begin() time.Time { return time.Date(2026, 3, 4, 20, 0, 0, 0, time.UTC) }

// history is made event by event: apply, killed in the middle and run again, and finish two hours
// later.
type history struct {
	*journal.History

	at  time.Time
	run string
}

func (s *history) begin(id, command string, kubelets map[string]int, overrides ...string) {
	s.run = id
	s.Runs = append(s.Runs, journal.Run{
		ID: id, User: "mara", Host: "ops-1", Command: "replumb " + command, Version: "v0.9.0", Start: s.at, APIServer: "v1.36.3",
		Kubelets: kubelets, Overrides: overrides,
	})
	s.event(engine.Event{Kind: engine.RunStarted})
}

func (s *history) event(e engine.Event) {
	e.Time, e.Plan = s.at, "services-to-172-24"
	s.Events = append(s.Events, journal.Event{Event: e, Run: s.run})
}

// phase lasts as long as do moves the clock.
func (s *history) phase(name, title string, do func()) {
	start := s.at
	s.event(engine.Event{Kind: engine.PhaseStarted, Phase: name, Message: title, Total: 3})
	do()
	s.event(engine.Event{Kind: engine.PhaseDone, Phase: name, Message: title, Seconds: s.at.Sub(start).Seconds()})
}

func (s *history) step(phase, group, step string, took time.Duration) {
	s.at = s.at.Add(took)
	s.event(engine.Event{Kind: engine.StepDone, Phase: phase, Group: group, Step: step, Message: step, Seconds: took.Seconds()})
}

// Service is the name of a Service of the sample.
func Service(i int) string {
	return []string{"shop", "payments", "search", "monitoring", "platform"}[i%5] + fmt.Sprintf("/service-%03d", i)
}

// batches moves Services from one number to another.
func (s *history) batches(from, to, size, of int) {
	for first := from; first < to; first += size {
		group := fmt.Sprintf("batch %d of %d", first/size+1, (of+size-1)/size)
		for i := first; i < min(first+size, to); i++ {
			s.step("move", group, "hop/"+Service(i), 700*time.Millisecond)
			s.Moves = append(s.Moves, journal.Move{
				Service: Service(i), From: fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), To: fmt.Sprintf("172.24.%d.%d", i/250, i%250+1),
				Strategy: "move", At: s.at, Seconds: 0.7,
			})
		}
		s.step("move", group, "note/"+group, 2*time.Second)
	}
}

// sampled adds what probes met with from one moment to another. Latencies wave, so that there is
// something to see.
func (s *history) sampled(from, to time.Time, lossy bool) {
	for k, name := range []string{"host/old-address", "host/new-address", "host/name", "host/stream", "pod/old-address", "pod/name", "pod/dns", "pod/udp"} {
		for at := from.Unix() / 10 * 10; at < to.Unix(); at += 10 {
			wave := math.Sin(float64(at%600)/95) + math.Sin(float64(at%170)/11+float64(k))/2
			x := journal.Sample{
				Probe: name, Start: at, End: at + 10, Sent: 600,
				P50: int64(900 + 150*float64(k) + 120*wave), P99: int64(6000 + 900*float64(k) + 2500*wave),
			}
			x.Max = x.P99 * 3
			if lossy && name == "host/old-address" && at == Begin().Unix()+10 {
				x.Failed = 7
			}
			s.Samples = append(s.Samples, x)
		}
	}
}

func (s *history) gate() {
	since := s.at
	s.event(engine.Event{
		Kind:    engine.StepWaiting,
		Phase:   "kubelets",
		Step:    "gate/kubelets",
		Message: "Wait for kubelets to name 172.24.0.10 as cluster DNS",
		Error:   "3 nodes name 10.96.0.10",
		Guide:   "on every node, set clusterDNS to [172.24.0.10] in /var/lib/kubelet/config.yaml, then\n  systemctl restart kubelet",
	})
	s.at = s.at.Add(95 * time.Second)
	s.event(engine.Event{
		Kind: engine.StepDone, Phase: "kubelets", Step: "gate/kubelets", Message: "Wait for kubelets to name 172.24.0.10 as cluster DNS",
		Seconds: s.at.Sub(since).Seconds(),
	})
}

// New is a migration of Services, with or without a loss.
func New(services int, lossy bool) htmlreport.Input {
	s := &history{History: &journal.History{}, at: Begin()}
	half := services / 2 / 10 * 10
	s.begin("a", "apply", map[string]int{"v1.36.3": 3}, "--accept-downtime")
	s.phase(
		"secure",
		"Record the migration, back up and freeze what it changes",
		func() { s.step("secure", "", "secure/backup", 3*time.Second) },
	)
	s.phase("extend", "Add the target range", func() { s.step("extend", "", "range/new", 2*time.Second) })
	s.event(engine.Event{Kind: engine.PhaseStarted, Phase: "move", Message: "Move Services, tier by tier, batch by batch", Total: services})
	s.batches(0, half, 10, services)
	s.at = s.at.Add(40 * time.Second) // killed; nothing was said
	s.begin("b", "apply", map[string]int{"v1.36.3": 3})
	s.phase("move", "Move Services, tier by tier, batch by batch", func() { s.batches(half, services, 10, services) })
	s.phase("kubelets", "Have kubelets name the new cluster DNS address", s.gate)
	s.phase(
		"refresh",
		"Restart pods that carry old addresses",
		func() { s.step("refresh", "tier web", "restart/Deployment/shop/till", 42*time.Second) },
	)
	s.event(engine.Event{Kind: engine.RunDone})
	s.sampled(Begin(), s.at, lossy)
	s.at = s.at.Add(2 * time.Hour)
	done := s.at
	s.begin("c", "finish", map[string]int{"v1.36.3": 3})
	s.phase("release", "Take bridges and old addresses away", func() { s.step("release", "", "release/all", 50*time.Second) })
	s.event(engine.Event{Kind: engine.RunDone})
	s.sampled(done, s.at, false)
	m := migration(services)
	in := htmlreport.Input{
		Migration: m,
		Words:     migrations.All().Of(m).Report(m),
		History:   s.History,
		APIServer: "v1.36.3",
		Cluster:   engine.Identity{UID: "0b6a2d4e-61f0-4f7b-8a7e-2f0c4c2f1d11", Server: "10.0.0.1:6443", Context: "shop-eu"},
		Kubelets:  map[string]int{"v1.36.3": 3},
		Now:       s.at.Add(time.Minute),
		Services: []htmlreport.Service{
			{
				Name:   "shop/edge",
				From:   "10.96.7.7",
				State:  "pinned",
				Reason: "is of type LoadBalancer, and its load balancer would be deleted if it hopped",
			},
		},
	}
	s.Findings = []journal.Finding{{Run: "a", Finding: findings.Finding{
		Code: "RP1401", Severity: findings.Warning, Outcome: findings.Fail, Object: "ConfigMap shop/settings",
		Message: "names 10.96.3.7 under the key upstream", Claim: "no ConfigMap names an old address",
	}}}
	s.Stragglers = []journal.Straggler{{Node: "node2", OldAddressClient: v1alpha1.OldAddressClient{
		Address: "10.96.0.4:80", Protocol: "TCP", Service: Service(3), Pod: "shop/importer-5d9f", Source: "10.244.2.17",
		LastSeen: metav1.NewMicroTime(Begin().Add(8 * time.Minute)), Open: 1,
	}}}
	if lossy {
		at := Begin().Add(14 * time.Second)
		s.Losses = []v1alpha1.Loss{{Node: "node2", Probe: "host/old-address", Address: "10.96.0.9:80", LossWindow: v1alpha1.LossWindow{
			Start: metav1.NewMicroTime(
				at,
			),
			End:    metav1.NewMicroTime(at.Add(1300 * time.Millisecond)),
			Failed: 7,
			Error:  "connection refused " + Hostile,
		}}}
	}
	return in
}

func migration(services int) *v1alpha1.Migration {
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "services-to-172-24",
			Annotations: map[string]string{v1alpha1.AnnotationAPIServers: "Repointed"},
		},
		Spec: v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{
			From: []string{"10.96.0.0/16"}, To: []string{"172.24.0.0/16"},
		}},
		Status: v1alpha1.MigrationStatus{
			Phase:  v1alpha1.PhaseFinished,
			Counts: v1alpha1.Counts{Total: services, Moved: services, Pinned: 1},
		},
	}
	when := metav1.NewTime(Begin().Add(5 * time.Minute))
	m.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubectl-annotate", Operation: metav1.ManagedFieldsOperationUpdate, Time: &when,
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:replumb.dev/api-servers":{}}}}`),
	}}
	m.Status.Tiers = []v1alpha1.TierStatus{
		{Name: "batch-jobs", Total: services / 4, Moved: services / 4},
		{Name: "web", Total: services - services/4, Moved: services - services/4},
	}
	return m
}
