package agent

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
)

// ResolvConf is where kubelet writes down where a pod looks names up.
const ResolvConf = "/etc/resolv.conf"

// DomainOf is the cluster's domain, by the first search domain in a pod's resolv.conf; else empty.
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
