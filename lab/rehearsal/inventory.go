package rehearsal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/replumb/replumb/internal/kube/offline"
)

// stage is when an object is made.
type stage int

const (
	// early is what others are in, or defined by.
	early stage = iota
	// middle is everything else, owners before what they own.
	middle
	// late is what might refuse the others, or count them.
	late
)

// object is one to be made.
type object struct {
	schema.GroupVersionResource
	*unstructured.Unstructured
	stage stage
	// depth is how many owners it has above it.
	depth int
}

func (o *object) String() string {
	name := o.GetName()
	if ns := o.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return o.GetKind() + " " + name
}

// Reasons why objects of a snapshot are not made.
const (
	madeByServer = "the API server makes it itself"
	leadsAway    = "it would lead the API server to an extension that is not there"
	ofMoment     = "it says who is alive at present"
	ending       = "it was about to be deleted"
	aToken       = "it is a token of the cluster"
)

// inventory is what a snapshot holds, in the order in which it is made.
type inventory struct {
	objects []*object
	// skipped counts what is not made, by the reason.
	skipped map[string]int
}

// take reads all objects of an archive, and makes them fit to be created.
func take(a *offline.Archive) (*inventory, error) {
	in := &inventory{skipped: map[string]int{}}
	stored := storageVersions(a)
	for _, c := range a.Collections(func(r schema.GroupResource) string { return stored[r] }) {
		for _, body := range c.Objects {
			content := map[string]any{}
			if err := utiljson.Unmarshal(body, &content); err != nil {
				return nil, fmt.Errorf("reading one of %s: %w", c.Resource, err)
			}
			o := &object{
				GroupVersionResource: c.GroupVersionResource,
				Unstructured:         &unstructured.Unstructured{Object: content},
				stage:                middle,
			}
			o.SetAPIVersion(c.GroupVersion().String())
			o.SetKind(c.Kind)
			if why := skip(o); why != "" {
				in.skipped[why]++
				continue
			}
			fit(o)
			in.objects = append(in.objects, o)
			if o.Resource == "services" && o.direct() {
				in.objects = append(in.objects, allocated(o)...)
			}
		}
	}
	in.sort()
	return in, nil
}

// storageVersions are those in which custom resources are kept: only one of the versions of an object is made.
func storageVersions(a *offline.Archive) map[schema.GroupResource]string {
	all := map[schema.GroupResource]string{}
	for _, c := range a.Collections(func(schema.GroupResource) string { return "" }) {
		if c.Resource != "customresourcedefinitions" {
			continue
		}
		for _, body := range c.Objects {
			var crd struct {
				Spec struct {
					Group string
					Names struct{ Plural string }
					// Versions of the kind.
					Versions []struct {
						Name    string
						Storage bool
					}
				}
			}
			if json.Unmarshal(body, &crd) != nil {
				continue // it is refused when it is made
			}
			for _, v := range crd.Spec.Versions {
				if v.Storage {
					all[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = v.Name
				}
			}
		}
	}
	return all
}

// skip says why an object is not made; nothing, if it is.
func skip(o *object) string {
	switch o.GroupResource().String() {
	case "leases.coordination.k8s.io":
		return ofMoment
	case "apiservices.apiregistration.k8s.io":
		if _, has, _ := unstructured.NestedMap(o.Object, "spec", "service"); has {
			return leadsAway
		}
		return madeByServer
	case "services", "endpointslices.discovery.k8s.io":
		if o.GetNamespace() == "default" && o.GetName() == "kubernetes" {
			return madeByServer
		}
	case "servicecidrs.networking.k8s.io":
		if o.GetName() == defaultRange {
			return madeByServer
		}
	case "ipaddresses.networking.k8s.io":
		if o.GetLabels()[networkingv1.LabelManagedBy] == allocator {
			return madeByServer
		}
	case "secrets":
		if kind, _, _ := unstructured.NestedString(o.Object, "type"); kind == string(corev1.SecretTypeServiceAccountToken) {
			return aToken
		}
	}
	if o.GetDeletionTimestamp() != nil {
		return ending
	}
	return ""
}

// defaultRange is the ServiceCIDR that API servers make of their flag.
const defaultRange = "kubernetes"

// fit makes an object one that an API server takes, and that leads nowhere out of the rehearsal.
func fit(o *object) {
	foreign := []string{"resourceVersion", "managedFields", "selfLink"}
	if !o.direct() { // the UID is needed by what it owns, and goes when it is made
		foreign = append(foreign, "creationTimestamp", "generation")
	}
	for _, field := range foreign {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	switch o.GroupResource().String() {
	case "namespaces", "servicecidrs.networking.k8s.io":
		o.stage = early
	case "customresourcedefinitions.apiextensions.k8s.io":
		o.stage = early
		unstructured.RemoveNestedField(o.Object, "spec", "conversion") // a webhook would be called
		unstructured.RemoveNestedField(o.Object, "status")
	case "resourcequotas", "limitranges":
		o.stage = late
	case "validatingwebhookconfigurations.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io":
		o.stage = late
		silence(o)
	case "validatingadmissionpolicies.admissionregistration.k8s.io", "validatingadmissionpolicybindings.admissionregistration.k8s.io":
		o.stage = late
	case "jobs.batch":
		o.set(true, "spec", "manualSelector") // it has one already
	case "nodes":
		fitNode(o)
	}
}

// set changes a field. The objects are ours, and all that is between is made.
func (o *object) set(value any, path ...string) {
	_ = unstructured.SetNestedField(o.Object, value, path...) // fails only where what is on the way is no map, which is refused later
}

// silence has the API server keep webhooks without ever calling one.
func silence(o *object) {
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, h := range hooks {
		if hook, is := h.(map[string]any); is {
			hook["matchConditions"] = []any{map[string]any{"name": "rehearsal.replumb.dev", "expression": "false"}}
		}
	}
	o.set(hooks, "webhooks")
}

// fitNode takes away the addresses by which an API server of the rehearsal would look for the kubelet.
func fitNode(o *object) {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "addresses")
	all = slices.DeleteFunc(all, func(a any) bool {
		address, is := a.(map[string]any)
		return is && address["type"] == kubeletsAt
	})
	if len(all) > 0 {
		o.set(all, "status", "addresses")
	}
}

// kubeletsAt is the sort of address by which the API server of the rehearsal connects to kubelets: no node has one.
const kubeletsAt = string(corev1.NodeExternalDNS)

// sort puts owners before what they own.
func (in *inventory) sort() {
	by := map[string]*object{}
	for _, o := range in.objects {
		by[string(o.GetUID())] = o
	}
	for _, o := range in.objects {
		o.depth = depth(o, by, 0)
	}
	slices.SortStableFunc(in.objects, func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(a.depth, b.depth), cmp.Compare(order(a), order(b)))
	})
}

