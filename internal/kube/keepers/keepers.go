// Package keepers finds out who writes an object again that was changed or deleted.
package keepers

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HeldBy says who recreates an object that is deleted, how that is seen, and the way out where
// RP5103 does not say it; nothing, if no one does. comesBack says that it happens by itself.
func HeldBy(o metav1.Object) (by string, comesBack bool) {
	for _, k := range keepers() {
		if by = k(o); by != "" {
			return by, true
		}
	}
	if release := o.GetAnnotations()["meta.helm.sh/release-name"]; release != "" {
		return "Helm (release " + release + ")", false
	}
	return "", false
}

// keepers are asked in turn: a platform before the tools that it uses. A ClusterResourceSet of
// Cluster API (internal/controllers/clusterresourceset in sigs.k8s.io/cluster-api) leaves no mark;
// EKS marks its add-ons by the manager of fields alone, and has no network that replumb replaces.
func keepers() []func(metav1.Object) string {
	return []func(metav1.Object) string{ofPlatform, ofOwner, ofAddons, ofGitOps}
}

// ofPlatform is one whose own network this is, for as long as there is the cluster.
//
//   - OpenShift: what cluster-network-operator renders has annotations of its own (pkg/names),
//     and its owner is the Network "cluster".
//   - GKE: components.gke.io/component-name and component-version. AKS:
//     kubernetes.azure.com/managedby.
//   - RKE2: helm-controller installs its charts as releases of these names (charts/ in
//     github.com/rancher/rke2), and installs them again with each version.
func ofPlatform(o metav1.Object) string {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	switch release := annotations["meta.helm.sh/release-name"]; {
	case hasPrefix("networkoperator.openshift.io/", annotations, labels), hasPrefix("network.operator.openshift.io/", annotations, labels),
		ownerOf(o, "operator.openshift.io") != "":
		return "OpenShift's cluster-network-operator, which has no way out: another network takes another cluster"
	case annotations["components.gke.io/component-name"] != "":
		return "GKE (component " + annotations["components.gke.io/component-name"] + "), which has no way out: another network takes another cluster"
	case labels["kubernetes.azure.com/managedby"] == "aks":
		return "AKS, which has no way out: another network takes a cluster that was made with --network-plugin none"
	case strings.HasPrefix(release, "rke2-"):
		return "RKE2 (HelmChart " + release + "), which has no way out: another network takes a cluster that was made with it"
	}
	return ""
}

// ofOwner is an object that owns another. Tigera's operator is one of several owners of some, none
// of which is the controller (CreateOrUpdateObject in pkg/controller/utils/component.go in
// github.com/tigera/operator).
func ofOwner(o metav1.Object) string {
	if owner := ownerOf(o, "operator.tigera.io"); owner != "" {
		return "tigera-operator (" + owner + ", which owns it): delete the operator's Deployment and keep its Installation, without which the network " +
			"goes; then take metadata.ownerReferences off"
	}
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return fmt.Sprintf("%s %s, which owns it", ref.Kind, ref.Name)
	}
	return ""
}

// ofAddons is what an installer applies once more, whenever it has another version or starts.
//
//   - kOps labels all objects of its addons (addLabels in pkg/model/components/addonmanifests in
//     k8s.io/kops), and forgets an addon without deleting it (docs/networking.md).
//   - k3s and RKE2 apply the files of server/manifests, and annotate what came of them (pkg/apply
//     in github.com/rancher/wrangler).
func ofAddons(o metav1.Object) string {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	addon := annotations["objectset.rio.cattle.io/owner-name"]
	switch mode := labels["addonmanager.kubernetes.io/mode"]; {
	case labels["addon.kops.k8s.io/name"] != "":
		return "kOps (addon " + labels["addon.kops.k8s.io/name"] + "): have it forget the network first (networking: {cni: {}} in the cluster's spec, " +
			"kops update cluster --yes), then take the label addon.kops.k8s.io/name off"
	case mode != "":
		return "the addon manager (label addonmanager.kubernetes.io/mode: " + mode + ")"
	case addon != "" && strings.HasPrefix(annotations["objectset.rio.cattle.io/owner-gvk"], "k3s.cattle.io/"):
		return "k3s or RKE2 (addon " + addon + "): move its file out of server/manifests on every server, then take the annotations " +
			"objectset.rio.cattle.io/* off"
	case addon != "":
		return "Rancher (" + addon + ")"
	}
	return ""
}

// ofGitOps is who applies what a repository or another cluster has. Sveltos has labels and, from
// v0.52, annotations (lib/deployer in github.com/projectsveltos/libsveltos).
func ofGitOps(o metav1.Object) string {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	switch {
	case labels["argocd.argoproj.io/instance"] != "":
		return "Argo CD (application " + labels["argocd.argoproj.io/instance"] + ")"
	case annotations["argocd.argoproj.io/tracking-id"] != "":
		name, _, _ := strings.Cut(annotations["argocd.argoproj.io/tracking-id"], ":")
		return "Argo CD (application " + name + ")"
	case labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return "Flux (Kustomization " + labels["kustomize.toolkit.fluxcd.io/name"] + ")"
	case labels["helm.toolkit.fluxcd.io/name"] != "":
		return "Flux (HelmRelease " + labels["helm.toolkit.fluxcd.io/name"] + ")"
	case annotations["projectsveltos.io/owner-name"] != "":
		return "Sveltos (" + annotations["projectsveltos.io/owner-kind"] + " " + annotations["projectsveltos.io/owner-name"] + ")"
	case labels["projectsveltos.io/reference-name"] != "":
		return "Sveltos (" + labels["projectsveltos.io/reference-kind"] + " " + labels["projectsveltos.io/reference-name"] + ")"
	}
	return ""
}

// ownerOf is an owner of an API group, as kind and name; empty, if there is none.
func ownerOf(o metav1.Object, group string) string {
	for _, ref := range o.GetOwnerReferences() {
		if of, _, _ := strings.Cut(ref.APIVersion, "/"); of == group {
			return ref.Kind + " " + ref.Name
		}
	}
	return ""
}

func hasPrefix(prefix string, all ...map[string]string) bool {
	return slices.ContainsFunc(all, func(m map[string]string) bool {
		for key := range m {
			if strings.HasPrefix(key, prefix) {
				return true
			}
		}
		return false
	})
}
