package references

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	calicoGroup = "crd.projectcalico.org"
	// calicoKinds is before the kinds of Calico, which has a NetworkPolicy as well.
	calicoKinds = "Calico"
	// mirrored is the controller for Endpoints (k8s.io/kubernetes
	// pkg/controller/endpointslicemirroring).
	mirrored = "endpointslicemirroring-controller.k8s.io"
)

func (w *walk) traffic(o client.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		w.service(o)
	case *networkingv1.Ingress:
		w.object("Ingress", o)
		w.annotations("metadata.annotations", o.Annotations)
	case *discoveryv1.EndpointSlice:
		w.endpoints(o)
	case *unstructured.Unstructured:
		w.custom(o)
	}
}

// service leaves out the ClusterIP itself and, while a Service moves, its externalName.
func (w *walk) service(o *corev1.Service) {
	w.object("Service", o)
	w.annotations("metadata.annotations", o.Annotations)
	w.list("spec.loadBalancerSourceRanges", o.Spec.LoadBalancerSourceRanges)
	w.texts("spec.externalIPs", o.Spec.ExternalIPs)
	w.text("spec.loadBalancerIP", o.Spec.LoadBalancerIP)
	if o.Annotations[v1alpha1.AnnotationOldIP] == "" {
		w.text("spec.externalName", o.Spec.ExternalName)
	}
}

// endpoints looks at hand-made slices. Mirrored ones stand in the Endpoints.
func (w *walk) endpoints(o *discoveryv1.EndpointSlice) {
	field := "endpoints"
	w.object("EndpointSlice", o)
	if o.Labels[discoveryv1.LabelManagedBy] == mirrored {
		w.name, field = "Endpoints "+o.Namespace+"/"+o.Labels[discoveryv1.LabelServiceName], "subsets"
	}
	for i := range o.Endpoints {
		for _, address := range o.Endpoints[i].Addresses {
			w.text(field+".addresses", address)
		}
	}
}

// annotations leaves out replumb's, and kubectl's copy of what was applied.
func (w *walk) annotations(field string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/") || key == corev1.LastAppliedConfigAnnotation {
			continue
		}
		w.commas(fmt.Sprintf("%s[%s]", field, key), all[key])
	}
}

func (w *walk) commas(field, text string) {
	if parts := strings.Split(text, ","); len(parts) > 1 {
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		if areRanges(parts) {
			w.nets(field, parts)
			return
		}
	}
	w.text(field, text)
}

func (w *walk) list(field string, all []string) {
	if areRanges(all) {
		w.nets(field, all)
		return
	}
	for i, text := range all {
		w.value(fmt.Sprintf("%s[%d]", field, i), text)
	}
}

func areRanges(all []string) bool {
	none := func(text string) bool {
		_, err := netip.ParsePrefix(text)
		return err != nil
	}
	return slices.ContainsFunc(all, isRange) && !slices.ContainsFunc(all, none)
}

// value looks at a text that may be a range by first and last address, as MetalLB's.
func (w *walk) value(field, text string) {
	r, err := netipx.ParseIPRange(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		w.text(field, text)
		return
	}
	all := ofFamily(netip.PrefixFrom(r.From(), 0), w.scanner.to)
	outside := func(to netip.Prefix) bool {
		whole := netipx.RangeOfPrefix(to)
		return !r.Contains(whole.From()) || !r.Contains(whole.To())
	}
	if w.scanner.fromSet.OverlapsRange(r) && (len(all) == 0 || slices.ContainsFunc(all, outside)) {
		w.add(field, text)
	}
}

func (w *walk) custom(o *unstructured.Unstructured) {
	kind := o.GetKind()
	if o.GroupVersionKind().Group == calicoGroup {
		kind = calicoKinds + " " + kind
	}
	w.object(kind, o)
	w.annotations("metadata.annotations", o.GetAnnotations())
	for _, field := range slices.Sorted(maps.Keys(o.Object)) {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "status", "operation"}, field) { // spec, mostly
			w.tree(field, o.Object[field])
		}
	}
}

func (w *walk) tree(field string, value any) {
	switch value := value.(type) {
	case string:
		w.value(field, value)
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			w.tree(field+"."+key, value[key])
		}
	case []any:
		w.trees(field, value)
	}
}

// trees takes ranges in a list together, with their exceptions, and all else by itself.
func (w *walk) trees(field string, all []any) {
	if texts, ok := allOf[string](all); ok {
		w.list(field, texts)
		return
	}
	if blocks := blocksOf(field, all); len(blocks) > 0 {
		w.ipBlocks(blocks)
		return
	}
	for i, one := range all {
		w.tree(fmt.Sprintf("%s[%d]", field, i), one)
	}
}

// blocksOf reads Cilium's toCIDRSet (pkg/policy/api/cidr.go, CIDRRule); else nothing.
func blocksOf(field string, all []any) (blocks []block) {
	for i, one := range all {
		m, _ := one.(map[string]any)
		cidr, _ := m["cidr"].(string)
		if cidr == "" {
			return nil
		}
		b := &networkingv1.IPBlock{CIDR: cidr}
		b.Except, _, _ = unstructured.NestedStringSlice(m, "except")
		blocks = append(blocks, block{fmt.Sprintf("%s[%d].cidr", field, i), b})
	}
	return blocks
}

func allOf[T any](all []any) (out []T, ok bool) {
	for _, one := range all {
		t, is := one.(T)
		if !is {
			return nil, false
		}
		out = append(out, t)
	}
	return out, len(out) > 0
}
