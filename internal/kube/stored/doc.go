// Package stored changes Services and their IPAddresses in etcd, since no API changes the address
// of a Service: in one transaction, guarded by the revisions that were read and by the lock of the
// migration. Watchers see one change of each object.
//
// The Service must be proven to be the cluster's: its UID, addresses and revision are those of the
// API server's answer.
package stored
