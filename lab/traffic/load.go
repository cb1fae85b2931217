package traffic

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/capacity"
)

// Load is what clients ask of a machine, and how it answers while nothing is changed.
type Load struct {
	Machine capacity.Machine
	// Share of the rates that were asked for. No rate falls below leastRate by it.
	Share float64
	// Baseline is what became of permitted requests From an instant up To another, before anything was changed.
	Baseline probe.Stats
	From, To time.Time
}

func (l Load) String() string {
	return fmt.Sprintf("%s; clients call at %.0f %% of their rates: %s", l.Machine, 100*l.Share, baselineText(l.Baseline))
}

func baselineText(s probe.Stats) string {
	return fmt.Sprintf(
		"before anything is changed %d requests, %d failed, %d late, %d not measured, p50 %s, p99 %s, longest gap %s",
		s.Sent,
		s.Failed,
		s.Late,
		s.NotMeasured,
		s.Percentile(50).Round(100*time.Microsecond),
		s.Percentile(99).Round(100*time.Microsecond),
		s.LongestGap.Round(time.Millisecond),
	)
}

const (
	// leastRate is the lowest rate that others are lowered to, in requests a second.
	leastRate = 1
	// baselineFor is how long clients call before anything is changed.
	baselineFor = 5 * time.Second
	// quietP99 is what 99 of 100 answers may take on a machine that carries its clients.
	quietP99 = 250 * time.Millisecond
)

// TooSlowError says that a machine does not answer its clients well while nothing is changed, at the lowest rates there are. It says
// nothing of the cluster, nor of replumb.
type TooSlowError struct{ Load Load }

func (e *TooSlowError) Error() string {
	return fmt.Sprintf("this machine is too busy or too slow to measure losses, and nothing was changed: %s", e.Load)
}

func (*TooSlowError) ExitCode() int { return fault.ExitNotMeasured }

func (*TooSlowError) Advice() string {
	return "end what else runs on the machine (uptime, top), or use one with faster processors, and run the same command again"
}

// carries reports whether the machine answers its clients so well that a loss is not its own.
func (l Load) carries() bool {
	return l.Baseline.Sent > 0 && l.Baseline.Failed == 0 && l.Baseline.NotMeasured == 0 && l.Baseline.Percentile(99) < quietP99
}

// Start pins a client to each node for each of calls, and follows what they report until ctx ends or Stop is called. Clients call at as
// much of their rates as the machine carries: it is measured first, and where the first seconds show that it does not carry them the rates
// are halved. Start fails with a *TooSlowError where the lowest rates are too high.
func Start(ctx context.Context, client kubernetes.Interface, nodes []string, calls ...Calls) (*Watch, error) {
	machine, err := capacity.Measure(ctx)
	if err != nil {
		return nil, err
	}
	load := Load{Machine: machine, Share: machine.Share(perSecond(len(nodes), calls))}
	for {
		w, err := begin(ctx, client, nodes, load, calls)
		if err != nil || !permitsAny(calls) || w.load.carries() {
			return w, err
		}
		load = w.load
		w.Stop()
		if err := removeClients(ctx, client, nodes, calls); err != nil {
			return nil, err
		}
		switch fewer, ok := thinned(calls); {
		case !lowest(load.Share, calls):
			load.Share /= 2
		case ok:
			calls = fewer
		default:
			return nil, &TooSlowError{Load: load}
		}
	}
}

// thinned leaves the first Service of each way to calls that may be sparse; not ok if that is all they have.
func thinned(calls []Calls) (fewer []Calls, ok bool) {
	for _, c := range calls {
		if c.Sparse {
			targets := map[Via][]probe.Target{}
			for v, all := range c.Targets {
				targets[v] = all[:min(1, len(all))]
				ok = ok || len(all) > 1
			}
			c.Targets = targets
		}
		fewer = append(fewer, c)
	}
	return fewer, ok
}

