// Package nodeipam changes pod ranges on clusters whose Nodes carry theirs in the immutable
// spec.podCIDR: it allocates ranges, recreates Node objects unnoticed, and finds out whether
// controller managers hand out ranges.
package nodeipam
