package services

import (
	corev1 "k8s.io/api/core/v1"
)

// identities are Services known by their ClusterIP where neither a name nor a restart corrects it.
func identities() []identity {
	return []identity{
		// Rook without hostNetwork: the monmap holds ClusterIPs, and monitors cannot change theirs.
		{"app", "rook-ceph-mon", "is a Ceph monitor: its address is in the monmap, and Ceph gives a monitor no other"},
		// OpenEBS: the volumes' custom resources and the nodes' iSCSI databases hold the ClusterIP.
		{"openebs.io/target-service", "cstor-target-svc", "is the target of a cStor volume: nodes are logged in to its address by iSCSI"},
		{"openebs.io/component", "jiva-controller-service", "is the target of a Jiva volume: nodes are logged in to its address by iSCSI"},
		{
			"openebs.io/controller-service",
			"jiva-controller-svc",
			"is the target of a Jiva volume: nodes are logged in to its address by iSCSI",
		},
		// Longhorn's shared volumes: the kernels of nodes have the ClusterIP mounted by NFS.
		{"longhorn.io/share-manager", "", "is the share of a Longhorn volume: nodes have its address mounted by NFS"},
	}
}

// identity is a label by which such a Service is known. No value means any.
type identity struct{ label, value, text string }

// identityOf says why the address of a Service is its identity; nothing, if it is not.
func identityOf(svc *corev1.Service) string {
	for _, i := range identities() {
		if value, labelled := svc.Labels[i.label]; labelled && (i.value == "" || i.value == value) {
			return i.text
		}
	}
	return ""
}
