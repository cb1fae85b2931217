// The command flannel is flannel for a lab: flanneld and the CNI plugin of that name, told apart by the name it is called by.
// flanneld is put together from flannel's own packages, as flannel's main is; that one does not build here, because it brings
// the clients of clouds along. The plugin is in a module of its own which the proxy of modules does not have; so it is written
// after its description (https://github.com/flannel-io/cni-plugin#operation), around the bridge plugin.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "flanneld":
		err = flanneld(os.Args[1:])
	case "flannel":
		runPlugin()
	default:
		err = fmt.Errorf("flannel does not know what to be as %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
