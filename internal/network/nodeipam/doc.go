// Package nodeipam is what there is to changing the range of pod addresses on clusters whose Nodes carry their range in
// spec.podCIDR, which is immutable: which range each Node gets, how a Node object is recreated without anything noticing,
// and whether controller managers hand out ranges.
package nodeipam
