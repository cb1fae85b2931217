package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/machine"
)

// forwarderName is the host name of the machine by which the host reaches the API servers of a lab that has no fabric of its own.
const forwarderName = "forwarder"

// Fabric is what joins the machines of several labs: a router that knows the networks of all.
type Fabric struct {
	Name string `json:"name"`
	// Owner is the lab that was the first. It cannot be taken down before the others.
	Owner string `json:"owner"`
	// Labs are all that are joined, the owner included.
	Labs []string `json:"labs"`
}

// Fabric is the one that a lab shares with others, or may; nil, if it was brought up without.
func (l *Lab) Fabric() *Fabric {
	if l.Topology.Fabric == "" {
		return nil
	}
	f := &Fabric{Name: l.Topology.Fabric, Owner: l.Fabrics().owner(), Labs: []string{l.Topology.Name}}
	for _, other := range l.Fabrics().others() {
		f.Labs = append(f.Labs, other.Topology.Name)
	}
	slices.Sort(f.Labs)
	return f
}

// owner is the lab whose fabric this one is in.
func (l Fabrics) owner() string {
	if l.FabricOf != "" {
		return l.FabricOf
	}
	return l.Topology.Name
}

func (l Fabrics) isGuest() bool { return l.FabricOf != "" }

// others are the labs in the same fabric, as they have written themselves down.
func (l Fabrics) others() []*Lab {
	var others []*Lab
	for _, name := range List() {
		if name == l.Topology.Name {
			continue
		}
		if other, err := Open(name); err == nil && other.Topology.Fabric == l.Topology.Fabric {
			others = append(others, other)
		}
	}
	return others
}

// enter claims the lab's name and, in a fabric, its place there, and writes both down for others to see.
func enter(t Topology) (l *Lab, leave func(), err error) {
	l = newLab(t)
	if t.Fabric == "" {
		leave, err = claim(t.Name)
		return l, leave, err
	}
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		return nil, nil, err
	}
	// Two that come at once must not both think they are the first.
	enough, err := lockDir(stateRoot, unix.LOCK_EX)
	if err != nil {
		return nil, nil, err
	}
	defer enough()
	others := l.Fabrics().others()
	release := func() {}
	if len(others) > 0 {
		if l, release, err = visit(t, others); err != nil {
			return nil, nil, err
		}
	}
	unlock, err := claim(t.Name)
	if err != nil {
		release()
		return nil, nil, err
	}
	leave = func() { unlock(); release() }
	if err := l.save(); err != nil {
		leave()
		return nil, nil, errors.Join(err, os.RemoveAll(stateDir(t.Name)))
	}
	return l, leave, nil
}

// visit makes a lab that is in the fabric of another, which stays as it is until release.
func visit(t Topology, others []*Lab) (l *Lab, release func(), err error) {
	i := slices.IndexFunc(others, func(o *Lab) bool { return !o.Fabrics().isGuest() })
	if i < 0 {
		return nil, nil, &InvalidError{
			"fabric", fmt.Sprintf("the lab that made %q is gone, and %s is left", t.Fabric, others[0].Topology.Name),
			"replumb-lab down --name " + others[0].Topology.Name,
		}
	}
	owner := others[i]
	if err := t.fits(owner, others); err != nil {
		return nil, nil, err
	}
	release, err = lockDir(stateDir(owner.Topology.Name), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil, &BusyError{Name: owner.Topology.Name}
	}
	if err != nil {
		return nil, nil, err
	}
	return newGuest(t, owner.Topology.Name), release, nil
}

