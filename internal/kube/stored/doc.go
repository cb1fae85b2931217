// Package stored changes the addresses of a Service where API servers keep it, in etcd, since no API lets them change: one transaction, guarded
// by the revision that was read, of the object as it was written but for the addresses. Everyone who watches sees one change of one Service.
//
// Nothing is written unless it is proven to be the cluster's: the object in etcd has the UID, the addresses and the revision that the API server
// answers with. Where API servers keep Services is in k8s.io/kubernetes pkg/kubeapiserver/default_storage_factory_builder.go.
package stored
