package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

var errNotRoot = errors.New("a lab makes network namespaces and mounts, for which it must be root\nhint: run it with sudo")

type tool struct{ command, pkg string }

// tools are the programs that a lab, or a component in it, runs, by the Debian package they come in.
func tools(t Topology) []tool {
	all := []tool{
		{"runc", "runc"},
		{"iptables", "iptables"},
		{"nft", "nftables"},
		{"conntrack", "conntrack"},
		{"ipset", "ipset"},
		{"ip", "iproute2"},
		{"nsenter", "util-linux"},
	}
	if t.Edge {
		all = append(all, tool{"haproxy", "haproxy"}, tool{"named", "bind9"})
	}
	if t.runsCilium() {
		all = append(all, tool{clang, clang})
	}
	return all
}

// MissingError lists the Debian packages that are needed and not installed.
type MissingError struct{ Commands, Packages []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("not installed: %s\nhint: apt-get install -y %s", strings.Join(e.Commands, ", "), strings.Join(e.Packages, " "))
}

// Preflight reports what this machine lacks for such a lab.
func Preflight(t Topology) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	var missing MissingError
	for _, needed := range tools(t) {
		if _, err := exec.LookPath(needed.command); err != nil {
			missing.Commands = append(missing.Commands, needed.command)
			missing.Packages = append(missing.Packages, needed.pkg)
		}
	}
	if len(missing.Commands) > 0 {
		return &missing
	}
	return nil
}