// fits reports the first thing by which a lab cannot be in a fabric with the others as an *InvalidError.
func (t Topology) fits(owner *Lab, others []*Lab) error {
	if t.Edge && !owner.Topology.Edge {
		return &InvalidError{
			"edge",
			fmt.Sprintf("lab %s, which made the fabric, has no name server", owner.Topology.Name),
			"bring it up with --edge as well",
		}
	}
	taken := func(n Network, by, what string) error {
		return &InvalidError{"networks", fmt.Sprintf("%s=%s: lab %s has %s", n.Name, n.CIDR, by, what), "choose others with --networks"}
	}
	for _, other := range others {
		name := other.Topology.Name
		for _, n := range t.Networks {
			for _, m := range other.Fabrics().joined() {
				if n.Name == m.Name || n.CIDR.Overlaps(m.CIDR) {
					return taken(n, name, "network "+m.Name+"="+m.CIDR.String())
				}
			}
			for _, p := range []netip.Prefix{other.Topology.PodCIDR, other.Topology.ServiceCIDR} {
				if n.CIDR.Overlaps(p) {
					return taken(n, name, "addresses of "+p.String())
				}
			}
		}
		for _, m := range other.Fabrics().joined() {
			for _, p := range []netip.Prefix{t.PodCIDR, t.ServiceCIDR} {
				if m.CIDR.Overlaps(p) {
					return &InvalidError{
						"networks",
						fmt.Sprintf("%s overlaps network %s of lab %s", p, m.Name, name),
						"choose ranges that have no address in common",
					}
				}
			}
		}
	}
	return nil
}

// joined are the networks that this lab adds to the fabric.
func (l Fabrics) joined() []Network {
	if !l.Topology.Edge || l.isGuest() {
		return l.Topology.Networks
	}
	return append(slices.Clip(l.Topology.Networks), outside())
}

// forwarder is the machine by which the host reaches the API servers.
func (l Fabrics) forwarder() string {
	if l.isGuest() {
		return forwarderName
	}
	return fabricName
}

// borrowed are the machines that a lab uses and another one has.
func (l Fabrics) borrowed() []string {
	if !l.isGuest() || !l.Topology.Edge {
		return nil
	}
	return []string{nameServerName, bastionName}
}

// joinFabric adds the lab's networks to the fabric of another, and starts the machine by which the host reaches the lab.
func (l Fabrics) join(ctx context.Context) (*namespace, error) {
	fabric, err := l.fabric(ctx)
	if err != nil {
		return nil, fmt.Errorf("fabric of lab %s: %w", l.FabricOf, err)
	}
	if err := fabric.addNetworks(l.joined()); err != nil {
		return nil, err
	}
	m := l.with(Forwarder)[0]
	spec := l.machineSpec(m.Name)
	listener, err := l.machines().balance(&spec)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	return fabric, l.machines().startOn(ctx, fabric, spec, listener, m, map[string][]byte{})
}

// linkOf is what the fabric calls the link of a member. The name of a member is its own lab's business; no two have an address.
func (l Fabrics) linkOf(m *Member) string {
	if !l.isGuest() {
		return m.Name
	}
	return fmt.Sprintf("%s-%x", m.Role[:1], m.Address.As4())
}

// leaveFabric takes out of the fabric what a lab has added. If the fabric is gone, so is all that.
func (l Fabrics) leave(ctx context.Context) error {
	on := machine.Open(l.machineSpec(fabricName))
	if _, err := on.Info(ctx); err != nil {
		return nil
	}
	if l.Topology.Edge {
		// Names that lead nowhere do no harm, and are replaced when the lab comes back.
		_ = l.edging().leave(ctx)
	}
	fabric, err := network(ctx, on)
	if err != nil {
		return err
	}
	defer fabric.Close()
	return fabric.removeNetworks(l.joined())
}

// requireAlone fails with an *InvalidError as long as other labs are in the fabric of the one of that name.
func requireAlone(name string) error {
	l, err := Open(name)
	if err != nil || l.Fabrics().isGuest() || l.Topology.Fabric == "" {
		return nil //nolint:nilerr // whatever is left of it, no lab is in it
	}
	var guests, commands []string
	for _, other := range l.Fabrics().others() {
		if other.FabricOf == name {
			guests = append(guests, other.Topology.Name)
			commands = append(commands, "replumb-lab down --name "+other.Topology.Name)
		}
	}
	if len(guests) == 0 {
		return nil
	}
	return &InvalidError{
		"name", fmt.Sprintf("machines of %s are plugged into the fabric of lab %s", strings.Join(guests, ", "), name),
		strings.Join(commands, " && ") + " first",
	}
}
