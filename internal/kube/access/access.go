// Package access describes rights by verb and resource, the roles that grant them, and the answers
// of an authorizer.
package access

import (
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// Right is one verb on one resource, or on a path of the API server.
type Right struct {
	Verb        string
	Group       string
	Resource    string
	Subresource string
	// Namespace limits the right; empty means all, or a resource without namespaces.
	Namespace string
	// Name limits the right to one object. RBAC cannot limit list, watch, create and
	// deletecollection so: those requests name no object.
	Name string
	// URL is a path such as /flagz, in place of a resource.
	URL string
}

// String is such as "update leases.coordination.k8s.io replumb in kube-system".
func (r Right) String() string { return r.Verb + " " + r.object() }

func (r Right) object() string {
	if r.URL != "" {
		return r.URL
	}
	text := r.Resource
	if r.Subresource != "" {
		text += "/" + r.Subresource
	}
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// Grant is the right to several verbs, separated by spaces, on one resource.
func Grant(group, resource, subresource, verbs string) []Right {
	var all []Right
	for verb := range strings.FieldsSeq(verbs) {
		all = append(all, Right{Verb: verb, Group: group, Resource: resource, Subresource: subresource})
	}
	return all
}

// In limits rights to a namespace.
func In(namespace string, rights ...Right) []Right {
	for i := range rights {
		rights[i].Namespace = namespace
	}
	return rights
}

// Named limits rights to objects by name, for those verbs that RBAC can limit so.
func Named(rights []Right, names ...string) []Right {
	var all []Right
	for _, r := range rights {
		switch r.Verb {
		case "list", "watch", "create", "deletecollection":
			all = append(all, r)
			continue
		}
		for _, name := range names {
			r.Name = name
			all = append(all, r)
		}
	}
	return all
}

// Texts joins the verbs on one object, since a user without any right lacks dozens.
func Texts(rights []Right) []string {
	verbs, order := map[string][]string{}, []string{}
	for _, r := range rights {
		of := r.object()
		if verbs[of] == nil {
			order = append(order, of)
		}
		if !slices.Contains(verbs[of], r.Verb) {
			verbs[of] = append(verbs[of], r.Verb)
		}
	}
	for i, of := range order {
		order[i] = strings.Join(verbs[of], ",") + " " + of
	}
	return order
}

func unique(all []Right) []Right {
	seen := map[Right]bool{}
	return slices.DeleteFunc(slices.Clone(all), func(r Right) bool {
		before := seen[r]
		seen[r] = true
		return before
	})
}

// Answer is the authorizer's answer about a right.
type Answer struct {
	Right   Right
	Allowed bool
	Reason  string
	// Role grants the right; empty if none does.
	Role string
	// Optional rights are not needed for a run.
	Optional bool
}

// Missing lists denied rights for people, by object, each with the role that grants it.
func Missing(answers []Answer) []string {
	by := map[string][]Right{}
	var order []string
	for _, a := range answers {
		role := ""
		if a.Role != "" {
			role = " (role " + a.Role + ")"
		}
		if by[role] == nil {
			order = append(order, role)
		}
		by[role] = append(by[role], a.Right)
	}
	var out []string
	for _, role := range order {
		for _, text := range Texts(by[role]) {
			out = append(out, text+role)
		}
	}
	return out
}

// Question is the review that asks an authorizer for the right.
func (r Right) Question() authorizationv1.SelfSubjectAccessReviewSpec {
	if r.URL != "" {
		return authorizationv1.SelfSubjectAccessReviewSpec{
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL, Verb: r.Verb},
		}
	}
	return authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name,
	}}
}
