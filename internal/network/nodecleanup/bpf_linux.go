package nodecleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// filterPart are BPF programs on others' interfaces; where the kernel has links (tcx), they are
// pinned.
type filterPart struct{ NetworkTraces }

func (p filterPart) filters() ([]*netlink.BpfFilter, []string, error) {
	if len(p.Filters) == 0 {
		return nil, nil, nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var out []*netlink.BpfFilter
	var names []string
	for _, l := range links {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			all, err := netlink.FilterList(l, parent)
			if err != nil { // the kernel has no filters, or the interface is gone
				continue
			}
			for _, f := range all {
				if b, ok := f.(*netlink.BpfFilter); ok && hasPrefix(p.Filters, b.Name) {
					out, names = append(out, b), append(names, fmt.Sprintf("filter %s of interface %s", b.Name, l.Attrs().Name))
				}
			}
		}
	}
	return out, names, nil
}

func (p filterPart) find() ([]string, error) {
	_, names, err := p.filters()
	return names, err
}

func (p filterPart) remove() error {
	all, names, err := p.filters()
	for i, f := range all {
		if e := netlink.FilterDel(f); e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("removing %s: %w", names[i], e))
		}
	}
	return err
}

// pinPart is what is in the file system of BPF.
type pinPart struct {
	Host
	NetworkTraces
}

func (p pinPart) find() ([]string, error) {
	root, err := p.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return p.pinned(root)
}

func (p pinPart) pinned(root *os.Root) ([]string, error) {
	var out []string
	for _, pattern := range p.Pins {
		found, err := fs.Glob(root.FS(), within(pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			out = append(out, "pinned "+path.Join("/", name))
		}
	}
	return out, nil
}

func (p pinPart) remove() error {
	root, err := p.open()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, pattern := range p.Pins {
		found, err := fs.Glob(root.FS(), within(pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			if err := root.RemoveAll(name); err != nil {
				return fmt.Errorf("removing /%s: %w", name, err)
			}
		}
	}
	return nil
}

// rulePart are a network's routing rules and tables, and the rule for local addresses where it has
// moved that.
type rulePart struct{ NetworkTraces }

func (p rulePart) rules() (own, moved []netlink.Rule, err error) {
	if len(p.RouteTables) == 0 {
		return nil, nil, nil
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RuleList(family)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("listing rules of routing: %w", err)
		}
		for i := range all {
			all[i].Family = family
			switch {
			case slices.Contains(p.RouteTables, all[i].Table):
				own = append(own, all[i])
			case all[i].Table == unix.RT_TABLE_LOCAL && all[i].Priority == p.LocalRule && p.LocalRule > 0:
				moved = append(moved, all[i])
			}
		}
	}
	return own, moved, nil
}

func (p rulePart) routes() ([]netlink.Route, error) {
	var out []netlink.Route
	for _, table := range p.RouteTables {
		all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		if errors.Is(err, unix.ENOENT) { // there is no such table
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing routes of table %d: %w", table, err)
		}
		out = append(out, all...)
	}
	return out, nil
}

func (p rulePart) find() ([]string, error) {
	own, moved, err := p.rules()
	if err != nil {
		return nil, err
	}
	routes, err := p.routes()
	var out []string
	for _, r := range own {
		out = append(out, fmt.Sprintf("rule %d for routing table %d", r.Priority, r.Table))
	}
	for _, r := range moved {
		out = append(out, fmt.Sprintf("rule for local addresses at %d in place of 0", r.Priority))
	}
	for _, r := range routes {
		out = append(out, fmt.Sprintf("route in table %d", r.Table))
	}
	return slices.Compact(out), err
}

func (p rulePart) remove() error {
	own, moved, err := p.rules()
	if err != nil {
		return err
	}
	for i := range own {
		if e := netlink.RuleDel(&own[i]); e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("removing the rule for routing table %d: %w", own[i].Table, e))
		}
	}
	for i := range moved {
		err = errors.Join(err, moveBack(&moved[i]))
	}
	routes, e := p.routes()
	err = errors.Join(err, e)
	for i := range routes {
		if e := netlink.RouteDel(&routes[i]); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("removing a route of table %d: %w", routes[i].Table, e))
		}
	}
	return err
}

// moveBack restores the rule for local addresses before the other goes: a node needs one to know
// its addresses.
func moveBack(moved *netlink.Rule) error {
	first := netlink.NewRule()
	first.Family, first.Table, first.Priority, first.Protocol = moved.Family, unix.RT_TABLE_LOCAL, 0, unix.RTPROT_KERNEL
	if err := netlink.RuleAdd(first); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("the rule for local addresses: %w", err)
	}
	if err := netlink.RuleDel(moved); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the rule for local addresses at %d: %w", moved.Priority, err)
	}
	return nil
}
