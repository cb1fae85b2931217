package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

const (
	// awayFor is how long a member of etcd is away, cutOffFor how long a control plane is cut off.
	awayFor, cutOffFor = 15 * time.Second, time.Minute
	// kills is how often an API server is killed.
	kills = 4
	// standstill is how long nothing may be done while a control plane fails.
	standstill = 16 * time.Second
)

// fault is something that happens to a control plane. do returns when it is over.
type fault struct {
	name string
	do   func(context.Context) error
}

// suffered is what clients lived through in a fault: those of Services, and those that make new connections to API servers.
type suffered struct {
	fault          string
	services, apis probe.Stats
}

// planes is a cluster with three control planes under traffic. Commands are connected to the last of them until the first fault, which meets that one.
type planes struct {
	*testing.T
	l          *lab.Lab
	s          *shop
	front      *steered
	kubeconfig string
	victim     string
}

// TestPlanes moves everything while an API server is killed, a member of etcd is away, and others lead etcd and the controllers. Until the
// first of that replumb is connected to the control plane that it happens to. One API server still has the old range when the last step of apply is due, and one has it again when finish
// is called. As the control the same happens in the same lab without a migration.
func TestPlanes(t *testing.T) {
	p := newPlanes(t, "e2e-planes")
	faults := []fault{p.killed(), p.withoutEtcd(), p.otherLeaders()}
	bare := p.bear(faults)
	behind := &behind{planes: p, at: p.l.APIServers()[2]}
	o := tooling(p.l, newRange)
	o.instead = map[string]func(context.Context) error{"gate/api-servers": behind.act}
	moved := p.moveUnder(faults, o, behind.see, "apply", "-f", p.file("planes"))
	p.requireNoMore(moved, bare)
	behind.requireWaited()
	p.requireNoDoubles()
	p.requireMoved()
	p.finishBehind()
	requireNoTrace(t, p.l)
}

// TestPartition cuts the control plane off for a minute that replumb is connected to, first from everything and then from the other control planes
// alone, while everything moves and returns. As the control the same happens in the same lab without a migration; and the clients see it
// when a Service is deleted and created.
func TestPartition(t *testing.T) {
	p := newPlanes(t, "e2e-partition")
	whole, half := p.cutOff("cut off from everything", nil), p.cutOff("cut off from the other control planes", p.l.ControlPlanes()[:2])
	bare := p.bear([]fault{whole, half})
	before := allServices(t, p.l)
	moved := p.moveUnder([]fault{whole}, tooling(p.l, newRange), nil, "apply", "-f", p.file("partition"), "--until", "move")
	p.requireNoDoubles()
	moved = append(moved, p.moveUnder([]fault{half}, tooling(p.l, oldRange), nil, "rollback", "partition", "--yes")...)
	p.requireNoMore(moved, bare)
	requireSame(t, before, allServices(t, p.l))
	requireNoTrace(t, p.l)
	requireNaiveLoses(t, p.l)
}

func newPlanes(t *testing.T, name string) *planes {
	t.Helper()
	l := bringUp(t, highlyAvailable(name))
	forgetNamesSoon(t, l)
	p := &planes{T: t, l: l, s: wholeUnderTraffic(t, l), victim: l.ControlPlanes()[2]}
	p.front, p.kubeconfig = steer(t, l, p.victim)
	return p
}

