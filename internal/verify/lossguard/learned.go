package lossguard

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// requestTakes is how long a request may take: one that a node led astray is lost by then.
const requestTakes = 6 * time.Second

// Beside rolls the one pod behind agentset.Single, while others are rolled; nil without agents.
func (p *Agents) Beside() func(context.Context) error {
	if p == nil {
		return nil
	}
	return func(ctx context.Context) error {
		rolled, err := p.RollSingle(ctx)
		if rolled && p.Watch != nil {
			p.Watch.seen().read(func(t *Tally) { t.Rolled(p.Watch.now()) })
		}
		return err
	}
}

// Learned waits until the pod that Beside has replaced has ended, and every agent has reported
// since: a node that still leads there loses requests, which ends the run.
func (p *Agents) Learned() []engine.Group {
	if p == nil {
		return nil
	}
	l := &learning{watch: p.Watch}
	return p.BestEffort(engine.InOrder(&engine.Wait{
		Name: "agents/learned", About: "Verify that every node has learned of the endpoints that have gone", Limit: p.Wait + lately, For: l.over,
	}))
}

type learning struct {
	watch *Watch
	// gone is when the pod was first found to have ended, by our clock.
	gone time.Time
}

func (l *learning) over(ctx context.Context) error {
	var rolled time.Time
	l.watch.seen().read(func(t *Tally) { rolled = t.rolled })
	if rolled.IsZero() {
		return nil
	}
	pods := &corev1.PodList{}
	err := l.watch.Client.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSingle})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if len(pods.Items) > 1 || !pods.Items[i].DeletionTimestamp.IsZero() {
			return engine.NotYet("pod %s still answers", pods.Items[i].Name)
		}
	}
	if l.gone.IsZero() {
		l.gone = l.watch.now()
	}
	since := l.gone.Add(requestTakes)
	if l.watch.now().Before(since) {
		return engine.NotYet("a request to the pod that has ended may be under way until %s", since.Local().Format(time.TimeOnly))
	}
	var missing []string
	l.watch.seen().read(func(t *Tally) { missing = t.Unheard(since, l.watch.nodes.due()) })
	if len(missing) > 0 {
		return engine.NotYet("%s", strings.Join(missing[:min(len(missing), namedLosses)], "; "))
	}
	return nil
}
