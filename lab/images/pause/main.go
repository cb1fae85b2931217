// Command pause holds a pod's namespaces open: the sandbox container of the lab.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "-v" { // by which kubeadm sees that Jobs run, before it upgrades
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
