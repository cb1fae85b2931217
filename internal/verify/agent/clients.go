package agent

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	clientsEvery = 5 * time.Second
	// mostClients is how many a report has room for.
	mostClients = 256
)

// Flows tells who uses addresses of Services, from connection tracking.
type Flows interface {
	// Clients are those of the moved addresses, each of a Service (namespace/name). Pods of the node are known by their addresses; one
	// without a name is no client.
	Clients(moved, pods map[netip.Addr]string) ([]v1alpha1.OldAddressClient, error)
	// Own tells of a connection that the agent has made, which makes it no client.
	Own(network string, local, remote netip.AddrPort)
}

// clients looks again and again who uses addresses that Services have left.
type clients struct {
	flows Flows

	mu   sync.Mutex
	list []v1alpha1.OldAddressClient
	more int
	err  error
}

func (c *clients) follow(ctx context.Context, look func() (scene, bool), every time.Duration) {
	wait.UntilWithContext(ctx, func(context.Context) {
		if s, ok := look(); ok {
			c.look(s)
		}
	}, every)
}

func (c *clients) look(s scene) {
	pods, own := podsByAddress(s.pods)
	var found []v1alpha1.OldAddressClient
	var err error
	if moved := leftAddresses(s); len(moved) > 0 {
		found, err = c.flows.Clients(moved, pods)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil { // who was seen before stays: that they cannot be seen now is no sign that they are gone
		c.err = fmt.Errorf("reading who uses old addresses: %w", err)
		return
	}
	c.list, c.more, c.err = nil, 0, nil
	for _, f := range found {
		switch {
		case own[parse(f.Source)]:
		case len(c.list) == mostClients:
			c.more++
		default:
			c.list = append(c.list, f)
		}
	}
}

func (c *clients) report() (list []v1alpha1.OldAddressClient, more int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]v1alpha1.OldAddressClient(nil), c.list...), c.more, c.err
}

// leftAddresses are those that Services have left, and whose they were.
func leftAddresses(s scene) map[netip.Addr]string {
	moved := map[netip.Addr]string{}
	for _, m := range movers(s) {
		if left := m.left(); left.IsValid() {
			moved[left] = m.key.String()
		}
	}
	return moved
}

// podsByAddress are the pods that have an address of their own and run. Replumb's probes, which are no clients, have no name.
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
