// Package masquerade keeps source addresses of packets between two pod networks of a cluster.
//
// A network masquerades what leaves its range (FLANNEL-POSTRTG, natOutgoing), and so does
// kube-proxy for what it takes for no pod: a NetworkPolicy at the other end sees a node. Accepting
// earlier does not help, since the kernel visits all NAT chains of a hook until one decides
// (nf_nat_inet_fn in net/netfilter/nf_nat_core.c). So these rules come first, and translate to the
// same address.
//
// Connections that are older than the rules keep their address.
package masquerade
