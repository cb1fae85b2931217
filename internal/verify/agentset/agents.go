// Package agentset puts replumb's agents on every node, waits for them, tells why one does not
// report, and takes them away. The program of the agents is in verify/agent, and verify/lossguard
// judges their reports.
package agentset

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/cidr"
)

const (
	// Phase is the name of the phase that Install is.
	Phase = "agents"
	// HostSet is the DaemonSet of the agents in the network of nodes.
	HostSet = "agent"
	// PodSet is the DaemonSet of those in the network of pods.
	PodSet = "probe"
	// Service is the Service that agents call. It leads to the pods of PodSet.
	Service = "probe"

	// The accounts of the agents of the two networks, and their roles.
	hostAccount = "agent"
	podAccount  = "probe"
	hostAccess  = "replumb-agent"
	podAccess   = "replumb-probe"

	// DefaultWait is how long agents may take to report by default.
	DefaultWait     = 2 * time.Minute
	defaultInterval = 10 * time.Second
)

// Set is the agents of one migration. It remembers reports, and must not be copied.
type Set struct {
	Cluster   *cluster.Cluster
	Migration string
	Image     pull.Image
	// Ranges are the ranges between which Services move. Without any, agents look at no bridges and
	// no pods.
	Ranges []netip.Prefix
	// Services says that Services move though the ranges are not known: then there is a Service
	// with one endpoint.
	Services bool
	// Domain of cluster DNS. Default: agents go by what their pods are given.
	Domain string
	// Pool has the address of the Service that agents call. Nil leaves the choice to the API
	// server.
	Pool     *cidr.Allocator
	Wait     time.Duration
	Interval time.Duration
	// Roll says that the migration restarts pods, cluster DNS among them: new agents start before
	// old ones end, and names are asked again after a second.
	Roll bool
	// Lossy says that the pod network loses packets for a moment: the Service has no port for UDP,
	// which cannot make up for them.
	Lossy bool
	// Ends says that the migration ends nodes: no kubelet reports the end of the agents on them.
	Ends bool
	Now  func() time.Time

	memory ReportMemory
}

func (s *Set) wait() time.Duration { return cmp.Or(s.Wait, DefaultWait) }

func (s *Set) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Install puts agents on every node and waits until they report. The namespace must be there.
func (s *Set) Install() []engine.Group {
	build := objects{s}
	before := []engine.Step{
		&migration.CRDStep{Cluster: s.Cluster, Kind: cluster.NodeReport, Name: "agents/crd"},
		s.privilege(),
		s.policyStep(),
		s.apply("agents/rights", "Grant agents their rights", build.rights).Step(),
		s.serviceStep("agents/service", "Create the Service that agents call", build.service),
	}
	run := []engine.Step{
		s.apply("agents/host", "Run an agent in the network of every node", build.hostSet).Step(),
		s.apply("agents/pods", "Run an agent in the network of pods on every node", build.podSet).Step(),
	}
	if s.services() {
		before = append(before, s.serviceStep("agents/service/"+Single,
			"Create the Service that agents call from nodes without an endpoint", build.single))
		run = append(run, s.apply("agents/"+Single,
			"Run the server that agents call from nodes without an endpoint", build.answers).Step())
	}
	return []engine.Group{
		{Parallel: 1, Steps: before}, {Parallel: 2, Steps: run}, {Parallel: 1, Steps: []engine.Step{s.reporting()}},
	}
}

// Objects are what Install runs, and what agents call.
func (s *Set) Objects() ([]client.Object, error) {
	build := objects{s}
	builds := []func([]string) ([]client.Object, error){build.hostSet, build.podSet}
	all := []client.Object{build.service()}
	if s.services() {
		builds, all = append(builds, build.answers), append(all, build.single())
	}
	for _, b := range builds {
		made, err := b(nil)
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}

func (s *Set) services() bool { return s.Services || len(s.Ranges) > 0 }

// Remove takes away what Install has made, but for the definition of NodeReport and the namespace.
func (s *Set) Remove() []engine.Step { return []engine.Step{s.remove(), s.privilege().Undo()} }

func (s *Set) privilege() *migration.PrivilegeStep {
	return &migration.PrivilegeStep{Cluster: s.Cluster, Migration: s.Migration, Name: "agents/pod-security"}
}

// There reports whether there are any. A user who may not look has made none.
func (s *Set) There(ctx context.Context) (bool, error) {
	all, err := s.sets(ctx)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return len(all) > 0, err
}

// Reporting says which agents report, and why others do not. An agent is proven to report by a
// report that was not there at the look before.
func (s *Set) Reporting(ctx context.Context) (Outlook, error) {
	v, err := s.View(ctx)
	if err != nil {
		return Outlook{}, err
	}
	return s.memory.Look(v, s.wait()), nil
}

// exclusive fails as long as an object belongs to another migration that goes on: all share one
// set.
func (s *Set) exclusive(ctx context.Context, owner, object string) error {
	const without = "do without agents: spec.proof.agents: Disabled"
	return migration.Exclusive(s.Cluster, s.Migration, without)(ctx, owner, object)
}

func (s *Set) apply(
	id, title string, build func(servers []string) ([]client.Object, error),
) *workload.Apply {
	return &workload.Apply{
		Cluster: s.Cluster, Name: id, About: title, Build: build, Exclusive: s.exclusive,
	}
}
