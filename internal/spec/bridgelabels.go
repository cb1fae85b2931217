package spec

import (
	"maps"
	"slices"
	"strings"

	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
)

// validateBridgeLabels refuses labels by which replumb knows its own, and those that direct
// traffic: kube-proxy passes over a Service with service.kubernetes.io/service-proxy-name.
func validateBridgeLabels(s *v1alpha1.ServiceCIDRSpec) (all field.ErrorList) {
	const path, hint = "spec.serviceCIDR.bridgeLabels", "write labels as Kubernetes has them, such as team: network"
	if s == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.BridgeLabels)) {
		one := map[string]string{key: s.BridgeLabels[key]}
		for _, e := range metavalidation.ValidateLabels(one, field.NewPath(path)) {
			all = append(all, Wrongf(path, hint, "has %s: %s: %s", key, one[key], strings.ReplaceAll(e.Detail, ";", ",")))
		}
		prefix, _, _ := strings.Cut(key, "/")
		switch {
		case !strings.Contains(key, "/"):
		case prefix == v1alpha1.GroupVersion.Group || strings.HasSuffix(prefix, "."+v1alpha1.GroupVersion.Group):
			all = append(all, Wrongf(path, "leave it out: bridges have those of replumb anyhow", "has %s, which is replumb's own", key))
		case prefix == "service.kubernetes.io" || prefix == "endpointslice.kubernetes.io":
			all = append(all, Wrongf(path, "leave it out: with it a bridge might not answer", "has %s, which directs traffic", key))
		}
	}
	return all
}
