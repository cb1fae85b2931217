package noderanges

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/safety/lease"
)

// gateMode is what controller managers have to do with ranges, and the annotation's value by which
// people confirm it.
type gateMode string

const (
	gatePaused    gateMode = "Paused"
	gateRepointed gateMode = "Repointed"
	gateRestored  gateMode = "Restored"
)

const (
	// quiet is how long a controller manager must leave a seen Node alone to be believed.
	quiet = 5 * time.Second
	// tryEvery is how often a Node is made to find out.
	tryEvery = 3 * time.Second
)

// rangeGate waits until controller managers handle ranges as they must. It sees that by command
// lines of static pods, and by what the leader does to a trial Node.
type rangeGate struct {
	tools    migration.Deps
	spec     podmove.Spec
	id       string
	guide    string
	mode     gateMode
	deadline time.Duration

	// since is when the trial Node was first seen to be looked at, next when another may be made.
	since, next time.Time
	// needed says that it was seen that there is something to do.
	needed bool
}

var (
	_ engine.Guide     = (*rangeGate)(nil)
	_ engine.Abandoner = (*rangeGate)(nil)
)

func (p *Planner) rangeGate(id, guide string, mode gateMode) *rangeGate {
	return &rangeGate{
		tools: p.Tools, spec: p.Inventory.Spec, id: id, guide: guide, mode: mode,
		deadline: p.Inventory.Spec.Nodes.GateWait.Duration,
	}
}

func (g *rangeGate) ID() string { return "gate/" + g.id }

func (g *rangeGate) Title() string {
	if g.mode == gatePaused {
		return "Wait until no controller manager gives nodes ranges"
	}
	return "Wait until controller managers give nodes ranges of " + g.wanted()
}

func (g *rangeGate) wanted() string {
	if g.mode == gateRestored {
		return "before"
	}
	return g.spec.To[0].String()
}

func (g *rangeGate) Guide() string {
	if !g.needed {
		return ""
	}
	return g.guide
}

func (g *rangeGate) Waits() {}

func (g *rangeGate) Deadline() time.Duration { return g.deadline }

func (g *rangeGate) Preview() ([]engine.Change, error) { return g.trial().Preview(), nil }

// State implements engine.Step: what was true of controller managers earlier says nothing of now.
func (g *rangeGate) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (g *rangeGate) Do(ctx context.Context) error { return g.trial().End(ctx) }

func (g *rangeGate) Abandon(ctx context.Context) error { return g.trial().End(ctx) }

func (g *rangeGate) trial() nodeipam.Trial {
	return nodeipam.Trial{Client: g.tools.Client(), Migration: g.spec.Name}
}

// Verify holds the lock through restarts of servers in which a controller manager is one of several
// programs (k3s, RKE2), and of machines that are replaced (kOps, Cluster API).
func (g *rangeGate) Verify(ctx context.Context) error { return lease.Outlasting(g.verify)(ctx) }

func (g *rangeGate) verify(ctx context.Context) error {
	if err := g.commandLines(ctx); err != nil {
		g.needed = true
		return err
	}
	out, err := g.trial().Outcome(ctx)
	if err != nil {
		return err
	}
	if out == nil {
		return g.begin(ctx)
	}
	problem, proven := g.evaluate(out)
	switch {
	case proven:
		return g.trial().End(ctx)
	case problem != "":
		g.since, g.needed = time.Time{}, true
		if err := g.trial().End(ctx); err != nil {
			return err
		}
		return engine.NotYet("%s", problem)
	}
	return engine.NotYet("a controller manager is being watched")
}

func (g *rangeGate) begin(ctx context.Context) error {
	if g.tools.Now().Before(g.next) {
		return engine.NotYet("a controller manager does not do yet as it should")
	}
	g.next, g.since = g.tools.Now().Add(tryEvery), time.Time{}
	if err := g.trial().Begin(ctx); err != nil {
		return err
	}
	return engine.NotYet("a controller manager is being watched")
}

// evaluate says what is wrong, or that all is proven; nothing, as long as it is too early.
func (g *rangeGate) evaluate(out *nodeipam.Outcome) (problem string, proven bool) {
	if out.Seen && g.since.IsZero() {
		g.since = g.tools.Now()
	}
	waited := out.Seen && g.tools.Now().Sub(g.since) >= quiet
	given := nodeipam.Range(out.PodCIDRs)
	if g.mode == gatePaused {
		return evaluatePaused(given, out.Exhausted, waited)
	}
	return g.evaluateGiven(given, waited)
}

func evaluatePaused(given netip.Prefix, exhausted, waited bool) (problem string, proven bool) {
	switch {
	case given.IsValid():
		return fmt.Sprintf("a controller manager gives nodes ranges (it gave %s to one made to find out)", given), false
	case exhausted:
		return "a controller manager would give nodes ranges, if it had any left", false
	}
	return "", waited
}

func (g *rangeGate) evaluateGiven(given netip.Prefix, waited bool) (problem string, proven bool) {
	switch {
	case !given.IsValid() && waited:
		return "no controller manager gives nodes ranges", false
	case !given.IsValid():
		return "", false
	case g.mode == gateRestored && !given.Overlaps(g.spec.To[0]), g.mode == gateRepointed && nodeipam.Within(g.spec.To[0], given):
		return "", true
	}
	return fmt.Sprintf("a controller manager gives nodes ranges such as %s", given), false
}

// seenLate keeps people from looking for a fault that is not there.
const seenLate = " (kubelets renew what the API shows of static pods within two minutes)"

// commandLines checks all visible controller managers, including those that do not lead.
func (g *rangeGate) commandLines(ctx context.Context) error {
	seen, err := managers(ctx, g.tools.Cluster)
	if err != nil {
		return err
	}
	for _, m := range seen {
		cidr := nodeipam.Range(strings.Split(m.ClusterCIDR, ","))
		switch {
		case g.mode == gatePaused && m.Allocates:
			return engine.NotYet("pod %s runs with --allocate-node-cidrs%s", m.Pod, seenLate)
		case g.mode != gatePaused && !m.Allocates:
			return engine.NotYet("pod %s runs without --allocate-node-cidrs%s", m.Pod, seenLate)
		case g.mode == gateRepointed && cidr != g.spec.To[0]:
			return engine.NotYet("pod %s runs with --cluster-cidr=%s%s", m.Pod, m.ClusterCIDR, seenLate)
		case g.mode == gateRestored && cidr.Overlaps(g.spec.To[0]):
			return engine.NotYet("pod %s runs with --cluster-cidr=%s%s", m.Pod, m.ClusterCIDR, seenLate)
		}
	}
	return g.unseen(ctx, len(seen))
}

// unseen has people confirm invisible controller managers: there is one beside each API server.
func (g *rangeGate) unseen(ctx context.Context, seen int) error {
	slices := &discoveryv1.EndpointSliceList{}
	err := g.tools.Cluster.List(ctx, slices, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return fmt.Errorf("endpoints of service default/kubernetes: %w", err)
	}
	if servers := len(apiserver.Addresses(slices.Items)); servers <= 1 || seen >= servers {
		return nil
	}
	m, err := migration.Get(ctx, g.tools.Cluster, g.spec.Name)
	if err != nil || migration.Answered(m, v1alpha1.AnnotationControllerManagers, string(g.mode)) {
		return err
	}
	return engine.NotYet("what controller managers that do not lead run with cannot be seen from here; once it is right everywhere, "+
		"confirm it: kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		g.spec.Name, v1alpha1.AnnotationControllerManagers, g.mode)
}
