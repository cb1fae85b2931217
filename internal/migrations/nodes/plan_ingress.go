package nodes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// moveOfIngress is what the batch is called that comes before all nodes. No node can have the name.
const moveOfIngress = "the move of ingress"

// moveIngress moves the pods of ingress off all old nodes, and restores the policies of their Services, before anything else leaves: with
// Cluster there is one more hop, and applications do not see clients' addresses, for as long as it lasts. What is behind other Services,
// phase restore looks after.
//
// It is a batch as others are, but for hooks: those are not given nodes, for these are not empty after it.
func (p *Planner) moveIngress(d *drainer) []engine.Group {
	early := p.Survey.Ingress().early()
	if len(early) == 0 {
		return nil
	}
	var groups []engine.Group
	if windows := p.Migration.Spec.Windows; len(windows) > 0 {
		groups = engine.AtOnce(1, moveOfIngress, window.NewStep("window/"+moveOfIngress, windows, p.Tools.Now))
	}
	o := hook.Occasion{Run: hook.Apply, Moment: v1alpha1.BeforeBatch, Phase: phaseDrain, Batch: 1}
	groups = append(groups, p.Hooks(o)...)
	goes := func(pod *corev1.Pod) bool { return p.Survey.Ingress().isBehind(early, pod) }
	size := max(1, p.Survey.Spec.parallel(len(p.Survey.OldNodes())))
	for batch := range slices.Chunk(p.Survey.Ingress().ahead(early), size) {
		var steps []engine.Step
		for i := range batch {
			steps = append(steps, d.drainAhead(batch[i].Name, goes))
		}
		groups = append(groups, engine.AtOnce(size, moveOfIngress, steps...)...)
	}
	groups = append(groups, ingress{d.live}.comesBack(early, p.Survey.Ingress().unready(), p.leaveBalancers())...)
	groups = append(groups, p.Agents.Steady(moveOfIngress)...)
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.Hooks(o)...)
}

// leaveBalancers keeps load balancers off old nodes, and gives them time to leave. Those nodes answer for no Service with the policy Local
// by then, and would drop what they are sent until the health checks of load balancers have found it out.
func (p *Planner) leaveBalancers() []engine.Group {
	if !p.Survey.Balanced {
		return nil
	}
	var steps []engine.Step
	for _, n := range p.Survey.OldNodes() {
		if n.Reversible() {
			steps = append(steps, p.live().excludeAs("exclude/ahead/"+n.Name, n.Name))
		}
	}
	groups := engine.AtOnce(parallel, moveOfIngress, steps...)
	if settle := p.spec().Ingress.Settle.Duration; settle > 0 {
		groups = append(groups, engine.AtOnce(1, moveOfIngress, &migration.PauseStep{
			Name:   "settle/" + moveOfIngress,
			About:  fmt.Sprintf("Give load balancers %s to leave old nodes", settle),
			Length: settle, Now: p.Tools.Now,
		})...)
	}
	return groups
}

// drainAhead makes some pods leave a node that stays for now.
func (d *drainer) drainAhead(name string, goes func(*corev1.Pod) bool) engine.Step {
	l := d.leaving(name)
	l.Name, l.About = "ahead/"+name, "Move pods of ingress off node "+name
	l.Stays = func(pod *corev1.Pod) bool { return !leaves(pod) || !goes(pod) }
	return d.send(l)
}

// comesBack restores the policies of Services once new nodes serve them, and load balancers have left the old ones.
func (i ingress) comesBack(services []types.NamespacedName, unready map[types.UID]bool, leave []engine.Group) []engine.Group {
	meant := func(key types.NamespacedName) bool { return slices.Contains(services, key) }
	back := []engine.Step{
		i.restoreStep("ingress-back/early", "Restore externalTrafficPolicy of Services that have moved", services, meant),
	}
	if targets := i.spec.Ingress.Targets; len(targets) > 0 {
		back = append(back, loadBalancersAnswer("early", targets))
	}
	return slices.Concat(engine.InOrder(i.servedByNew(meant, unready)), leave, engine.InOrder(back...))
}

// servedByNew waits until new nodes alone serve those of the Services with a recorded policy that are meant.
func (i ingress) servedByNew(meant func(types.NamespacedName) bool, unready map[types.UID]bool) engine.Step {
	return &engine.Wait{
		Name:  "ingress/served",
		About: "Wait until new nodes serve what pods of ingress did on old ones",
		Limit: i.spec.Drain.Timeout.Duration,
		Again: true,
		For: func(ctx context.Context) (err error) {
			now := &Survey{Spec: i.spec}
			if now.Recorded, err = i.record().nodes(ctx); err != nil {
				return err
			}
			for _, read := range []func(context.Context, *Survey) error{i.nodesAndPods, i.services} {
				if err := read(ctx, now); err != nil {
					return err
				}
			}
			for n := range now.Services {
				if svc := &now.Services[n]; meant(client.ObjectKeyFromObject(svc)) {
					if err := now.Ingress().served(svc, unready); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}
