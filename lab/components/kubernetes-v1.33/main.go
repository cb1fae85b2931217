// Command kubernetes is one multi-call binary of the stock Kubernetes components of the lab: which one runs is decided
// by the name it is called by (a symlink), as in busybox or hyperkube. One binary shares most of its code between
// components, which keeps the build time and the size of the cache down.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // auth plugins of kubectl
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps the name the binary is called by to what it then does. The names are those upstream's own binaries
// have, so that configuration and documentation written for them apply.
func components() map[string]func() int {
	return map[string]func() int{
		"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
		"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
		"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
		"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
		"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand()) },
		"kubectl": func() int {
			util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
			return 0
		},
	}
}

func main() {
	all := components()
	name := filepath.Base(os.Args[0])
	run, known := all[name]
	if !known {
		names := make([]string, 0, len(all))
		for n := range all {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: call this binary by the name of a component: %v\n", name, names)
		os.Exit(2)
	}
	os.Exit(run())
}
