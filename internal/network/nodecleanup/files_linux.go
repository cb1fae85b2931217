package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/replumb/replumb/internal/network/podnetwork"
)

const (
	confDir    = "/etc/cni/net.d"
	leaseDir   = "/var/lib/cni/networks"
	resultsDir = "/var/lib/cni/results"
)

// conf is a file of CNI configuration, of one plugin or several (containernetworking/cni SPEC.md).
type conf struct {
	Name    string   `json:"name"`
	Plugins []plugin `json:"plugins"`
	plugin  `         json:",inline"`
}

type plugin struct {
	Type     string  `json:"type"`
	Bridge   string  `json:"bridge"`
	Delegate *plugin `json:"delegate"`
	// IPAM is what each of its types takes.
	IPAM json.RawMessage `json:"ipam"`
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

// networkName is ValidateNetworkName's (github.com/containernetworking/cni pkg/utils). It becomes
// part of paths.
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// NameError is an impossible name of a network on the node, by which nothing is removed.
type NameError struct{ File, Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf(
		"%s names its network %.60q, which is no name of a network: correct the file, or remove it from the node",
		e.File, e.Name,
	)
}

// open opens the root of the node: no link leads out of it.
func (h Host) open() (*os.Root, error) {
	root, err := os.OpenRoot(h.Root)
	if err != nil {
		return nil, fmt.Errorf("the root of the node: %w", err)
	}
	return root, nil
}

func within(name string) string { return strings.TrimPrefix(name, "/") }

// confs reads /etc/cni/net.d and skips what is no configuration, though a runtime whose first file
// is none loads nothing (loadFromConfDir in github.com/containerd/go-cni).
func (h Host) confs() (map[string]*conf, error) {
	return h.configurations(extensions()...)
}

// putAside ends names of configurations that Cilium's agents set aside at their start
// (cni-exclusive; cleanupOtherCNI in daemon/cmd/cni of github.com/cilium/cilium).
const putAside = ".cilium_bak"

// known reads also those that are not loaded: what lies ready, and what has been put aside.
func (h Host) known() (map[string]*conf, error) {
	return h.configurations(append(extensions(), podnetwork.StagedSuffix, putAside)...)
}

func extensions() []string { return []string{".conf", ".conflist", ".json"} }

func (h Host) configurations(endings ...string) (map[string]*conf, error) {
	root, err := h.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), within(confDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]*conf{}
	for _, e := range entries {
		if !slices.Contains(endings, path.Ext(e.Name())) {
			continue
		}
		body, err := root.ReadFile(path.Join(within(confDir), e.Name()))
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

func (c *conf) of(n NetworkTraces) bool {
	return slices.ContainsFunc(c.all(), func(p plugin) bool {
		return slices.Contains(n.Plugins, p.Type) && (!n.fileOnly() || n.gives(p.IPAM))
	})
}

// bridges are those of the network, and never one that another configuration names.
func (h Host) bridges(n NetworkTraces) ([]string, error) {
	read := h.confs
	if n.fileOnly() { // it may have been put aside
		read = h.known
	}
	confs, err := read()
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

// confPart is the configuration, without which pods wait for the next network.
type confPart struct {
	Host
	NetworkTraces
}

func (p confPart) find() ([]string, error) {
	confs, err := p.known()
	if err != nil {
		return nil, err
	}
	var files []string
	for name, c := range confs {
		if c.of(p.NetworkTraces) {
			files = append(files, path.Join(confDir, name))
		}
	}
	for _, name := range p.Beside {
		files = append(files, path.Join(confDir, name))
	}
	slices.Sort(files)
	return p.present("file", files)
}

func (p confPart) remove() error { return p.unlink(p.find) }

// dirPart are directories of the network, leases and results of its pods.
type dirPart struct {
	Host
	NetworkTraces
	// nets are the configurations' names, which are gone when their leases are removed.
	nets []string
}

// names are those of present configurations, and the usual ones that are only this network's.
func (h Host) names(n NetworkTraces) ([]string, error) {
	confs, err := h.known()
	if err != nil {
		return nil, err
	}
	out := slices.Clone(n.Nets)
	for file, c := range confs {
		switch {
		case !c.of(n):
		case !networkName.MatchString(c.Name):
			return nil, &NameError{File: path.Join(confDir, file), Name: c.Name}
		default:
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
		dirs = append(dirs, path.Join(leaseDir, net))
	}
	found, err := p.present(directory, dirs)
	if err != nil {
		return nil, err
	}
	root, err := p.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), within(resultsDir))
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

// present names existing paths of the node. A link, such as /var/run, is followed once, within the
// node's root.
func (h Host) present(kind string, paths []string) ([]string, error) {
	root, err := h.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var out []string
	var seen []fs.FileInfo
	for _, name := range paths {
		info, err := root.Stat(within(name))
		if err == nil && kind == directory && isEmpty(root, within(name)) {
			continue
		}
		if err != nil || slices.ContainsFunc(seen, func(s fs.FileInfo) bool { return os.SameFile(s, info) }) {
			continue
		}
		seen = append(seen, info)
		out = append(out, kind+" "+name)
	}
	return out, nil
}

// directory is the kind of what is a directory. An empty one is nothing.
const directory = "directory"

func isEmpty(root *os.Root, name string) bool {
	all, err := unmounted(root, name)
	return err == nil && len(all) == 0
}

// unmounted skips entries with mounts, which are others', such as control groups in Cilium's
// directory.
func unmounted(root *os.Root, name string) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return nil, err
	}
	own, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		at := path.Join(name, e.Name())
		if info, err := root.Lstat(at); err == nil && device(info) == device(own) {
			out = append(out, at)
		}
	}
	return out, nil
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

func (h Host) unlink(find func() ([]string, error)) error {
	found, err := find()
	if err != nil {
		return err
	}
	root, err := h.open()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range found {
		kind, name, _ := strings.Cut(f, " ")
		remove := root.RemoveAll
		if kind == directory {
			remove = func(name string) error { return emptyOut(root, name) }
		}
		if err := remove(within(name)); err != nil {
			return fmt.Errorf("removing %s: %w", name, err)
		}
	}
	return nil
}

// emptyOut removes a directory and its content, or the content alone where something is mounted,
// such as for this pod.
func emptyOut(root *os.Root, name string) error {
	all, err := unmounted(root, name)
	if err != nil {
		return err
	}
	for _, at := range all {
		if err := root.RemoveAll(at); err != nil {
			return err
		}
	}
	_ = root.Remove(name)
	return nil
}
