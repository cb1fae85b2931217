package access

import (
	"slices"
	"testing"
)

func TestRights(t *testing.T) {
	rights := slices.Concat(
		Grant("", "services", "status", "patch"),
		In("kube-system", Named(Grant("coordination.k8s.io", "leases", "", "create update delete"), "replumb")...),
		[]Right{{Verb: "get", URL: "/flagz"}},
	)
	want := []string{
		"patch services/status",
		"create leases.coordination.k8s.io in kube-system",
		"update,delete leases.coordination.k8s.io replumb in kube-system",
		"get /flagz",
	}
	if got := Texts(rights); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	q := rights[2].Question().ResourceAttributes
	if q.Verb != "update" || q.Namespace != "kube-system" || q.Name != "replumb" || q.Group != "coordination.k8s.io" {
		t.Errorf("asked for %+v", q)
	}
	if q := rights[4].Question(); q.ResourceAttributes != nil || q.NonResourceAttributes.Path != "/flagz" {
		t.Errorf("asked for %+v", q)
	}
}

func TestMissing(t *testing.T) {
	access := []Answer{
		{Right: Right{Verb: "get", Resource: "pods"}, Role: "view"},
		{Right: Right{Verb: "create", Resource: "namespaces"}},
		{Right: Right{Verb: "list", Resource: "pods"}, Role: "view"},
	}
	want := []string{"get,list pods (role view)", "create namespaces"}
	if got := Missing(access); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	denied := &DeniedError{Missing: access}
	if denied.Advice() != "bind to the user, with replumb rbac, the roles view" || denied.ExitCode() != 3 {
		t.Errorf("got %q", denied.Advice())
	}
}

// TestGranting: a right is optional only if no rule of any role needs it.
func TestGranting(t *testing.T) {
	list := Grant("", "pods", "", "list")
	roles := Roles{
		{Name: "view", Purpose: View, Rules: []Rule{{Rights: list, Optional: true}}},
		{Name: "operate", Purpose: Operate, Rules: []Rule{{Rights: list}}},
	}
	if !roles.Needs(list[0]) || roles.Of(View).Needs(list[0]) || roles.Granting(list[0]).Name != "view" || len(roles.Rights()) != 1 {
		t.Error("optional and needed rights are mixed up")
	}
}
