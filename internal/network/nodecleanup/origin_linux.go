package nodecleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/vishvananda/netlink"
)

// Origin finds whether the node's pods have their network from files alone, and as problems what
// keeps it from leaving that. Pods are this node's ranges; the finding is the file in use.
func (h Host) Origin(n NetworkTraces) (*TracesReport, error) {
	n = h.narrow(n)
	confs, err := h.confs()
	if err != nil {
		return nil, fmt.Errorf("looking what the node goes by: %w", err)
	}
	delete(confs, Preferred)
	names := slices.Sorted(maps.Keys(confs))
	r := &TracesReport{}
	switch {
	case len(names) == 0:
		r.Problems = append(r.Problems, confDir+" holds no configuration")
	case !confs[names[0]].of(n):
		r.Problems = append(r.Problems, fmt.Sprintf(
			"%s/%s comes first, and does not have %s give out addresses of %v to %v", confDir, names[0], n.IPAM, n.Within, n.Plugins,
		))
	case !networkName.MatchString(confs[names[0]].Name):
		r.Problems = append(r.Problems, (&NameError{File: path.Join(confDir, names[0]), Name: confs[names[0]].Name}).Error())
	default:
		r.Found = append(r.Found, "file "+path.Join(confDir, names[0]))
	}
	templates, err := h.templates()
	if err != nil {
		return nil, err
	}
	closed, err := outward()
	r.Problems = append(append(r.Problems, templates...), closed...)
	return r, err
}

// templates are files from which containerd writes a missing configuration (conf_template in
// docs/cri/config.md of github.com/containerd/containerd).
func (h Host) templates() ([]string, error) {
	root, err := h.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var out []string
	for _, file := range containerds() {
		c := &containerdConfig{}
		if err := decode(root, file, c); err != nil {
			out = append(out, unknown(err))
		}
		for _, p := range []*criPlugin{&c.Plugins.V1, &c.Plugins.V2, &c.Plugins.V3} {
			if p.CNI.Template != "" {
				out = append(out, fmt.Sprintf(
					"%s sets conf_template: containerd writes the file again that is to go; remove the line and restart containerd", file,
				))
			}
		}
	}
	return out, nil
}

// outward are interfaces to other machines with a strict rp_filter. Packets from the new network to
// the node's own arrive there, while answers take a tunnel.
func outward() ([]string, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var seen []int
	var out []string
	for _, r := range routes {
		if r.Gw == nil || slices.Contains(seen, r.LinkIndex) {
			continue
		}
		seen = append(seen, r.LinkIndex)
		l, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			return nil, fmt.Errorf("the interface of a route: %w", err)
		}
		strict, err := isStrict(l.Attrs().Name)
		if err != nil {
			return nil, err
		}
		if strict {
			out = append(out, strictOn(l.Attrs().Name))
		}
	}
	return out, nil
}

// isStrict is false for an interface that has gone.
func isStrict(name string) (bool, error) {
	all, err := reverse("all")
	if err != nil {
		return false, err
	}
	own, err := reverse(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return max(all, own) == 1, err // the larger one counts
}

func strictOn(name string) string {
	return fmt.Sprintf(
		"reverse path filtering is strict on %s: packets from pods of the other network would be dropped; write 2 to %s/%[1]s/rp_filter",
		name, sysctls,
	)
}
