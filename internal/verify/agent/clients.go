package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/leftaddress"
)

const (
	clientsEvery = 5 * time.Second
	// mostClients is how many a report has room for.
	mostClients = 256
	// defaultDrain is for how long clients by name may use what resolvers remember.
	defaultDrain = time.Minute
)

// Flows tells who uses addresses of Services, from connection tracking.
type Flows interface {
	// Clients are those of moved addresses (Services as namespace/name). pods has this node's pods
	// by address; one without a name is no client.
	Clients(moved, pods map[netip.Addr]string) ([]v1alpha1.OldAddressClient, error)
	// Own tells of a connection that the agent has made, which makes it no client.
	Own(network string, local, remote netip.AddrPort)
	// Forget deletes rested entries of datagrams for Services to the servers, and counts the rest.
	Forget(servers []netip.Addr, rested time.Duration) (left int, err error)
}

type clients struct {
	flows Flows

	mu     sync.Mutex
	memory memory
	// list has recent clients before remembered ones; more and forgotten count those without room.
	list            []v1alpha1.OldAddressClient
	more, forgotten int
	// watched are the addresses that were asked for by the latest look.
	watched *v1alpha1.WatchedAddresses
	err     error
}

func (c *clients) follow(ctx context.Context, look func() (view, bool), every time.Duration) {
	wait.UntilWithContext(ctx, func(context.Context) {
		if s, ok := look(); ok && s.listed {
			c.look(s)
		}
	}, every)
}

func (c *clients) look(s view) {
	pods, own := podsByAddress(s.pods)
	var found []v1alpha1.OldAddressClient
	var err error
	reserved := s.leftAddresses()
	left := departures(s, reserved)
	if len(left) > 0 {
		found, err = c.flows.Clients(whose(left), pods)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil { // who was seen before stays: that they cannot be seen now is no sign that they are gone
		c.err = fmt.Errorf("reading who uses old addresses: %w", err)
		return
	}
	c.list, c.more, c.err, c.watched = nil, 0, nil, reserved.Watched()
	workloads := workloadsOf(s.pods)
	for _, f := range found {
		f.Workload = c.memory.workload(f.Pod, workloads[f.Pod])
		switch {
		case own[parse(f.Source)]:
		case len(c.list) == mostClients:
			c.more++
		default:
			c.list = append(c.list, f)
		}
	}
	gone := s.gone()
	c.memory.forget(gone)
	c.memory.add(slices.DeleteFunc(slices.Clone(c.list), func(f v1alpha1.OldAddressClient) bool { return endless(&f, gone) }), left)
	c.list, c.forgotten = c.memory.complete(c.list)
	for i := range c.list {
		c.list[i].Gone = gone(c.list[i].Pod)
	}
}

// gone reports whether the API server has no pod of a name on this node any more.
func (s view) gone() func(pod string) bool {
	there := map[string]bool{}
	for _, pod := range s.pods {
		there[pod.Namespace+"/"+pod.Name] = true
	}
	return func(pod string) bool { return pod != "" && s.podsListed && !there[pod] }
}

// endless reports whether a client cannot come again: a pod that has gone, and that is of no
// workload which makes others.
func endless(c *v1alpha1.OldAddressClient, gone func(pod string) bool) bool {
	return c.Workload == "" && gone(c.Pod)
}

func (c *clients) recall(reported []v1alpha1.OldAddressClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory.recall(reported)
	if len(c.list) == 0 { // until the first look, the report says what it said
		c.list, c.forgotten = c.memory.complete(nil)
	}
}

func (c *clients) report(status *v1alpha1.NodeReportStatus) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	status.Clients = append([]v1alpha1.OldAddressClient(nil), c.list...)
	status.MoreClients, status.ForgottenClients, status.Watched = c.more, c.forgotten, c.watched
	return c.err
}

// departure is an address that a Service has left, or that its name led to meanwhile.
type departure struct {
	service string
	// expired is when clients by name have stopped using it.
	expired time.Time
}

// leftAddresses are those of which this agent has to tell who uses them, by reservations alone.
func (s view) leftAddresses() leftaddress.Addresses {
	if s.migration == nil || s.migration.Spec.ServiceCIDR == nil || s.migration.Status.PointOfNoReturnPassed {
		return nil
	}
	from := parsePrefixes(s.migration.Spec.ServiceCIDR.From)
	return leftaddress.Of(s.migration.Name, s.reserved, s.services, leftaddress.Ranges{From: from, All: s.ranges})
}

// departures are the reserved ones, and what Services say that they have left beside them: on the
// way back these are addresses of the target.
func departures(s view, reserved leftaddress.Addresses) map[netip.Addr]departure {
	all := map[netip.Addr]departure{}
	for _, m := range movers(s) {
		left := m.left()
		if !left.IsValid() {
			continue
		}
		d := departure{service: m.key.String()}
		if at, err := time.Parse(time.RFC3339Nano, m.movedAt); err == nil {
			d.expired = at.Add(drain(s.migration))
		}
		all[left] = d
		if m.own.IsValid() {
			all[m.own] = d
		}
	}
	for a, d := range reserved {
		all[a] = departure{service: d.Service.String(), expired: d.At.Add(drain(s.migration))}
	}
	return all
}

func parsePrefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func drain(m *v1alpha1.Migration) time.Duration {
	if s := m.Spec.ServiceCIDR; s != nil && s.Drain != nil {
		return s.Drain.Duration
	}
	return defaultDrain
}

func whose(left map[netip.Addr]departure) map[netip.Addr]string {
	all := make(map[netip.Addr]string, len(left))
	for a, d := range left {
		all[a] = d.service
	}
	return all
}

// podsByAddress are running pods with an address. Replumb's probes, which are no clients, have no
// name.
func podsByAddress(pods []*corev1.Pod) (all map[netip.Addr]string, own map[netip.Addr]bool) {
	all, own = map[netip.Addr]string{}, map[netip.Addr]bool{}
	for _, pod := range pods {
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Spec.HostNetwork || over {
			continue
		}
		ours := pod.Namespace == v1alpha1.SystemNamespace && pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleProbe
		for _, ip := range pod.Status.PodIPs {
			a := parse(ip.IP)
			all[a] = pod.Namespace + "/" + pod.Name
			if ours {
				own[a], all[a] = true, ""
			}
		}
	}
	return all, own
}
