// Package workload describes what runs in a lab's cluster so that there is traffic to lose: a small shop of echo
// servers, further Services that populate the range, and probing clients pinned to nodes. Everything is a typed object;
// Ensure and WaitReady bring it into a cluster.
package workload
