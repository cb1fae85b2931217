// Package proxyrules keeps a copy of kube-proxy's rules on a node, under other names, while
// kube-proxy changes its mode: one that starts removes the rules of the other mode before it writes
// its own (platformCleanup in cmd/kube-proxy/app/server_linux.go of k8s.io/kubernetes), and until
// then the node leads to no Service.
//
// A copy leads where the rules led that it was made of. It comes after kube-proxy's own in every
// hook, so that those win as soon as there are any. Package nodecleanup takes it away.
package proxyrules

const (
	proxyPrefix = "KUBE-"
	proxyTable  = "kube-proxy"
)

// The modes of kube-proxy. Rules of mode ipvs are not copied: see ipvs.go.
const (
	IPTables = "iptables"
	NFTables = "nftables"
	IPVS     = "ipvs"
)