// deepest is more owners above each other than there are; beyond it is a circle.
const deepest = 8

func depth(o *object, by map[string]*object, at int) int {
	most := 0
	for _, ref := range o.GetOwnerReferences() {
		if owner := by[string(ref.UID)]; owner != nil && owner != o && at < deepest {
			most = max(most, 1+depth(owner, by, at+1))
		}
	}
	return most
}

// order has what others refer to come before them, although neither owns the other.
func order(o *object) int {
	switch o.Resource {
	case "namespaces", "customresourcedefinitions", "nodes":
		return 0
	case "validatingadmissionpolicybindings":
		return 2
	}
	return 1
}

// groups are the parts of an inventory that may be made at once.
func (in *inventory) groups() [][]*object {
	var all [][]*object
	same := func(a, b *object) bool { return a.stage == b.stage && a.depth == b.depth && order(a) == order(b) }
	for start := 0; start < len(in.objects); {
		end := start + 1
		for end < len(in.objects) && same(in.objects[start], in.objects[end]) {
			end++
		}
		all = append(all, in.objects[start:end])
		start = end
	}
	return all
}

// nodePorts are the least and the greatest node port that Services have; zero, if none has any.
func (in *inventory) nodePorts() (least, greatest int64) {
	for _, o := range in.objects {
		if o.Resource != "services" || o.Group != "" {
			continue
		}
		low, high := nodePorts(o)
		if low > 0 && (least == 0 || low < least) {
			least = low
		}
		greatest = max(greatest, high)
	}
	return least, greatest
}

// nodePorts are the least and the greatest node port of a Service, that of health checks included; zero, if it has none.
func nodePorts(svc *object) (least, greatest int64) {
	see := func(port int64) {
		if port > 0 && (least == 0 || port < least) {
			least = port
		}
		greatest = max(greatest, port)
	}
	if port, has, _ := unstructured.NestedInt64(svc.Object, "spec", "healthCheckNodePort"); has {
		see(port)
	}
	ports, _, _ := unstructured.NestedSlice(svc.Object, "spec", "ports")
	for _, p := range ports {
		if port, is := p.(map[string]any); is {
			n, _ := port["nodePort"].(int64)
			see(n)
		}
	}
	return least, greatest
}

// substantial reports whether a status says anything.
func substantial(status any) bool {
	switch s := status.(type) {
	case nil:
		return false
	case map[string]any:
		for _, v := range s {
			if substantial(v) {
				return true
			}
		}
		return false
	case []any:
		return len(s) > 0
	case string:
		return strings.TrimSpace(s) != ""
	}
	return true
}
