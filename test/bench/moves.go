package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	shop    = "shop"
	control = "control"
	settled = 2 * time.Minute
)

// ofMoves moves a shop under traffic again and again, in a lab of two nodes, with agents on both, and prints how much was lost in each whole
// move, beside the naive way, and how long barriers took. It runs as root.
func ofMoves(flags *flag.FlagSet) func(context.Context) error {
	moves := flags.Int("moves", 30, "how many whole moves")
	bin := flags.String("bin", "bin", "folder of replumb")
	return func(ctx context.Context) error { return measureMoves(ctx, *moves, *bin) }
}

// bench is a lab with two shops: one that replumb moves, and one that is moved the naive way.
type bench struct {
	*lab.Lab
	bin, dir string
	barriers map[v1alpha1.BarrierMode][]float64
	lost     map[string][]outcome
}

// outcome of one move.
type outcome struct {
	sent, failed int
	gap          time.Duration
}

func measureMoves(ctx context.Context, moves int, bin string) (err error) {
	topology := lab.Default()
	topology.Name = "bench-moves"
	l, err := lab.Up(ctx, topology, lab.Options{})
	if err != nil {
		return err
	}
	defer func() {
		_, downErr := lab.Down(context.WithoutCancel(ctx), topology.Name)
		err = errors.Join(err, downErr)
	}()
	dir, err := os.MkdirTemp("", "bench-moves-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{Lab: l, bin: bin, dir: dir, barriers: map[v1alpha1.BarrierMode][]float64{}, lost: map[string][]outcome{}}
	var objects []runtime.Object
	for _, namespace := range []string{shop, control} {
		objects = append(objects, workload.Namespace(namespace))
		for _, echo := range workload.Shop(namespace) {
			objects = append(objects, echo.Objects()...)
		}
	}
	if err := workload.Ensure(ctx, l.Client(), objects...); err != nil {
		return err
	}
	if err := workload.WaitReady(ctx, l.Client(), settled, objects...); err != nil {
		return err
	}
	for n := range moves {
		if err := b.move(ctx, n); err != nil {
			return fmt.Errorf("move %d: %w", n+1, err)
		}
		if err := b.naive(ctx); err != nil {
			return fmt.Errorf("control %d: %w", n+1, err)
		}
		fmt.Fprintf(os.Stderr, "%d of %d: replumb lost %d, the naive way %d\n", n+1, moves,
			b.lost[shop][n].failed, b.lost[control][n].failed)
	}
	b.print()
	return nil
}

func rates() traffic.Rates { return traffic.Rates{Request: 10, Stream: 10, LookUp: 10} }

// callees are the Services of a shop, where they are now.
func (b *bench) callees(ctx context.Context, namespace string) ([]traffic.Callee, error) {
	all, err := b.Client().CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var callees []traffic.Callee
	for _, s := range all.Items {
		if s.Labels[v1alpha1.LabelRole] == "" {
			callees = append(callees, traffic.Callee{Name: s.Name, Address: s.Spec.ClusterIP})
		}
	}
	return callees, nil
}

// split parts calls into those by addresses, which end when these go, and those by name.
func split(c traffic.Calls) (byAddress, byName traffic.Calls) {
	byAddress, byName = c, c
	byAddress.Client, byName.Client = "by-address", "by-name"
	byAddress.Targets, byName.Targets = map[traffic.Via][]probe.Target{}, map[traffic.Via][]probe.Target{}
	for via, targets := range c.Targets {
		if via == traffic.ByName || via == traffic.ByLookUp {
			byName.Targets[via] = targets
		} else {
			byAddress.Targets[via] = targets
		}
	}
	return byAddress, byName
}

// move is apply under all traffic, and finish under that by name.
func (b *bench) move(ctx context.Context, n int) error {
	callees, err := b.callees(ctx, shop)
	if err != nil {
		return err
	}
	byAddress, byName := split(traffic.Call(shop, callees, rates()).AndKeep(callees, rates()))
	addresses, err := traffic.Start(ctx, b.Client(), b.NodeNames(), byAddress)
	if err != nil {
		return err
	}
	defer addresses.Stop()
	names, err := traffic.Start(ctx, b.Client(), b.NodeNames(), byName)
	if err != nil {
		return err
	}
	defer names.Stop()
	from := time.Now().Truncate(time.Second).Add(time.Second)
	name, file, err := b.migration(n)
	if err != nil {
		return err
	}
	if err := b.replumb(ctx, n, "apply", "-f", file, "-o", "json"); err != nil {
		return err
	}
	during, err := lived(ctx, addresses, from)
	if err != nil {
		return err
	}
	addresses.Stop()
	if err := b.remove(ctx, "by-address-"); err != nil {
		return err
	}
	if err := b.replumb(ctx, n, "finish", name, "--yes", "-o", "json"); err != nil {
		return err
	}
	whole, err := lived(ctx, names, from)
	if err != nil {
		return err
	}
	names.Stop()
	b.lost[shop] = append(b.lost[shop], sum(during, whole))
	return b.remove(ctx, "by-name-")
}

// naive deletes every Service and recreates it.
func (b *bench) naive(ctx context.Context) error {
	callees, err := b.callees(ctx, control)
	if err != nil {
		return err
	}
	watch, err := traffic.Start(ctx, b.Client(), b.NodeNames(), traffic.Call(control, callees, rates()).AndKeep(callees, rates()))
	if err != nil {
		return err
	}
	defer watch.Stop()
	from := time.Now().Truncate(time.Second).Add(time.Second)
	services := b.Client().CoreV1().Services(control)
	for _, c := range callees {
		old, err := services.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := services.Delete(ctx, c.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		_, err = services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: old.Labels},
			Spec:       corev1.ServiceSpec{Selector: old.Spec.Selector, Ports: old.Spec.Ports},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	// As long as replumb's would take at least: what is by address fails for good, and what is by name until caches forget.
	got, err := lived(ctx, watch, from, 40*time.Second)
	if err != nil {
		return err
	}
	watch.Stop()
	b.lost[control] = append(b.lost[control], got)
	return b.remove(ctx, "client-")
}

// lived is what clients met with since a time, until now and a little longer.
func lived(ctx context.Context, w *traffic.Watch, from time.Time, longer ...time.Duration) (outcome, error) {
	to := time.Now().Truncate(time.Second).Add(3 * time.Second)
	for _, d := range longer {
		to = to.Add(d)
	}
	if err := w.Await(ctx, settled, "traffic", traffic.All, traffic.Until(to)); err != nil {
		return outcome{}, err
	}
	var all []probe.Stats
	for _, series := range w.Snapshot() {
		s, err := series.Between(from, to).Stats()
		if err != nil {
			return outcome{}, err
		}
		all = append(all, s)
	}
	total := probe.Merge(all...)
	return outcome{sent: total.Sent, failed: total.Failed, gap: total.LongestGap}, nil
}

func sum(a, b outcome) outcome {
	return outcome{sent: a.sent + b.sent, failed: a.failed + b.failed, gap: max(a.gap, b.gap)}
}

// modes of barriers take turns.
func mode(n int) v1alpha1.BarrierMode {
	if n%2 == 0 {
		return v1alpha1.BarrierAgent
	}
	return v1alpha1.BarrierHealthCheck
}

func (b *bench) migration(n int) (name, file string, err error) {
	name = fmt.Sprintf("move-%d", n)
	file = filepath.Join(b.dir, name+".yaml")
	to := "172.27.0.0/16"
	if n%2 == 1 {
		to = "172.28.0.0/16"
	}
	return name, file, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  serviceCIDR: {to: [%s], drain: 35s, clusterServices: Stay, refresh: {mode: Report}, barrier: {mode: %s}}
  batch: {size: 4, settle: 1s}
  image: %s
  proof: {agents: Enabled, soak: 5s}
`, name, to, mode(n), workload.ReplumbImage), 0o600)
}

// replumb runs a command, and keeps how long its barriers took.
func (b *bench) replumb(ctx context.Context, n int, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "replumb"), append(args, "--kubeconfig", b.Kubeconfig())...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e engine.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Kind == engine.StepDone && e.Role == engine.RoleBarrier {
			b.barriers[mode(n)] = append(b.barriers[mode(n)], e.Seconds)
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("replumb %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return nil
}

// remove ends clients by the beginning of their names.
func (b *bench) remove(ctx context.Context, prefix string) error {
	for _, namespace := range []string{shop, control} {
		pods := b.Client().CoreV1().Pods(namespace)
		all, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range all.Items {
			if !strings.HasPrefix(p.Name, prefix) {
				continue
			}
			if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// print writes the tables of docs/design/measurements.md.
func (b *bench) print() {
	fmt.Println("| | requests | lost in a move, P50 | P95 | P99 | longest gap, P50 | P95 | P99 |\n|---|---|---|---|---|---|---|---|")
	for _, side := range []struct{ namespace, name string }{{shop, "replumb"}, {control, "delete and create"}} {
		var failed, gaps []float64
		sent := 0
		for _, o := range b.lost[side.namespace] {
			failed, gaps, sent = append(failed, float64(o.failed)), append(gaps, o.gap.Seconds()), sent+o.sent
		}
		fmt.Printf("| %s, %d moves | %d | %.0f | %.0f | %.0f | %.2f s | %.2f s | %.2f s |\n", side.name, len(failed), sent,
			percentile(failed, 50), percentile(failed, 95), percentile(failed, 99),
			percentile(gaps, 50), percentile(gaps, 95), percentile(gaps, 99))
	}
	fmt.Println("\n| barrier | times | median | P99 |\n|---|---|---|---|")
	for _, m := range []v1alpha1.BarrierMode{v1alpha1.BarrierAgent, v1alpha1.BarrierHealthCheck} {
		fmt.Printf("| %s | %d | %.2f s | %.2f s |\n", m, len(b.barriers[m]), percentile(b.barriers[m], 50), percentile(b.barriers[m], 99))
	}
}

// percentile by the nearest rank; 0 of nothing.
func percentile(all []float64, q int) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, (len(sorted)*q+99)/100-1)]
}
