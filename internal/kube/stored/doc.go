// Package stored changes addresses of a Service in etcd, since no API lets them change: one
// transaction, guarded by the revision that was read. Watchers see one change of one Service.
//
// The object must be proven to be the cluster's: its UID, addresses and revision are those of the
// API server's answer. Keys are in k8s.io/kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go.
package stored
