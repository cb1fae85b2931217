package copyrules

import (
	"cmp"
	"slices"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Part of a copy. Contents of volumes are brought between the two.
type Part int

// The parts: All, what workloads stand on up to their claims, and all else.
const (
	All Part = iota
	Foundations
	Workloads
)

// Ranks in the order of a copy.
const (
	rankDefinitions = iota
	rankNamespaces
	rankClasses
	rankAccounts
	rankSecrets
	rankConfig
	rankRights
	rankLimits
	rankPolicies
	rankClaims
	rankServices
	rankWorkloads
	rankCustom
	rankRoutes
	// Quotas come after what they count: a lowered one would refuse existing objects.
	rankQuotas
	// Webhooks come last: they refuse everything until their backend is ready.
	rankAdmission
)

// Order sorts kinds so that each comes after what it needs.
func Order(kinds []objects.ResourceKind) {
	slices.SortStableFunc(kinds, func(a, b objects.ResourceKind) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.String(), b.String()))
	})
}

func (p Part) Of(k objects.ResourceKind) bool {
	switch p {
	case Foundations:
		return rank(k) <= rankClaims
	case Workloads:
		return rank(k) > rankClaims
	}
	return true
}

func rank(k objects.ResourceKind) int {
	switch k.String() {
	case "namespaces":
		return rankNamespaces
	case "priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io", "ingressclasses.networking.k8s.io",
		"gatewayclasses.gateway.networking.k8s.io", "storageclasses.storage.k8s.io", "volumeattributesclasses.storage.k8s.io",
		"deviceclasses.resource.k8s.io":
		return rankClasses
	case "serviceaccounts":
		return rankAccounts
	case "secrets":
		return rankSecrets
	case "configmaps":
		return rankConfig
	case "limitranges":
		return rankLimits
	case "networkpolicies.networking.k8s.io":
		return rankPolicies
	case "persistentvolumeclaims":
		return rankClaims
	case "services", "endpoints", "endpointslices.discovery.k8s.io":
		return rankServices
	case "ingresses.networking.k8s.io":
		return rankRoutes
	case "resourcequotas":
		return rankQuotas
	}
	return rankOfGroup(k.Group)
}

func rankOfGroup(group string) int {
	switch group {
	case "apiextensions.k8s.io":
		return rankDefinitions
	case "rbac.authorization.k8s.io":
		return rankRights
	case "crd.projectcalico.org", "projectcalico.org", "cilium.io":
		return rankPolicies
	case "", "apps", "batch", "autoscaling", "policy":
		return rankWorkloads
	case gatewayGroup:
		return rankRoutes
	case "admissionregistration.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io":
		return rankAdmission
	}
	return rankCustom
}
