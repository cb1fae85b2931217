// Package probe measures what clients of a cluster live through. It sends requests on a fixed schedule (an open loop:
// a slow answer never delays the next request, and latency counts from the scheduled time), and reports one Window per
// target and second. Windows are plain values: Series, Stats and Loss are computed from them without any I/O, in the
// process that probed or in another one.
package probe
