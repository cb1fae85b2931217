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
func tools(edge bool) []tool {
	if edge {
		return append(tools(false), tool{"haproxy", "haproxy"}, tool{"named", "bind9"})
	}
	return []tool{
		{"runc", "runc"},
		{"iptables", "iptables"},
		{"nft", "nftables"},
		{"conntrack", "conntrack"},
		{"ipset", "ipset"},
		{"ip", "iproute2"},
		{"nsenter", "util-linux"},
	}
}

// MissingError lists the Debian packages that are needed and not installed.
type MissingError struct{ Commands, Packages []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("not installed: %s\nhint: apt-get install -y %s", strings.Join(e.Commands, ", "), strings.Join(e.Packages, " "))
}

// Preflight reports what this machine lacks for a lab, with an edge or without.
func Preflight(edge bool) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	var missing MissingError
	for _, t := range tools(edge) {
		if _, err := exec.LookPath(t.command); err != nil {
			missing.Commands = append(missing.Commands, t.command)
			missing.Packages = append(missing.Packages, t.pkg)
		}
	}
	if len(missing.Commands) > 0 {
		return &missing
	}
	return nil
}