// begin starts clients at a share of their rates, and takes their baseline.
func begin(ctx context.Context, client kubernetes.Interface, nodes []string, load Load, calls []Calls) (*Watch, error) {
	w := newWatch(ctx, podLogs{client})
	w.load = load
	for _, c := range calls {
		if err := w.Add(ctx, client, nodes, c); err != nil {
			w.Stop()
			return nil, err
		}
	}
	if !permitsAny(calls) { // there is nothing to be answered
		return w, nil
	}
	if err := w.takeBaseline(ctx); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// takeBaseline adds up what permitted requests meet with in the seconds that follow.
func (w *Watch) takeBaseline(ctx context.Context) error {
	from := time.Now().Truncate(time.Second).Add(time.Second)
	to := from.Add(baselineFor)
	if err := w.Await(ctx, baselineFor+scoutTimeout, "the baseline", Permitted, Until(to)); err != nil {
		return err
	}
	stats, err := statsOf(w.Snapshot(), Permitted, from, to)
	w.load.Baseline, w.load.From, w.load.To = stats, from, to
	return err
}

// statsOf adds up what the chosen sources met with between two instants.
func statsOf(heard map[Source]probe.Series, chosen func(Source) bool, from, to time.Time) (probe.Stats, error) {
	var all []probe.Stats
	for source, series := range heard {
		if !chosen(source) {
			continue
		}
		stats, err := series.Between(from, to).Stats()
		if err != nil {
			return probe.Stats{}, fmt.Errorf("%s: %w", source, err)
		}
		all = append(all, stats)
	}
	return probe.Merge(all...), nil
}

// Load is what the clients ask of the machine, and how it answered before anything was changed.
func (w *Watch) Load() Load { return w.load }

// permitsAny reports whether any of the calls is one that has to be answered.
func permitsAny(calls []Calls) bool {
	return slices.ContainsFunc(calls, func(c Calls) bool {
		for v, targets := range c.Targets {
			if v != ByForbidden && len(targets) > 0 {
				return true
			}
		}
		return false
	})
}

// perSecond is how many requests a second clients on so many nodes send.
func perSecond(nodes int, calls []Calls) (sum float64) {
	for _, c := range calls {
		for _, targets := range c.Targets {
			for _, t := range targets {
				sum += t.Rate * float64(nodes)
			}
		}
	}
	return sum
}

// at lowers the rates of calls to a share of them.
func (c Calls) at(share float64) Calls {
	lowered := map[Via][]probe.Target{}
	for v, targets := range c.Targets {
		for _, t := range targets {
			t.Rate = min(t.Rate, max(leastRate, t.Rate*share))
			lowered[v] = append(lowered[v], t)
		}
	}
	c.Targets = lowered
	return c
}

// lowest reports whether no rate can be lowered below a share.
func lowest(share float64, calls []Calls) bool {
	for _, c := range calls {
		for _, targets := range c.Targets {
			for _, t := range targets {
				if t.Rate*share > leastRate {
					return false
				}
			}
		}
	}
	return true
}

// share is which part of their rates further clients call at: no more than those that were there first.
func (w *Watch) share(nodes int, calls Calls) float64 {
	return min(w.load.Share, w.load.Machine.Share(perSecond(nodes, []Calls{calls})))
}

// removeClients removes the pods of clients and waits until others of their names can be made.
func removeClients(ctx context.Context, client kubernetes.Interface, nodes []string, calls []Calls) error {
	var pods []podName
	for _, c := range calls {
		for _, node := range nodes {
			pods = append(pods, podName{c.Namespace, clientPod(c.client(), node)})
		}
	}
	if err := remove(ctx, client, pods); err != nil {
		return err
	}
	for _, pod := range pods {
		gone := func(ctx context.Context) (bool, error) {
			_, err := client.CoreV1().Pods(pod.namespace).Get(ctx, pod.name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}
		if err := wait.PollUntilContextTimeout(ctx, goneEvery, scoutTimeout, true, gone); err != nil {
			return fmt.Errorf("wait for client %s to be gone: %w", pod, err)
		}
	}
	return nil
}

// goneEvery is how often it is looked whether a pod is gone.
const goneEvery = 200 * time.Millisecond

func clientPod(role, node string) string { return role + "-" + node }
