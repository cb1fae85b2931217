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
)

// gateMode is what controller managers have to do with ranges. It is also the value of the annotation by which people
// confirm it of those that cannot be seen.
type gateMode string

const (
	gatePaused    gateMode = "Paused"
	gateRepointed gateMode = "Repointed"
	gateRestored  gateMode = "Restored"
)

const (
	// quiet is how long a controller manager that has seen a Node has to give it no range to be believed: one that does
	// gives it in the same moment in which it sees it.
	quiet = 5 * time.Second
	// tryEvery is how often a Node is made to find out.
	tryEvery = 3 * time.Second
)

// rangeGate waits until controller managers do with ranges what they have to. It sees it by their command lines, where they
// are static pods, and in any case by what the one that leads does to a Node that was made for it.
type rangeGate struct {
	tools    migration.Tools
	spec     podmove.Spec
	id       string
	guide    string
	mode     gateMode
	deadline time.Duration

	// since is when the Node of the trial was first seen to have been looked at, next when another one may be made.
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
		tools:    p.Tools,
		spec:     p.Survey.Spec,
		id:       id,
		guide:    guide,
		mode:     mode,
		deadline: p.Survey.Spec.Nodes.GateWait.Duration,
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

// Waits implements engine.Waiter: nothing it makes outlives it.
func (g *rangeGate) Waits() {}

func (g *rangeGate) Deadline() time.Duration { return g.deadline }

func (g *rangeGate) Preview() ([]engine.Change, error) { return g.trial().Preview(), nil }

// State implements engine.Step: what was true of controller managers earlier says nothing of now.
func (g *rangeGate) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do ends what an earlier run has begun.
func (g *rangeGate) Do(ctx context.Context) error { return g.trial().End(ctx) }

func (g *rangeGate) Abandon(ctx context.Context) error { return g.trial().End(ctx) }

func (g *rangeGate) trial() nodeipam.Trial {
	return nodeipam.Trial{Client: g.tools.Client(), Migration: g.spec.Name}
}

func (g *rangeGate) Verify(ctx context.Context) error {
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
	problem, proven := g.judge(out)
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

// judge says what is wrong, or that all is proven; nothing, as long as it is too early.
func (g *rangeGate) judge(out *nodeipam.Outcome) (problem string, proven bool) {
	if out.Seen && g.since.IsZero() {
		g.since = g.tools.Now()
	}
	waited := out.Seen && g.tools.Now().Sub(g.since) >= quiet
	given := nodeipam.Range(out.PodCIDRs)
	if g.mode == gatePaused {
		return judgePaused(given, out.Exhausted, waited)
	}
	return g.judgeGiven(given, waited)
}

func judgePaused(given netip.Prefix, exhausted, waited bool) (problem string, proven bool) {
	switch {
	case given.IsValid():
		return fmt.Sprintf("a controller manager gives nodes ranges (it gave %s to one made to find out)", given), false
	case exhausted:
		return "a controller manager would give nodes ranges, if it had any left", false
	}
	return "", waited
}

func (g *rangeGate) judgeGiven(given netip.Prefix, waited bool) (problem string, proven bool) {
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

// commandLines looks at what can be seen of all controller managers, those included that do not lead at the moment.
func (g *rangeGate) commandLines(ctx context.Context) error {
	seen, err := managers(ctx, g.tools.Cluster)
	if err != nil {
		return err
	}
	for _, m := range seen {
		cidr := nodeipam.Range(strings.Split(m.ClusterCIDR, ","))
		switch {
		case g.mode == gatePaused && m.Allocates:
			return engine.NotYet("pod %s runs with --allocate-node-cidrs", m.Pod)
		case g.mode != gatePaused && !m.Allocates:
			return engine.NotYet("pod %s runs without --allocate-node-cidrs", m.Pod)
		case g.mode == gateRepointed && cidr != g.spec.To[0]:
			return engine.NotYet("pod %s runs with --cluster-cidr=%s", m.Pod, m.ClusterCIDR)
		case g.mode == gateRestored && cidr.Overlaps(g.spec.To[0]):
			return engine.NotYet("pod %s runs with --cluster-cidr=%s", m.Pod, m.ClusterCIDR)
		}
	}
	return g.unseen(ctx, len(seen))
}

// unseen has people vouch for controller managers of which nothing can be seen: there is one beside each API server, and
// only the one that leads shows what it does.
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
