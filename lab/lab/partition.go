package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// healLimit bounds the end of a partition; it takes an instant.
const healLimit = 15 * time.Second

// Partition cuts a machine off from others, or from everything if none are named, for a while. Packets between them vanish in the network, and
// neither side is told: that is what a switch does that has failed. It has healed when Partition returns, also if ctx ended before.
func (l Fabrics) Partition(ctx context.Context, name string, from []string, length time.Duration) (err error) {
	cut, err := l.cut(name, from)
	if err != nil {
		return err
	}
	table := "cut-" + name
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), healLimit)
		defer cancel()
		if _, healed := l.Exec(within, l.forwarder(), "nft", "delete table netdev "+table); healed != nil {
			err = errors.Join(err, fmt.Errorf("healing the partition of %s: %w", name, healed))
		}
	}()
	if _, err := l.Exec(ctx, l.forwarder(), "nft", "add table netdev "+table+"; "+strings.Join(cut, "; ")); err != nil {
		return fmt.Errorf("cutting %s off: %w", name, err)
	}
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut is what drops the packets of a machine in the fabric, at the port that it is plugged into, both ways.
func (l Fabrics) cut(name string, from []string) ([]string, error) {
	m := l.member(name)
	if m == nil || l.isGuest() {
		return nil, fmt.Errorf("lab %s has no machine %q in a fabric of its own", l.Topology.Name, name)
	}
	var addresses []string
	for _, other := range from {
		o := l.member(other)
		if o == nil {
			return nil, fmt.Errorf("lab %s has no machine %q", l.Topology.Name, other)
		}
		addresses = append(addresses, o.Address.String())
	}
	table := "netdev cut-" + name
	var cut []string
	for chain, hook := range map[string][2]string{"from": {"ingress", "daddr"}, "to": {"egress", "saddr"}} {
		drop := "drop"
		if len(addresses) > 0 {
			drop = fmt.Sprintf("ip %s { %s } drop", hook[1], strings.Join(addresses, ", "))
		}
		cut = append(cut,
			fmt.Sprintf("add chain %s %s { type filter hook %s device %q priority 0; }", table, chain, hook[0], l.linkOf(m)),
			fmt.Sprintf("add rule %s %s %s", table, chain, drop))
	}
	return cut, nil
}
