// Package tunneladdr keeps a node's tunnel addresses alive when the pod network takes them away.
//
// Connections from a node to other nodes' pods, through VXLAN or IPIP, have the tunnel's address.
// When Calico, or Cilium, replaces that, the kernel drops their packets, and they hang. They go on
// while the address is on loopback and other nodes route its block here.
package tunneladdr
