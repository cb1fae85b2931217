package noderanges

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// checkMaker goes by what installers and clouds leave on Nodes.
func checkMaker(in Input) []findings.Result {
	if in.Pooled {
		return findings.Skip("controller managers give nothing: Cilium's operator gives the ranges")
	}
	d := inventory.DistributionOf(in.Inventory.Nodes)
	if why := fixed(d, in.Inventory.Workloads.DaemonSets); why != "" {
		return []findings.Result{findings.Failed("", "the cluster is %s: %s", d, why)}
	}
	return nil
}

// fixed says why Nodes of a distribution cannot have other ranges; empty, if they can.
func fixed(d inventory.Distribution, sets []appsv1.DaemonSet) string {
	sets = slices.DeleteFunc(slices.Clone(sets), func(ds appsv1.DaemonSet) bool {
		policies := podnetwork.Program(&ds) != "" && podnetwork.Of(&ds) == ""
		return policies || podnetwork.Name(&ds) == ""
	})
	switch {
	case d == inventory.GKE:
		return "ranges of Nodes are alias ranges of machines, and the VPC routes no others; new node pools can have another (--pod-ipv4-range)"
	case d.Owner() != "":
		return "its control plane is run by " + d.Owner() + ", and the flags of the controller manager are theirs"
	case d == inventory.KOps:
		return "it sets --allocate-node-cidrs by itself, whatever kubeControllerManager.allocateNodeCIDRs of the cluster's spec says"
	case d == inventory.K3s && len(sets) == 0:
		return "flannel is part of its program, and keeps the range that the Node had when it started"
	case d == inventory.RKE2 && slices.ContainsFunc(sets, ofRKE2):
		return "its pod network comes from a chart of RKE2, which supports no other cluster-cidr on a running cluster"
	}
	return ""
}

// ofRKE2 reports whether a network is Canal or another of RKE2's charts (rke2-flannel and others,
// in github.com/rancher/rke2-charts).
func ofRKE2(ds appsv1.DaemonSet) bool {
	return podnetwork.Of(&ds) == v1alpha1.Canal || strings.HasPrefix(ds.Annotations["meta.helm.sh/release-name"], "rke2-")
}
