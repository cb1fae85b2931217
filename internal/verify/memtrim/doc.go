// Package memtrim keeps small what a process takes that runs for long beside others.
package memtrim
