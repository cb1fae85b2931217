package nodecleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/BurntSushi/toml"
)

// containerds are containerd's configurations: its own, K3s' and RKE2's.
func containerds() []string {
	return []string{
		"/etc/containerd/config.toml",
		"/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
		"/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
	}
}

const (
	crioFile = "/etc/crio/crio.conf"
	crioDir  = "/etc/crio/crio.conf.d"
)

// containerdConfig is its network part (docs/cri/config.md of github.com/containerd/containerd).
// The plugin's name tells the version.
type containerdConfig struct {
	Imports []string `toml:"imports"`
	Plugins struct {
		V1 criPlugin `toml:"cri"`
		V2 criPlugin `toml:"io.containerd.grpc.v1.cri"`
		V3 criPlugin `toml:"io.containerd.cri.v1.runtime"`
	} `toml:"plugins"`
}

type criPlugin struct {
	CNI struct {
		Dir string `toml:"conf_dir"`
		Max *int   `toml:"max_conf_num"`
		// Template is what containerd writes a configuration by.
		Template string `toml:"conf_template"`
	} `toml:"cni"`
	Containerd struct {
		// Runtimes may have networks of their own.
		Runtimes map[string]struct {
			Dir string `toml:"cni_conf_dir"`
		} `toml:"runtimes"`
	} `toml:"containerd"`
}

// crioConfig is what of CRI-O's is about networks (docs/crio.conf.5.md of github.com/cri-o/cri-o).
type crioConfig struct {
	Crio struct {
		Network struct {
			Default *string `toml:"cni_default_network"`
			Dir     *string `toml:"network_dir"`
		} `toml:"network"`
	} `toml:"crio"`
}

// runtimes are reasons why the runtime may not use the first file in the CNI directory. Each file
// that says so is a problem, since the version decides which one counts.
func runtimes(root *os.Root, _ NetworkTraces) ([]string, error) {
	var out []string
	for _, file := range containerds() {
		problems, err := containerd(root, file, map[string]bool{})
		if err != nil {
			return nil, err
		}
		out = append(out, problems...)
	}
	problems, err := crio(root)
	return append(out, problems...), err
}

func containerd(root *os.Root, file string, seen map[string]bool) ([]string, error) {
	if seen[file] {
		return nil, nil
	}
	seen[file] = true
	c := &containerdConfig{}
	if err := decode(root, file, c); err != nil {
		return []string{unknown(err)}, nil
	}
	var out []string
	for _, p := range []*criPlugin{&c.Plugins.V1, &c.Plugins.V2, &c.Plugins.V3} {
		out = append(out, p.problems(root, file)...)
	}
	for _, pattern := range c.Imports {
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(file), pattern)
		}
		files, err := fs.Glob(root.FS(), within(path.Clean(pattern)))
		if err != nil {
			return nil, fmt.Errorf("%s imports %q: %w", file, pattern, err)
		}
		for _, f := range files {
			problems, err := containerd(root, "/"+f, seen)
			if err != nil {
				return nil, err
			}
			out = append(out, problems...)
		}
	}
	return out, nil
}

func (p *criPlugin) problems(root *os.Root, file string) []string {
	var out []string
	if p.CNI.Max != nil && *p.CNI.Max != 1 {
		out = append(out, fmt.Sprintf(
			"%s sets max_conf_num to %d: pods would be in both networks at once; set it to 1 and restart containerd", file, *p.CNI.Max,
		))
	}
	if elsewhere(root, p.CNI.Dir) {
		out = append(out, fmt.Sprintf("%s sets conf_dir to %.60q: containerd does not read %s", file, p.CNI.Dir, confDir))
	}
	for name, r := range p.Containerd.Runtimes {
		if elsewhere(root, r.Dir) {
			out = append(out, fmt.Sprintf(
				"%s sets cni_conf_dir to %.60q: pods of the runtime %.60q get no network from %s", file, r.Dir, name, confDir,
			))
		}
	}
	slices.Sort(out)
	return out
}

// elsewhere reports another directory than replumb's; empty is the default.
func elsewhere(root *os.Root, dir string) bool {
	return dir != "" && follow(root, path.Clean(dir)) != follow(root, confDir)
}

// crio reads files in CRI-O's order, later ones overriding (UpdateFromPath in pkg/config).
func crio(root *os.Root) ([]string, error) {
	files := []string{crioFile}
	err := fs.WalkDir(root.FS(), within(crioDir), func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, "/"+name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var network, dir string
	var unread []string
	for _, file := range files {
		c := &crioConfig{}
		if err := decode(root, file, c); err != nil {
			unread = append(unread, unknown(err))
		}
		if v := c.Crio.Network.Default; v != nil {
			network = otherDefault(file, *v)
		}
		if v := c.Crio.Network.Dir; v != nil {
			dir = ""
			if elsewhere(root, *v) {
				dir = fmt.Sprintf("%s sets network_dir to %.60q: CRI-O does not read %s", file, *v, confDir)
			}
		}
	}
	return append(unread, slices.DeleteFunc([]string{network, dir}, isBlank)...), nil
}

func otherDefault(file, network string) string {
	if network == "" {
		return ""
	}
	return fmt.Sprintf(
		"%s sets cni_default_network to %.60q: CRI-O gives pods that network, whichever comes first in %s; remove the line and restart CRI-O",
		file, network, confDir,
	)
}

func unknown(err error) string { return fmt.Sprintf("what the runtime goes by is not known: %v", err) }

// decode reads a file of TOML. One that is not there sets nothing.
func decode(root *os.Root, file string, into any) error {
	body, err := root.ReadFile(within(follow(root, file)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := toml.Decode(string(body), into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// follow resolves an absolute link within the node's root, which an os.Root refuses.
func follow(root *os.Root, file string) string {
	for range 8 {
		to, err := root.Readlink(within(file))
		if err != nil || !path.IsAbs(to) {
			break
		}
		file = path.Clean(to)
	}
	return file
}
