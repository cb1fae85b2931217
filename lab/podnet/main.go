// Command podnet is the network agent of a lab's machines, as kindnet's and flannel's are on real ones: it gives the CNI
// plugin of its node the range in the Node's podCIDR, and the machine routes to the ranges of all other nodes.
//
// A Node that is deleted and recreated, with another range or the same one, costs no packet: the CNI configuration
// stays until there is another range to write, and the route to a range that its node has no more stays for as long as a
// pod has an address in it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &agent{log: slog.Default(), table: kernel{}, since: staleTimes{}}
	kubeconfig := flag.String("kubeconfig", "", "access to the cluster")
	flag.StringVar(&a.node, "node", "", "name of this machine's Node; without it, only routes are kept")
	flag.StringVar(&a.config, "config", "", "file of the CNI configuration to keep")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return a.run(ctx, client)
}
