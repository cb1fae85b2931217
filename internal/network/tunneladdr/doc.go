// Package tunneladdr keeps the addresses of a node's tunnels alive when the pod network takes them away.
//
// What a node itself opens to a pod of another node, through VXLAN or IPIP, has the address of the node's tunnel. When
// Calico gives the tunnel another address, it removes the old one, and the kernel drops whatever still comes for it:
// connections that are open hang until they time out. As long as the node has the address on its loopback interface, and
// other nodes route the block that it lies in to the node, they go on.
package tunneladdr
