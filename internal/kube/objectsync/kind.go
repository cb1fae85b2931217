// Package objectsync copies objects of one cluster into another, and keeps saying whether they are the same. Rules decide
// what is copied and how it is changed on the way, a Copier writes, compares and follows.
package objectsync

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is one kind of object, in the version that it is copied in.
type Kind struct {
	Group, Version string
	// Kind such as Deployment, and Resource such as deployments.
	Kind, Resource string
	Namespaced     bool
}

// String is the resource with its group, such as deployments.apps, or configmaps.
func (k Kind) String() string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

// GVR is the resource that clients ask for.
func (k Kind) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

func (k Kind) is(group, kind string) bool { return k.Group == group && k.Kind == kind }

func (k Kind) secret() bool { return k.is("", "Secret") }

// Ref is one object.
type Ref struct {
	// Resource as Kind.String writes it.
	Resource        string
	Namespace, Name string
}

// String is such as deployments.apps shop/cart.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Resource + " " + r.Name
	}
	return r.Resource + " " + r.Namespace + "/" + r.Name
}

func (r Ref) key() key { return key{r.Namespace, r.Name} }

func refOf(k Kind, o *unstructured.Unstructured) Ref {
	return Ref{Resource: k.String(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// key is an object among those of its kind.
type key struct{ namespace, name string }

func (k key) ref(of Kind) Ref {
	return Ref{Resource: of.String(), Namespace: k.namespace, Name: k.name}
}
