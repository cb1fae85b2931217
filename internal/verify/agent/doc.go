// Package agent is what runs on every node while a migration goes on: it passes barriers, probes, connects to Services that have
// moved, and tells who still uses old addresses, in the NodeReport of its node. It gets no orders: it watches the objects that
// a migration consists of, and an agent that is killed begins again from there. See docs/design/proof.md.
package agent
