package copyrules

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Reasons that more than one kind is left out for.
const (
	ofItsCluster  = "it belongs to one cluster alone"
	ofItsNetwork  = "it belongs to the network of one cluster"
	ofTheMachines = "it manages machines, which two clusters must not do"
	ofItsVolumes  = "it belongs to the volumes of one cluster"
	passing       = "it is of the moment"
	ofItsOwner    = "its controller makes it"
	everyClusters = "every cluster has its own"
	ofReplumb     = "it is replumb's own"
	RunsTwice     = "it is run once, and has its run in the source"
	OfNoKind      = "spec.mirror.copy.kinds leaves it out"
	ofNoNamespace = "spec.mirror.copy.namespaces leaves it out"
	ofNoSelector  = "spec.mirror.copy.selector leaves it out"
	claimsVolumes = "it uses a claim, and spec.mirror.copy.volumes is not Copy"
	IsAClaim      = "spec.mirror.copy.volumes is not Copy"
	beingDeleted  = "it is being deleted"
	OfAnAccount   = "it is a token of the source"
)

// leftOut are the kinds and groups that are never copied.
type leftOut struct {
	kinds  map[string]string
	groups map[string]string
	// within are groups of which only these kinds are copied.
	within map[string][]string
}

func newLeftOut() leftOut {
	policies := []string{"networkpolicies", "globalnetworkpolicies", "networksets", "globalnetworksets", "tiers"}
	return leftOut{
		kinds: map[string]string{
			"nodes": ofItsCluster, "events": passing, "componentstatuses": passing, "bindings": passing,
			"persistentvolumes": ofItsVolumes, "leases.coordination.k8s.io": passing, "leasecandidates.coordination.k8s.io": passing,
			"ipaddresses.networking.k8s.io": ofItsCluster, "servicecidrs.networking.k8s.io": ofItsCluster,
			"certificatesigningrequests.certificates.k8s.io": passing,
			"volumeattachments.storage.k8s.io":               ofItsVolumes, "csinodes.storage.k8s.io": ofItsVolumes,
			"csidrivers.storage.k8s.io": ofItsVolumes, "csistoragecapacities.storage.k8s.io": ofItsVolumes,
			"volumesnapshotcontents.snapshot.storage.k8s.io": ofItsVolumes, "volumesnapshots.snapshot.storage.k8s.io": ofItsVolumes,
			"orders.acme.cert-manager.io": passing, "challenges.acme.cert-manager.io": passing,
			"certificaterequests.cert-manager.io": passing,
			"resourceslices.resource.k8s.io":      ofItsCluster, "resourceclaims.resource.k8s.io": ofItsCluster,
			"nodeclaims.karpenter.sh": ofTheMachines, "controllerrevisions.apps": ofItsOwner,
			"storageversions.internal.apiserver.k8s.io": ofItsCluster,
		},
		groups: map[string]string{
			"replumb.dev": ofReplumb, "events.k8s.io": passing, "metrics.k8s.io": passing, "custom.metrics.k8s.io": passing,
			"external.metrics.k8s.io": passing, "operator.tigera.io": ofItsNetwork, "cluster.x-k8s.io": ofTheMachines,
			"storagemigration.k8s.io": ofItsCluster, "internal.apiserver.k8s.io": ofItsCluster,
		},
		within: map[string][]string{
			"crd.projectcalico.org": policies, "projectcalico.org": policies,
			"cilium.io": {"ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies", "ciliumcidrgroups"},
		},
	}
}

func (l leftOut) kind(k objects.ResourceKind) string {
	if why := l.kinds[k.String()]; why != "" {
		return why
	}
	if only, ok := l.within[k.Group]; ok && !slices.Contains(only, k.Resource) {
		return ofItsNetwork
	}
	return l.group(k.Group)
}

// group also finds infrastructure.cluster.x-k8s.io, by cluster.x-k8s.io.
func (l leftOut) group(group string) string {
	for {
		if why := l.groups[group]; why != "" {
			return why
		}
		_, rest, ok := strings.Cut(group, ".")
		if !ok {
			return ""
		}
		group = rest
	}
}

func (l leftOut) definition(group string) string {
	if _, ok := l.within[group]; ok {
		return ofItsNetwork
	}
	return l.group(group)
}

func (r *Rules) WhyNot(k objects.ResourceKind, o *unstructured.Unstructured) string {
	if why := r.Kind(k); why != "" {
		return why
	}
	if why := r.whyNotMeta(k, o); why != "" {
		return why
	}
	if slices.Contains(r.options.Network.Objects, objects.RefOf(k, o)) && !slices.Contains(r.options.Copy.Namespaces.Include, o.GetNamespace()) {
		return ofItsNetwork
	}
	if why := r.whyNotVolumes(k, o); why != "" {
		return why
	}
	switch k.Group {
	case "":
		return whyNotCore(k, o)
	case "apiextensions.k8s.io":
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		return r.leftOut.definition(group)
	case "apiregistration.k8s.io":
		if _, foreign, _ := unstructured.NestedMap(o.Object, "spec", "service"); !foreign {
			return everyClusters
		}
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		return r.leftOut.definition(group)
	case "batch":
		return whyNotJob(k, o)
	case "discovery.k8s.io":
		return whyNotSlice(o)
	}
	return whyNotBuiltIn(k, o)
}

// whyNotMeta looks at no more than the metadata.
func (r *Rules) whyNotMeta(k objects.ResourceKind, o metav1.Object) string {
	namespace := o.GetNamespace()
	if k.Is("", "Namespace") {
		namespace = o.GetName()
	}
	if why := r.whyNotIn(namespace); why != "" {
		return why
	}
	if k.Namespaced && r.selector != nil && !r.selector.Matches(labels.Set(o.GetLabels())) {
		return ofNoSelector
	}
	ours := namespace == v1alpha1.SystemNamespace || namespace == v1alpha1.JournalNamespace
	if _, own := o.GetLabels()[v1alpha1.LabelRole]; own || ours {
		return ofReplumb
	}
	if metav1.GetControllerOf(o) != nil {
		return ofItsOwner
	}
	if o.GetDeletionTimestamp() != nil {
		return beingDeleted
	}
	return ""
}

// Never reports whether an object can never be copied, such as pods of controllers.
func (r *Rules) Never(k objects.ResourceKind, o metav1.Object) bool {
	switch r.whyNotMeta(k, o) {
	case ofItsOwner, ofNoNamespace, everyClusters, ofReplumb:
		return true
	}
	return false
}

// whyNotIn says why nothing of a namespace is copied.
func (r *Rules) whyNotIn(namespace string) string {
	named := slices.Contains(r.options.Copy.Namespaces.Include, namespace)
	system := []string{"kube-system", "kube-public", "kube-node-lease", v1alpha1.SystemNamespace}
	switch {
	case namespace == "":
		return ""
	case slices.Contains(system, namespace) && !named:
		return everyClusters
	case slices.Contains(r.options.Network.Namespaces, namespace) && !named:
		return ofItsNetwork
	case !chosen(r.options.Copy.Namespaces, namespace):
		return ofNoNamespace
	}
	return ""
}
