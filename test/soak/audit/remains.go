package audit

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

// product begins the names of what replumb makes.
const product = "replumb"

// auditRemains looks through everything there is for what replumb should have taken away.
func (r *report) auditRemains() {
	for i := range r.Everything {
		o := &r.Everything[i]
		if stays(o) {
			continue
		}
		object := o.ID()
		if r.Given[object] {
			continue // such as what the lab calls after itself
		}
		if o.Namespace == v1alpha1.SystemNamespace || o.Name == v1alpha1.SystemNamespace || strings.HasPrefix(o.Name, product) {
			r.add(object, "is left over")
		}
		for what, all := range map[string]map[string]string{"label": o.Labels, "annotation": o.Annotations} {
			for _, key := range slices.Sorted(maps.Keys(all)) {
				if strings.Contains(key, domain) && !r.usersOwn(o, key) {
					r.add(object, "has %s %s left over", what, key)
				}
			}
		}
	}
}

// ID names an object among everything, for Want.Given.
func (o *Object) ID() string { return name(o.Resource, keyOf(o)) }

// stays reports whether an object outlasts a migration, as documented: the Migrations with their definitions, the journal, and the lock,
// which no one holds. Events pass by themselves.
func stays(o *Object) bool {
	group := o.Resource[strings.Index(o.Resource, ".")+1:]
	switch {
	case group == v1alpha1.GroupVersion.Group, o.Resource == "events", group == "events.k8s.io":
		return true
	case o.Resource == "customresourcedefinitions.apiextensions.k8s.io":
		return strings.HasSuffix(o.Name, "."+v1alpha1.GroupVersion.Group)
	case o.Namespace == v1alpha1.JournalNamespace, o.Resource == "namespaces" && o.Name == v1alpha1.JournalNamespace:
		return true
	}
	return o.Resource == "leases.coordination.k8s.io" && o.Namespace == metav1.NamespaceSystem && o.Name == product
}

// usersOwn reports whether a key of replumb's is the user's own word, or says when pods were restarted: what pods are made of remembers.
func (r *report) usersOwn(o *Object, key string) bool {
	switch o.Resource {
	case "services":
		s := r.Model.Services[model.Key{Namespace: o.Namespace, Name: o.Name}]
		return s != nil && s.Object.Annotations[key] != ""
	case "pods", "replicasets.apps", "controllerrevisions.apps":
		return key == v1alpha1.AnnotationRestartedAt
	}
	return false
}
