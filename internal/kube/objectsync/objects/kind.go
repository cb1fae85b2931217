// Package objects names objects of any kind, and reads and changes what is inside of them.
package objects

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Services are the kind.
func Services() ResourceKind {
	return ResourceKind{Version: "v1", Kind: "Service", Resource: "services", Namespaced: true}
}

// Definitions are the kind of CustomResourceDefinitions.
func Definitions() ResourceKind {
	return ResourceKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition", Resource: "customresourcedefinitions"}
}

// ResourceKind is one kind of object, in the version that it is copied in.
type ResourceKind struct {
	Group, Version string
	// ResourceKind such as Deployment, and Resource such as deployments.
	Kind, Resource string
	Namespaced     bool
}

func (k ResourceKind) String() string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

func (k ResourceKind) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

func (k ResourceKind) Is(group, kind string) bool { return k.Group == group && k.Kind == kind }

func (k ResourceKind) IsSecret() bool { return k.Is("", "Secret") }

// Ref is one object.
type Ref struct {
	Resource        string
	Namespace, Name string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Resource + " " + r.Name
	}
	return r.Resource + " " + r.Namespace + "/" + r.Name
}

func (r Ref) Key() Key { return Key{r.Namespace, r.Name} }

// RefOf names an object.
func RefOf(k ResourceKind, o *unstructured.Unstructured) Ref {
	return Ref{Resource: k.String(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Key is where an object of a kind is.
type Key struct{ Namespace, Name string }

// KeyOf says where an object is.
func KeyOf(o metav1.Object) Key { return Key{o.GetNamespace(), o.GetName()} }

func (k Key) Ref(of ResourceKind) Ref {
	return Ref{Resource: of.String(), Namespace: k.Namespace, Name: k.Name}
}
