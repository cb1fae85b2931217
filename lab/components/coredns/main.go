// Command coredns is CoreDNS with the plugins of the Corefile that kubeadm writes, and no others: the default build
// also carries cloud providers' SDKs, which take minutes to compile and are never used here.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query, as in CoreDNS's plugin.cfg.
	dnsserver.Directives = []string{
		"reload", "bind", "debug", "ready", "health", "prometheus", "errors", "log", "loadbalance", "cache",
		"rewrite", "template", "kubernetes", "loop", "forward",
	}
	coremain.Run()
}
