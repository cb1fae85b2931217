package sample

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// labName is that of the lab that a sample moves in.
const labName = "rehearsal"

const (
	readyTimeout = 3 * time.Minute
	// reportedWithin is how long clients may take to say what they have seen.
	reportedWithin = time.Minute
	// forget is longer than the lab's cluster DNS remembers a name (30 s).
	forget = 45 * time.Second
	// unattended is how long a command waits for people, of whom none is there: the clients that leave are gone before it begins.
	unattended = 5 * time.Minute
	// shownLosses bounds how many losses are named.
	shownLosses = 20
)

// Options are what is moved, and how.
type Options struct {
	// Services of the cluster, and how many of them are moved.
	Services []corev1.Service
	Size     int
	// From is the Service range, To are those that Services go to.
	From netip.Prefix
	To   []netip.Prefix
	// Migration is the one that is rehearsed.
	Migration *v1alpha1.Migration
	// Commands of replumb, in order, and what runs one: with its arguments, the Migration to apply, and the cluster's kubeconfig.
	Commands []string
	Command  func(ctx context.Context, name string, m *v1alpha1.Migration, kubeconfig string) error
	Progress func(format string, args ...any)
}

// Result is what clients lived through.
type Result struct {
	Nodes    int       `json:"nodes"`
	Services []Moved   `json:"services"`
	Commands []Counted `json:"commands"`
	// LeftOut counts the Services that cannot be in a sample, by the reason.
	LeftOut map[string]int `json:"leftOut,omitempty"`
	// Losses are the first stretches in which requests were lost.
	Losses  []string `json:"losses,omitempty"`
	Seconds float64  `json:"seconds"`
}

// Moved is a Service of the sample.
type Moved struct {
	Service string `json:"service"`
	Shape   string `json:"shape"`
}

// Counted is what clients sent while a command ran, and lost.
type Counted struct {
	Command string `json:"command"`
	Sent    int    `json:"sent"`
	Lost    int    `json:"lost"`
}

// Lost is how many requests were lost in all.
func (r *Result) Lost() (n int) {
	for _, c := range r.Commands {
		n += c.Lost
	}
	return n
}

// Validate refuses what cannot be moved in a lab, or not on this machine.
func (o Options) Validate() error {
	switch {
	case o.Size < 1:
		return errors.New("a sample has at least one Service")
	case o.Migration.Spec.ServiceCIDR.Etcd != nil:
		return errors.New("spec.serviceCIDR.etcd moves Services in etcd, and a sample moves by hops")
	}
	t, err := o.topology()
	return cmp.Or(err, lab.Preflight(t))
}

// topology is a lab with the Service range of the cluster, and with networks that are apart from it and from where Services go.
func (o Options) topology() (lab.Topology, error) {
	t := lab.Default()
	t.Name, t.ServiceCIDR = labName, o.From
	taken := append(slices.Clone(o.To), o.From)
	apart := func(set *netip.Prefix, candidates ...string) error {
		for _, text := range candidates {
			p := netip.MustParsePrefix(text)
			if !slices.ContainsFunc(taken, p.Overlaps) {
				*set, taken = p, append(taken, p)
				return nil
			}
		}
		return fmt.Errorf("no range is free for the lab beside %v", taken)
	}
	if err := apart(&t.PodCIDR, t.PodCIDR.String(), "10.224.0.0/16", "192.168.0.0/16"); err != nil {
		return t, err
	}
	if err := apart(&t.Networks[0].CIDR, t.Networks[0].CIDR.String(), "192.168.250.0/24", "10.250.0.0/24"); err != nil {
		return t, err
	}
	return t, t.Validate()
}

