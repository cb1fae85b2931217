package agent

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

const (
	// connectsAtOnce bounds how many connections are being made.
	connectsAtOnce = 16
	// connectLimit is as patient as a probe. The kernel sends a SYN that is lost again within it.
	connectLimit = 5 * time.Second
)

type connecting struct {
	client    client.Reader
	instance  string
	connected func(network string, local, remote netip.AddrPort)
	// poke is called when a loss was seen, and when nothing is left to be connected to.
	poke func()

	mu       sync.Mutex
	connects connects
	slots    chan struct{}
	running  sync.WaitGroup
}

func (c *connecting) follow(ctx context.Context, movers []mover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.connects.next(movers) {
		c.running.Go(func() { c.try(ctx, a) })
	}
}

func (c *connecting) try(ctx context.Context, a attempt) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return
	}
	var outcomes []outcome
	for _, address := range a.addresses {
		o := outcome{address: address, err: c.connect(ctx, address)}
		o.void = o.err != nil && c.void(ctx, a.mover, address.Addr())
		outcomes = append(outcomes, o)
	}
	if ctx.Err() != nil { // what was cut short says nothing
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.connects.done(a, outcomes, metav1.NowMicro())
	if again, is := c.connects.repeat(a); is {
		c.running.Go(func() { c.try(ctx, again) })
	}
	if lost || (!a.baseline && c.connects.idle()) {
		c.poke()
	}
}

func (c *connecting) connect(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	tell(conn, c.connected)
	return conn.Close()
}

// void reports whether a silent address need not lead to the Service any more. It asks the API
// server, since watches lag; without an answer, it must.
func (c *connecting) void(ctx context.Context, m mover, a netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	key := m.bridge
	if a == m.at || key.Name == "" {
		key = m.key
	}
	found := &corev1.ServiceList{}
	// Agents may list Services, and have no other right to see one.
	err := c.client.List(ctx, found, client.InNamespace(key.Namespace), client.MatchingFields{metav1.ObjectNameField: key.Name})
	if err != nil {
		return false
	}
	if len(found.Items) == 0 || !found.Items[0].DeletionTimestamp.IsZero() {
		return true
	}
	svc := shrinkService(&found.Items[0], []netip.Prefix{netip.PrefixFrom(m.at, m.at.BitLen())})
	if a == m.at {
		return svc.UID != m.uid || clusterIP(svc) != m.at
	}
	if key == m.key {
		return svc.UID != m.uid || !c.held(ctx, m, a)
	}
	return svc.Annotations[v1alpha1.AnnotationServiceUID] != string(m.uid) || !c.held(ctx, m, a)
}

// held reports whether an address is reserved for the Service or its bridge, as only replumb can
// do: annotations are anyone's. Without an answer, it is.
func (c *connecting) held(ctx context.Context, m mover, a netip.Addr) bool {
	ip := &networkingv1.IPAddress{}
	err := c.client.Get(ctx, client.ObjectKey{Name: a.String()}, ip)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	key, is := bridge.HeldFor(ip)
	return is && key == types.NamespacedName{Namespace: m.key.Namespace, Name: bridge.Name(m.key.Name, m.uid)}
}

func (c *connecting) report() *v1alpha1.ConnectReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connects.report(c.instance)
}