// file moves everything, two Services at a time, so that it takes as long as what happens meanwhile.
func (p *planes) file(name string) string {
	p.Helper()
	return writeSpec(p.T, name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    gateWait: 3m
    refresh: {mode: Report}
    apiServers: [%s]
  batch: {size: 2, settle: 4s}
`, newRange, shortDrain, strings.Join(p.l.APIServers(), ", "))
}

// killed is the API server killed that replumb is connected to, some times.
func (p *planes) killed() fault {
	return fault{"an API server is killed", func(ctx context.Context) error {
		for range kills {
			kill(p.T, p.l, p.victim, "kube-apiserver")
			p.pass(ctx, time.Second) // or it is still there for who looks
			if err := p.l.ControlPlaneNodes().WaitAPIServers(ctx); err != nil {
				return err
			}
		}
		return nil
	}}
}

// withoutEtcd is its member of etcd stopped for a while.
func (p *planes) withoutEtcd() fault {
	return fault{"a member of etcd is away", func(ctx context.Context) error {
		m, err := p.l.Machine(p.victim)
		if err != nil {
			return err
		}
		etcd, err := m.Program(ctx, "etcd")
		if err != nil {
			return err
		}
		if err := m.Stop(ctx, "etcd"); err != nil {
			return err
		}
		p.pass(ctx, awayFor)
		if err := m.Run(context.WithoutCancel(ctx), etcd); err != nil {
			return err
		}
		return p.l.ControlPlaneNodes().WaitAPIServers(ctx)
	}}
}

// otherLeaders has another member lead etcd, and the controller manager killed that leads.
func (p *planes) otherLeaders() fault {
	return fault{"others lead", func(ctx context.Context) error {
		if err := p.moveEtcdLeader(ctx); err != nil {
			return err
		}
		lease, err := p.l.Client().CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if err != nil {
			return err
		}
		was := *lease.Spec.HolderIdentity
		name, _, _ := strings.Cut(was, "_")
		kill(p.T, p.l, name, "kube-controller-manager")
		for ctx.Err() == nil {
			lease, err := p.l.Client().
				CoordinationV1().
				Leases(metav1.NamespaceSystem).
				Get(ctx, "kube-controller-manager", metav1.GetOptions{})
			if err == nil && *lease.Spec.HolderIdentity != was {
				return nil
			}
			p.pass(ctx, time.Second)
		}
		return ctx.Err()
	}}
}

// moveEtcdLeader has the member after the one lead that does.
func (p *planes) moveEtcdLeader(ctx context.Context) error {
	names := p.l.ControlPlanes()
	var ids []uint64
	leader := uint64(0)
	for _, name := range names {
		status, err := etcdOn(p.T, p.l, name).Status(ctx, "https://127.0.0.1:2379")
		if err != nil {
			return err
		}
		ids, leader = append(ids, status.Header.MemberId), status.Leader
	}
	i := slices.Index(ids, leader)
	if i < 0 {
		return fmt.Errorf("etcd is led by %x, and has %x", leader, ids)
	}
	_, err := etcdOn(p.T, p.l, names[i]).MoveLeader(ctx, ids[(i+1)%len(ids)])
	return err
}

func (p *planes) cutOff(name string, from []string) fault {
	return fault{name, func(ctx context.Context) error {
		if err := p.l.Fabrics().Partition(ctx, p.victim, from, cutOffFor); err != nil {
			return err
		}
		return p.l.ControlPlaneNodes().WaitAPIServers(ctx)
	}}
}

// pass lets a while pass.
func (p *planes) pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// bear has faults happen one after the other, without a migration.
func (p *planes) bear(faults []fault) (all []suffered) {
	p.Helper()
	for _, f := range faults {
		all = append(all, p.count(f.name, p.s.during(p.T, f.name, func() {
			if err := f.do(p.Context()); err != nil {
				p.Fatalf("%s: %v", f.name, err)
			}
		})))
		p.s.steady(p.T)
	}
	return all
}

func (p *planes) count(name string, lived span) suffered {
	p.Helper()
	ofAPI := func(from traffic.Source) bool { return slices.Contains(traffic.ClusterWays(), from.Via) }
	s := suffered{
		fault:    name,
		services: lived.stats(p.T, func(from traffic.Source) bool { return !ofAPI(from) }),
		apis:     lived.stats(p.T, func(from traffic.Source) bool { return ofAPI(from) && fresh(from) }),
	}
	p.Logf("%s, %s: %d of %d requests to Services were lost, %d of %d to what the cluster offers", name, lived.to.Sub(lived.from),
		s.services.Failed, s.services.Sent, s.apis.Failed, s.apis.Sent)
	return s
}

// moveUnder runs a command while faults happen, each from the beginning of a batch on, and requires that it goes on meanwhile.
func (p *planes) moveUnder(faults []fault, o operator, see func(engine.Event), args ...string) (all []suffered) {
	p.Helper()
	w := &wounded{planes: p, faults: faults}
	o.killAt = func(e engine.Event) bool {
		w.see(e)
		if see != nil {
			see(e)
		}
		return false
	}
	events, code, gates := o.attend(p.T, command(p.T, "replumb", append(args, "-o", "json", "--kubeconfig", p.kubeconfig)...))
	w.running.Wait()
	p.Logf("%s: exit code %d, acted at %v, %d connections to other API servers", args[0], code, gates, p.front.elsewhere())
	if code != 0 {
		for _, e := range events[max(0, len(events)-5):] {
			p.Logf("%s %s %s %s", e.Kind, e.Step, e.Message, e.Error)
		}
		p.Fatalf("replumb %s: exit code %d", strings.Join(args, " "), code)
	}
	if len(w.spans) != len(faults) {
		p.Errorf("%s was over after %d of %d faults", args[0], len(w.spans), len(faults))
	}
	for _, sp := range w.spans {
		p.requireProgress(sp, events)
		after := p.s.since(p.T, sp.what, sp.from)
		after.to = sp.to
		all = append(all, p.count(sp.what+" in a move", after))
	}
	return all
}

// wounded has faults happen one after the other while a command runs.
type wounded struct {
	*planes
	faults  []fault
	running sync.WaitGroup

	mu    sync.Mutex
	busy  bool
	begun int
	spans []span
}

func (w *wounded) see(e engine.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind != engine.StepStarted || !strings.HasPrefix(e.Step, "settle/batch") || w.busy || w.begun == len(w.faults) {
		return
	}
	f := w.faults[w.begun]
	w.begun++
	w.busy = true
	w.running.Go(func() {
		from := time.Now().Truncate(time.Second)
		if err := f.do(w.Context()); err != nil {
			w.Errorf("%s: %v", f.name, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy = false
		w.spans = append(w.spans, span{what: f.name, from: from, to: time.Now().Truncate(time.Second).Add(3 * time.Second)})
	})
}

// requireProgress fails the test unless steps were done all along in a fault: replumb goes on with another API server.
func (p *planes) requireProgress(sp span, events []engine.Event) {
	p.Helper()
	last, longest, done := sp.from, time.Duration(0), 0
	for _, e := range events {
		if e.Time.Before(sp.from) || e.Time.After(sp.to) {
			continue
		}
		if e.Kind == engine.StepRetried || (e.Kind == engine.StepWaiting && e.Guide == "") {
			p.Logf("%s: %s %s: %s", sp.what, e.Time.Format(time.TimeOnly), e.Step, e.Error)
		}
		if e.Kind == engine.StepDone {
			longest = max(longest, e.Time.Sub(last))
			last = e.Time
			done++
		}
	}
	longest = max(longest, sp.to.Sub(last))
	p.Logf("%s: %d steps were done meanwhile, nothing for %s at most", sp.what, done, longest.Round(time.Millisecond))
	if longest > standstill {
		p.Errorf("%s: nothing was done for %s", sp.what, longest)
	}
}

// requireNoMore fails the test if more was lost in a fault than in the same fault without a migration.
func (p *planes) requireNoMore(moved, bare []suffered) {
	p.Helper()
	share := func(s probe.Stats) float64 { return float64(s.Failed) / float64(max(1, s.Sent)) }
	for i, m := range moved {
		b := bare[i]
		if m.services.Failed > b.services.Failed {
			p.Errorf("%s: %d of %d requests to Services were lost, and %d of %d without", m.fault, m.services.Failed, m.services.Sent,
				b.services.Failed, b.services.Sent)
		}
		// How long an API server takes to start again, in which a third of new connections meet none, is never twice the same.
		if got, want := share(m.apis), share(b.apis); got > 1.5*want+0.02 {
			p.Errorf("%s: %.2f %% of requests to what the cluster offers were lost, and %.2f %% without", m.fault, 100*got, 100*want)
		}
	}
}

// requireMoved fails the test unless every Service with an address that is not pinned is in the new range, and every API server has it.
func (p *planes) requireMoved() {
	p.Helper()
	to := netip.MustParsePrefix(newRange)
	for name, s := range allServices(p.T, p.l) {
		stays := s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.Type == corev1.ServiceTypeLoadBalancer
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); !stays && (err != nil || !to.Contains(a)) {
			p.Errorf("service %s is at %q", name, s.Spec.ClusterIP)
		}
	}
	requireServiceCIDR(p.T, p.l, to)
}

// requireNoDoubles fails the test for each address that two Services have, each Service with two bridges, and whatever is not accounted for. An API
// server that was cut off takes IPAddresses for leaked of which it has not seen the Services yet, and deletes them; it, or another, makes them again within
// a minute (repairip.go in k8s.io/kubernetes pkg/registry/core/service/ipallocator/controller). That is waited for.
func (p *planes) requireNoDoubles() {
	p.Helper()
	began := time.Now()
	eventually(p.T, 2*settled, p.doubles)
	p.Logf("everything is accounted for after %s", time.Since(began).Round(100*time.Millisecond))
}

func (p *planes) doubles() error {
	var found []error
	addresses, err := p.l.Client().NetworkingV1().IPAddresses().List(p.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	owner := map[string]string{}
	for _, a := range addresses.Items {
		owner[a.Name] = a.Spec.ParentRef.Namespace + "/" + a.Spec.ParentRef.Name
	}
	services := allServices(p.T, p.l)
	at, bridges := map[string]string{}, map[string]string{}
	for name, s := range services {
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		if other := at[s.Spec.ClusterIP]; other != "" || owner[s.Spec.ClusterIP] != name {
			found = append(
				found,
				fmt.Errorf(
					"service %s is at %s, which belongs to %s; there is also %q",
					name,
					s.Spec.ClusterIP,
					owner[s.Spec.ClusterIP],
					other,
				),
			)
		}
		at[s.Spec.ClusterIP] = name
		switch role := s.Labels[v1alpha1.LabelRole]; role {
		case "":
		case v1alpha1.RoleBridge:
			of := s.Annotations[v1alpha1.AnnotationServiceUID]
			if other := bridges[of]; other != "" {
				found = append(found, fmt.Errorf("%s and %s are bridges of the same Service", name, other))
			}
			bridges[of] = name
		default:
			found = append(found, fmt.Errorf("service %s is left, a %s", name, role))
		}
	}
	for name, of := range owner {
		if _, is := services[of]; !is {
			found = append(found, fmt.Errorf("address %s belongs to service %s, which is not there", name, of))
		}
	}
	if len(bridges) == 0 {
		found = append(found, errors.New("there are no bridges to look at"))
	}
	return errors.Join(found...)
}

// behind leaves one API server with the old range when all are to have the new one, and then gives it that too.
type behind struct {
	*planes
	// at is that API server, as replumb calls it.
	at string

	mu     sync.Mutex
	differ bool
	// last is what the gate waited for, and named what it did when one was behind.
	last, named string
	early       []string
}

func (b *behind) act(ctx context.Context) error {
	to := []netip.Prefix{netip.MustParsePrefix(newRange)}
	if err := b.l.ControlPlaneNodes().RestartAPIServers(ctx, to, nil, b.l.ControlPlanes()[:2]...); err != nil {
		return err
	}
	b.set(true)
	b.pass(ctx, awayFor)
	old, err := b.l.Client().NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	b.set(false)
	if err != nil || old.DeletionTimestamp != nil || !slices.Equal(old.Spec.CIDRs, []string{oldRange}) {
		b.Errorf("while one API server has the old range the default ServiceCIDR is %+v, %v", old, err)
	}
	return b.l.ControlPlaneNodes().RestartAPIServers(ctx, to, nil, b.l.ControlPlanes()[2])
}

func (b *behind) set(differ bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.differ = differ
	if !differ {
		b.named = b.last
	}
}

func (b *behind) see(e engine.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == engine.StepWaiting && e.Step == "gate/api-servers" {
		b.last = e.Error // it is said again only when it is news
	}
	if b.differ && e.Kind == engine.StepStarted {
		b.early = append(b.early, e.Step)
	}
}

func (b *behind) requireWaited() {
	b.Helper()
	b.Logf("while one API server had the old range: %s", b.named)
	if !strings.Contains(b.named, b.at+" ("+oldRange) || strings.Count(b.named, oldRange) != 1 || len(b.early) > 0 {
		b.Errorf("apply named the API server that is behind: %q; it went on with %v", b.named, b.early)
	}
}

// finishBehind calls finish when one API server has got the old range back: nothing is final then. With the new one it goes through.
func (p *planes) finishBehind() {
	p.Helper()
	restart := func(to string) {
		p.Helper()
		if err := p.l.ControlPlaneNodes().
			RestartAPIServers(p.Context(), []netip.Prefix{netip.MustParsePrefix(to)}, nil, p.victim); err != nil {
			p.Fatal(err)
		}
	}
	restart(oldRange)
	out, err := command(p.T, "replumb", "finish", "planes", "--yes", "--kubeconfig", p.kubeconfig).CombinedOutput()
	if err == nil || !strings.Contains(string(out), p.l.APIServers()[2]) || !strings.Contains(string(out), "nothing is final yet") {
		p.Errorf("with one API server on the old range finish ended with %v: %s", err, out)
	}
	p.requireNoDoubles()
	restart(newRange)
	replumb(p.T, p.l, "finish", "planes", "--yes")
}
