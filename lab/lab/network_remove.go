package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// RemoveNetwork takes a network away, and its load balancer with it. It fails with an *InvalidError as long as there are nodes
// or control planes in it.
func (l Fabrics) RemoveNetwork(ctx context.Context, name string) error {
	return l.changed(func() error {
		network, balancers, err := l.vacant(name)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, downDeadline)
		defer cancel()
		for _, balancer := range balancers {
			if err := l.machines().unplug(ctx, balancer); err != nil {
				return err
			}
		}
		fabric, err := l.fabric(ctx)
		if err != nil {
			return err
		}
		defer fabric.Close()
		if err := fabric.removeNetworks([]Network{network}); err != nil {
			return err
		}
		l.Topology.Networks = slices.DeleteFunc(l.Topology.Networks, func(n Network) bool { return n.Name == name })
		return nil
	})
}

// vacant returns a network that is no longer needed, and the balancers that go with it.
func (l Fabrics) vacant(name string) (network Network, balancers []string, err error) {
	invalid := func(problem, hint string) error { return &InvalidError{"network", problem, hint} }
	network, ok := l.Topology.network(name)
	if !ok {
		return network, nil, invalid(
			fmt.Sprintf("lab %s has no network %q", l.Topology.Name, name), "it has "+networkNames(l.Topology.Networks))
	}
	if !l.Topology.Edge && name == l.Topology.Networks[0].Name {
		return network, nil, invalid(
			"nodes call the API at an address of the first one",
			"use a lab with --edge, where they call it by name",
		)
	}
	var there []string
	for _, m := range l.Members {
		switch {
		case m.Network != name:
		case m.Role == LoadBalancer:
			balancers = append(balancers, m.Name)
		default:
			there = append(there, m.Name)
		}
	}
	if len(there) > 0 {
		return network, nil, invalid(
			fmt.Sprintf("%s is not empty: there is %s", name, strings.Join(there, ", ")),
			"replumb-lab node remove them first",
		)
	}
	return network, balancers, nil
}