// Run brings a lab up, moves a sample of the Services there, and takes the lab down. Its error is of what kept it from doing so, a command that
// failed among it, and the result beside it has what was seen until then; what was lost is in the result.
func Run(ctx context.Context, o Options) (r *Result, err error) {
	begun := time.Now()
	topology, err := o.topology()
	if err != nil {
		return nil, err
	}
	chosen, leftOut := Choose(o.Services, o.Size)
	if len(chosen) == 0 {
		return nil, errors.New("none of the Services can be in a sample")
	}
	r = &Result{Nodes: len(topology.Nodes), LeftOut: leftOut}
	for i := range chosen {
		r.Services = append(r.Services, Moved{Service: nameOf(&chosen[i]), Shape: Shape(&chosen[i])})
	}
	l, err := lab.Up(ctx, topology, lab.Options{Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	defer func() {
		_, downErr := lab.Down(context.WithoutCancel(ctx), topology.Name)
		err = errors.Join(err, downErr)
	}()
	c, err := serve(ctx, l, chosen)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	err = o.move(ctx, l, c, r)
	r.Seconds = time.Since(begun).Seconds()
	return r, err
}

// clients of the Services: those that look names up, and those that go by the addresses that Services had.
type clients struct{ named, fixed *traffic.Watch }

func (c *clients) stop() {
	c.named.Stop()
	c.fixed.Stop()
}

// serve has the Services answer, and clients on every node ask them.
func serve(ctx context.Context, l *lab.Lab, chosen []corev1.Service) (*clients, error) {
	client, err := kubernetes.NewForConfig(l.RESTConfig())
	if err != nil {
		return nil, err
	}
	dns, err := client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, traffic.DNSService, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	kubernetesAt, _ := cidr.Bounds(l.Topology.ServiceCIDR)
	reserved := []netip.Addr{kubernetesAt}
	if a, err := netip.ParseAddr(dns.Spec.ClusterIP); err == nil {
		reserved = append(reserved, a)
	}
	all := objects(chosen, reserved...)
	if err := workload.Ensure(ctx, client, all...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, client, readyTimeout, all...); err != nil {
		return nil, err
	}
	services := slices.Clone(chosen)
	for i := range services {
		now, err := client.CoreV1().Services(services[i].Namespace).Get(ctx, services[i].Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		services[i] = *now
	}
	byName, byAddress := calls(services)
	named, err := watched(ctx, client, l, byName)
	if err != nil {
		return nil, err
	}
	fixed, err := watched(ctx, client, l, byAddress)
	if err != nil {
		named.Stop()
		return nil, err
	}
	return &clients{named: named, fixed: fixed}, nil
}

// watched starts clients, and returns when all of them are answered.
func watched(ctx context.Context, client kubernetes.Interface, l *lab.Lab, calls traffic.Calls) (*traffic.Watch, error) {
	w, err := traffic.Start(ctx, client, l.NodeNames(), calls)
	if err != nil {
		return nil, err
	}
	if err := w.Await(ctx, reportedWithin, "a second without failures", traffic.All, traffic.Steady); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// migration is what is applied in the lab.
func (o Options) migration() *v1alpha1.Migration {
	m := o.Migration.DeepCopy()
	m.Spec.Image, m.Spec.Proof = workload.ReplumbImage, v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled}
	job := m.Spec.ServiceCIDR
	job.From, job.To = ofIPv4(job.From), ofIPv4(job.To) // the lab has no other family
	job.ClusterServices = v1alpha1.ClusterServicesStay  // those are the lab's, and what gates ask for was played before
	job.Drain = &metav1.Duration{Duration: forget}
	job.GateWait = &metav1.Duration{Duration: unattended}
	return m
}

// ofIPv4 are the ranges of that family.
func ofIPv4(ranges []string) []string {
	return slices.DeleteFunc(slices.Clone(ranges), func(text string) bool { return strings.Contains(text, ":") })
}

// move runs the commands, and counts what clients see meanwhile.
func (o Options) move(ctx context.Context, l *lab.Lab, c *clients, r *Result) error {
	m := o.migration()
	for _, name := range o.Commands {
		answered := []*traffic.Watch{c.named, c.fixed}
		if name == "finish" { // which waits until no client uses old addresses
			c.fixed.Stop()
			if err := leave(ctx, l.Client()); err != nil {
				return err
			}
			answered = answered[:1]
		}
		o.Progress("%s in the lab", name)
		from := time.Now().Truncate(time.Second)
		if err := o.Command(ctx, name, m, l.Kubeconfig()); err != nil {
			return err
		}
		to := time.Now().Truncate(time.Second).Add(2 * time.Second)
		counted := Counted{Command: name}
		for _, w := range answered {
			if err := w.Await(ctx, reportedWithin, "what clients saw", traffic.All, traffic.Until(to)); err != nil {
				return err
			}
			losses := counted.add(w.Snapshot(), from, to)
			r.Losses = append(r.Losses, losses[:min(len(losses), shownLosses-len(r.Losses))]...)
		}
		r.Commands = append(r.Commands, counted)
	}
	return nil
}

// leave ends the clients that go by addresses, as their owners would.
func leave(ctx context.Context, client kubernetes.Interface) error {
	at := metav1.ListOptions{LabelSelector: labelLeaving}
	if err := client.CoreV1().Pods(callers).DeleteCollection(ctx, metav1.DeleteOptions{}, at); err != nil {
		return fmt.Errorf("ending the clients of old addresses: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, readyTimeout, true, func(ctx context.Context) (bool, error) {
		left, err := client.CoreV1().Pods(callers).List(ctx, at)
		return err == nil && len(left.Items) == 0, nil
	})
}

// add counts what clients saw in a stretch of time, and says what they lost.
func (c *Counted) add(heard map[traffic.Source]probe.Series, from, to time.Time) (losses []string) {
	for source, series := range heard {
		seen := series.Between(from, to)
		for _, w := range seen {
			c.Sent += w.Sent
			c.Lost += w.Failed
		}
		for _, loss := range seen.Losses() {
			losses = append(losses, fmt.Sprintf("%s: %d lost from %s to %s: %s", source, loss.Failed, loss.Start.Format(time.TimeOnly),
				loss.End.Format(time.TimeOnly), probe.FormatErrors(loss.Errors)))
		}
	}
	slices.Sort(losses)
	return losses
}
