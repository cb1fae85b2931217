// Package masquerade keeps the addresses of pods as they are when a packet goes from one network of pods to another on the same cluster.
//
// A network knows its own range, and takes every other address for the world outside: flannel and Calico give what leaves their range the
// address of the node (FLANNEL-POSTRTG, natOutgoing), and so does kube-proxy with what it does not take for a pod's. A NetworkPolicy at the
// other end then sees a node. No rule that accepts helps: the kernel goes through all NAT chains of a hook until one has said what becomes
// of the connection (nf_nat_inet_fn in net/netfilter/nf_nat_core.c), and accepting says nothing. So these rules come first, and give the
// packet the address that it has.
//
// Connections that were opened before the rules were there keep the address that they got.
package masquerade
