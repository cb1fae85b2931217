// The command calico is Calico for a lab: the CNI plugin, the IPAM plugin and what installs them, Felix, and parts of calico-node,
// told apart by the name it is called by: what writes a Node's address on it, what gives nodes their tunnel addresses, and what
// keeps the plugin's token good. It adds nothing of its own.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/projectcalico/calico/cni-plugin/pkg/install"
	"github.com/projectcalico/calico/cni-plugin/pkg/ipamplugin"
	"github.com/projectcalico/calico/cni-plugin/pkg/plugin"
	"github.com/projectcalico/calico/felix/daemon"
	"github.com/projectcalico/calico/node/pkg/allocateip"
	"github.com/projectcalico/calico/node/pkg/cni"
	"github.com/projectcalico/calico/node/pkg/lifecycle/startup"
)

var version = "dev"

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "calico":
		plugin.Main(version)
	case "calico-ipam":
		ipamplugin.Main(version)
	case "calico-felix":
		daemon.Run("/etc/calico/felix.cfg", version, "", "")
	case "calico-allocate-tunnel-addrs": // calico-node -allocate-tunnel-addrs, as a service
		if slices.Contains(os.Args[1:], "-allocate-tunnel-addrs-run-once") {
			allocateip.Run(nil)
			return
		}
		allocateip.Run(make(chan struct{}))
	case "calico-startup": // calico-node -startup
		startup.Run()
	case "calico-monitor-token": // calico-node -monitor-token
		cni.Run()
	case "install": // of the image calico/cni
		if err := install.Install(version); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "calico does not know what to be as %q\n", name)
		os.Exit(2)
	}
}
