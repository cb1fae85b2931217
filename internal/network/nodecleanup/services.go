package nodecleanup

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// ServiceQuery is a question to a node: who leads to Services there.
type ServiceQuery struct {
	Host
	// Reach are addresses with ports that have to take connections over TCP, from the node itself.
	Reach []string
	// Programmed needs rules of kube-proxy; Unprogrammed, a Service of after its end, must have
	// none. Invalid ones are not looked for.
	Programmed, Unprogrammed netip.Addr
	// InIPVS says that kube-proxy has mode ipvs: its rules are virtual servers.
	InIPVS bool
	// Timeout is how long either may take to hold, and Quiet how long Unprogrammed must.
	Timeout, Quiet time.Duration
}

const (
	// every is how often a node is looked at.
	every = time.Second
	// dialTime is how long one connection may take.
	dialTime = 2 * time.Second
)

// reach connects to each address until it answers. It returns a sentence for each that does not.
func (s ServiceQuery) reach(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	var out []string
	for _, address := range s.Reach {
		if err := until(ctx, func() error { return dial(ctx, address) }); err != nil {
			out = append(out, fmt.Sprintf("%s takes no connection from the node itself: %v", address, err))
		}
	}
	return out
}

func dial(ctx context.Context, address string) error {
	d := net.Dialer{Timeout: dialTime}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

// until retries until ctx ends, and returns the last telling error.
func until(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// inSave reports whether iptables-save has a rule in kube-proxy's chain for packets to an address.
func inSave(save string, to netip.Addr) bool {
	for line := range strings.Lines(save) {
		rest, ours := strings.CutPrefix(line, "-A "+proxyChain+" ")
		if ours && strings.Contains(" "+rest, fmt.Sprintf(" -d %s/%d ", to, to.BitLen())) {
			return true
		}
	}
	return false
}
