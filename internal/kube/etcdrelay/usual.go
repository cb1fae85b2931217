package etcdrelay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/replumb/replumb/internal/kube/stored"
)

// Unusual says what of the flags of an API server is not as kubeadm makes them for the etcd of its
// node; empty, if all is.
func Unusual(flag func(name string) (value string, given bool), prefix string) string {
	servers, _ := flag("etcd-servers")
	if !slices.ContainsFunc(Local(), func(address string) bool { return servers == "https://"+address }) {
		return fmt.Sprintf("--etcd-servers=%s, which is not https://%s, the etcd of its own node", servers, Local()[0])
	}
	if at, _ := flag("etcd-prefix"); cmp.Or(at, stored.DefaultPrefix) != prefix {
		return fmt.Sprintf("--etcd-prefix=%s, and spec.serviceCIDR.etcd.prefix is %s", cmp.Or(at, stored.DefaultPrefix), prefix)
	}
	if elsewhere, given := flag("etcd-servers-overrides"); given && elsewhere != "" {
		return fmt.Sprintf("--etcd-servers-overrides=%s, so that what it keeps may be in another etcd", elsewhere)
	}
	files := Files()
	for i, name := range []string{"etcd-cafile", "etcd-certfile", "etcd-keyfile"} {
		want := []string{files.CA, files.Cert, files.Key}[i]
		if have, _ := flag(name); have != want {
			return fmt.Sprintf("--%s=%s, which is not %s", name, have, want)
		}
	}
	return ""
}
