package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	confDir    = "/etc/cni/net.d"
	leaseDir   = "/var/lib/cni/networks"
	resultsDir = "/var/lib/cni/results"
)

// conf is a file of CNI configuration, with one plugin or a list of them (containernetworking/cni SPEC.md).
type conf struct {
	Name    string   `json:"name"`
	Plugins []plugin `json:"plugins"`
	plugin  `json:",inline"`
}

type plugin struct {
	Type     string  `json:"type"`
	Bridge   string  `json:"bridge"`
	Delegate *plugin `json:"delegate"`
}

func (c *conf) all() []plugin {
	all := append([]plugin{c.plugin}, c.Plugins...)
	for _, p := range all {
		if p.Delegate != nil {
			all = append(all, *p.Delegate)
		}
	}
	return all
}

// confs reads what is in /etc/cni/net.d. Files that are no configuration are passed over: containerd would not take them either.
func (h Host) confs() (map[string]*conf, error) {
	entries, err := os.ReadDir(filepath.Join(h.Root, confDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]*conf{}
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(e.Name())) {
			continue
		}
		body, err := os.ReadFile(filepath.Join(h.Root, confDir, e.Name()))
		if err != nil {
			return nil, err
		}
		c := &conf{}
		if json.Unmarshal(body, c) == nil {
			out[e.Name()] = c
		}
	}
	return out, nil
}

func (c *conf) of(n Network) bool {
	return slices.ContainsFunc(c.all(), func(p plugin) bool { return slices.Contains(n.Plugins, p.Type) })
}

// bridges are those of the network, and never one that another configuration names.
func (h Host) bridges(n Network) ([]string, error) {
	confs, err := h.confs()
	if err != nil {
		return nil, err
	}
	var own, others []string
	if n.Bridge != "" {
		own = append(own, n.Bridge)
	}
	for _, c := range confs {
		for _, p := range c.all() {
			name := p.Bridge
			if p.Type == "bridge" && name == "" {
				name = "cni0" // the plugin's default
			}
			switch {
			case name == "":
			case c.of(n):
				own = append(own, name)
			default:
				others = append(others, name)
			}
		}
	}
	return slices.DeleteFunc(own, func(b string) bool { return slices.Contains(others, b) }), nil
}

// confPart is the configuration. Without it the kubelet starts no pods: those that ask meanwhile wait for the next network.
type confPart struct {
	Host
	Network
}

func (p confPart) find() ([]string, error) {
	confs, err := p.confs()
	if err != nil {
		return nil, err
	}
	var files []string
	for name, c := range confs {
		if c.of(p.Network) {
			files = append(files, path.Join(confDir, name))
		}
	}
	for _, name := range p.Beside {
		files = append(files, path.Join(confDir, name))
	}
	slices.Sort(files)
	return p.present("file", files), nil
}

func (p confPart) remove() error { return p.unlink(p.find) }

// dirPart are directories of the network, leases and results of its pods.
type dirPart struct {
	Host
	Network
	// nets are the names of its configurations, which are gone by the time that their leases are removed.
	nets []string
}

// names of the network's configurations, as long as they are there, and the usual ones that no one else's have.
func (h Host) names(n Network) ([]string, error) {
	confs, err := h.confs()
	if err != nil {
		return nil, err
	}
	out := slices.Clone(n.Nets)
	for _, c := range confs {
		if c.of(n) && c.Name != "" {
			out = append(out, c.Name)
		}
	}
	for _, c := range confs {
		if !c.of(n) {
			out = slices.DeleteFunc(out, func(name string) bool { return name == c.Name })
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (p dirPart) find() ([]string, error) {
	dirs := slices.Clone(p.Dirs)
	for _, net := range p.nets {
		if net == path.Base(net) && net != "." && net != ".." { // it comes from a file of others
			dirs = append(dirs, path.Join(leaseDir, net))
		}
	}
	found := p.present("directory", dirs)
	entries, err := os.ReadDir(filepath.Join(p.Root, resultsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		// libcni: <network>-<container>-<interface>
		if slices.ContainsFunc(p.nets, func(net string) bool { return strings.HasPrefix(e.Name(), net+"-") }) {
			found = append(found, "file "+path.Join(resultsDir, e.Name()))
		}
	}
	return found, nil
}

func (p dirPart) remove() error { return p.unlink(p.find) }

// present names those paths of the node that exist. /var/run is /run on most: a link is followed once.
func (h Host) present(kind string, paths []string) []string {
	var out []string
	var seen []fs.FileInfo
	for _, name := range paths {
		info, err := os.Stat(filepath.Join(h.Root, name))
		if err != nil || slices.ContainsFunc(seen, func(s fs.FileInfo) bool { return os.SameFile(s, info) }) {
			continue
		}
		seen = append(seen, info)
		out = append(out, kind+" "+name)
	}
	return out
}

func (h Host) unlink(find func() ([]string, error)) error {
	found, err := find()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(h.Root) // no link leads out of the node's own root
	if err != nil {
		return fmt.Errorf("the root of the node: %w", err)
	}
	defer func() { _ = root.Close() }()
	for _, f := range found {
		_, name, _ := strings.Cut(f, " ")
		if err := root.RemoveAll(strings.TrimPrefix(name, "/")); err != nil {
			return fmt.Errorf("removing %s: %w", name, err)
		}
	}
	return nil
}
