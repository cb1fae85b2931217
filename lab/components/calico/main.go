// The command calico is Calico for a lab: the CNI plugin, the IPAM plugin, Felix, and the one part of calico-node that gives
// nodes their tunnel addresses, told apart by the name it is called by. It adds nothing of its own.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/projectcalico/calico/cni-plugin/pkg/ipamplugin"
	"github.com/projectcalico/calico/cni-plugin/pkg/plugin"
	"github.com/projectcalico/calico/felix/daemon"
	"github.com/projectcalico/calico/node/pkg/allocateip"
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
		allocateip.Run(make(chan struct{}))
	default:
		fmt.Fprintf(os.Stderr, "calico does not know what to be as %q\n", name)
		os.Exit(2)
	}
}
