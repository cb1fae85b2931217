package agent

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
)

// ResolvConf is where kubelet writes down where a pod looks names up.
const ResolvConf = "/etc/resolv.conf"

// DomainOf is the domain of the cluster by what kubelet has written in a pod's resolv.conf, whose first search domain is that of the
// pod's namespace; empty if it says nothing.
func DomainOf(resolvConf string) string {
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return ""
	}
	for _, s := range config.Search {
		if domain, ok := strings.CutPrefix(s, v1alpha1.SystemNamespace+".svc."); ok {
			return strings.TrimSuffix(domain, ".")
		}
	}
	return ""
}
