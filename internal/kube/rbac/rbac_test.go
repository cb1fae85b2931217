package rbac

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/replumb/replumb/internal/kube/access"
)

func sample() access.Role {
	return access.Role{
		Name: "sample", File: "rbac.yaml", Danger: []string{"It is dangerous."},
		Rules: []access.Rule{
			{Why: "To look.", Rights: slices.Concat(
				access.Grant("", "pods", "", "get list"), access.Grant("", "services", "", "get list"),
				[]access.Right{{Verb: "get", URL: "/flagz"}},
			)},
			{Why: "To write.", Optional: true, Rights: slices.Concat(
				access.Named(access.Grant("apps", "deployments", "scale", "create update"), "a", "b"),
				access.In("system", access.Grant("", "pods", "", "delete")...),
			)},
		},
	}
}

const wantManifest = `---
# It is dangerous.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: sample
rules:
  # To look.
  - apiGroups: [""]
    resources: [pods, services]
    verbs: [get, list]
  - nonResourceURLs: [/flagz]
    verbs: [get]
  # To write.
  - apiGroups: [apps]
    resources: [deployments/scale]
    verbs: [create]
  - apiGroups: [apps]
    resources: [deployments/scale]
    resourceNames: [a, b]
    verbs: [update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  namespace: system
  name: sample
rules:
  # To write.
  - apiGroups: [""]
    resources: [pods]
    verbs: [delete]
`

func TestManifest(t *testing.T) {
	if got := Manifest(sample()); got != wantManifest {
		t.Errorf("got:\n%s", got)
	}
}

// TestBindings: each user has bindings of their own, whose names are good for a path.
func TestBindings(t *testing.T) {
	got := Bindings(sample(), rbacv1.Subject{Kind: rbacv1.UserKind, Name: "https://issuer#jane"})
	for _, text := range []string{
		`name: "sample:https:--issuer#jane"`, `name: "https://issuer#jane"`, "kind: ClusterRoleBinding\n",
		"kind: RoleBinding\nmetadata:\n  namespace: system\n",
	} {
		if !strings.Contains(got, text) {
			t.Errorf("%q is missing in:\n%s", text, got)
		}
	}
}

func TestTable(t *testing.T) {
	want := `| verbs | what | where | what for |
|---|---|---|---|
| get, list | pods, services | everywhere | To look. |
| get | /flagz | everywhere |  |
| create | deployments/scale (apps) | everywhere | To write. Optional. |
| update | deployments/scale (apps): a, b | everywhere |  |
| delete | pods | system |  |
`
	if got := Table(sample()); got != want {
		t.Errorf("got:\n%s", got)
	}
}
