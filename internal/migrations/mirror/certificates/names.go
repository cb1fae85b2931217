// Package certificates has certificates that cert-manager issues be good for the mirror's names as
// well.
package certificates

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Certified is an object by which certificates are issued: a Certificate of cert-manager, or an
// annotated Ingress (https://cert-manager.io/docs/usage/ingress/).
type Certified struct {
	gvk     schema.GroupVersionKind
	key     client.ObjectKey
	Secrets map[string][]string
	// Add are the aliases that it lacks, added those that an earlier run has added, and stale those
	// of added that are no aliases any more.
	Add, Added, Stale []string
}

func certificateKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
}

// IngressKind is that of Ingresses.
func IngressKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"}
}

// Of decides what an object has to do with aliases; nil, if nothing.
func Of(o *unstructured.Unstructured, aliases []v1alpha1.HostAlias) *Certified {
	c := &Certified{gvk: o.GroupVersionKind(), key: client.ObjectKeyFromObject(o), Secrets: map[string][]string{}}
	for _, list := range nameLists(o) {
		for _, a := range aliases {
			if !slices.Contains(list.names, a.Name) || covered(list.names, a.Alias) && !slices.Contains(list.names, a.Alias) {
				continue
			}
			c.Secrets[list.secret] = append(c.Secrets[list.secret], a.Alias)
			if !slices.Contains(list.names, a.Alias) {
				c.Add = append(c.Add, a.Alias)
			}
		}
	}
	c.Added = addedNames(o)
	c.Stale = slices.DeleteFunc(slices.Clone(c.Added), func(n string) bool {
		return slices.ContainsFunc(aliases, func(a v1alpha1.HostAlias) bool { return a.Alias == n })
	})
	if len(c.Secrets) == 0 && len(c.Added) == 0 {
		return nil
	}
	return c
}

// covered reports whether a wildcard among names stands for host.
func covered(names []string, host string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return slices.Contains(names, "*."+parent) || slices.Contains(names, host)
}

type nameList struct {
	names  []string
	secret string
}

func ownedByIngress(ref metav1.OwnerReference) bool { return ref.Kind == IngressKind().Kind }

func nameLists(o *unstructured.Unstructured) []nameList {
	if o.GetKind() == certificateKind().Kind {
		if slices.ContainsFunc(o.GetOwnerReferences(), ownedByIngress) {
			return nil // its Ingress says what is in it
		}
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
		secret, _, _ := unstructured.NestedString(o.Object, "spec", "secretName")
		return []nameList{{names, secret}}
	}
	if !Issued(o) {
		return nil
	}
	var lists []nameList
	tls, _, _ := unstructured.NestedSlice(o.Object, "spec", "tls")
	for _, entry := range tls {
		if m, ok := entry.(map[string]any); ok {
			names, _, _ := unstructured.NestedStringSlice(m, "hosts")
			secret, _, _ := unstructured.NestedString(m, "secretName")
			lists = append(lists, nameList{names, secret})
		}
	}
	return lists
}

// Issued reports whether cert-manager issues the certificates of an Ingress.
func Issued(o *unstructured.Unstructured) bool {
	for _, a := range []string{"cert-manager.io/issuer", "cert-manager.io/cluster-issuer"} {
		if o.GetAnnotations()[a] != "" {
			return true
		}
	}
	return false
}

// withAliases adds aliases beside their names, and reports whether that changed anything.
func withAliases(o *unstructured.Unstructured, aliases []v1alpha1.HostAlias) bool {
	changed := false
	add := func(names []string) []string {
		for _, a := range aliases {
			if slices.Contains(names, a.Name) && !covered(names, a.Alias) {
				names, changed = append(names, a.Alias), true
			}
		}
		return names
	}
	eachNames(o, add)
	return changed
}

func withoutNames(o *unstructured.Unstructured, gone []string) {
	eachNames(o, func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(gone, n) })
	})
}

// eachNames changes every list of names that certificates are made of.
func eachNames(o *unstructured.Unstructured, change func([]string) []string) {
	if o.GetKind() == certificateKind().Kind {
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
		_ = unstructured.SetNestedStringSlice(o.Object, change(names), "spec", "dnsNames") // it was one
		return
	}
	tls, _, _ := unstructured.NestedSlice(o.Object, "spec", "tls")
	for _, entry := range tls {
		if m, ok := entry.(map[string]any); ok {
			names, _, _ := unstructured.NestedStringSlice(m, "hosts")
			_ = unstructured.SetNestedStringSlice(m, change(names), "hosts")
		}
	}
	if len(tls) > 0 {
		_ = unstructured.SetNestedSlice(o.Object, tls, "spec", "tls")
	}
}

func addedNames(o *unstructured.Unstructured) []string {
	var names []string
	if text := o.GetAnnotations()[v1alpha1.AnnotationAddedNames]; text != "" {
		_ = json.Unmarshal([]byte(text), &names) // other content means that someone has taken it over
	}
	return names
}

func namesOf(o *unstructured.Unstructured) []string {
	var all []string
	for _, l := range nameLists(o) {
		all = append(all, l.names...)
	}
	return all
}

func annotate(o *unstructured.Unstructured, key, text string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = text
	if text == "" {
		delete(all, key)
	}
	o.SetAnnotations(all)
}
