package podcidr

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/cluster"
)

// TestRBACGrantsExactlyTheRights compares deploy/rbac-pod-cidr.yaml and rbac-pod-cidr-nodes.yaml with what the checks ask for.
func TestRBACGrantsExactlyTheRights(t *testing.T) {
	for file, rights := range map[string][]cluster.Right{"rbac-pod-cidr.yaml": Rights(), "rbac-pod-cidr-nodes.yaml": NodeRights()} {
		t.Run(file, func(t *testing.T) { requireGranted(t, file, rights) })
	}
}

func requireGranted(t *testing.T, file string, rights []cluster.Right) {
	t.Helper()
	body, err := os.ReadFile("../../deploy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(body, role); err != nil {
		t.Fatal(err)
	}
	var granted, needed []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			for _, verb := range rule.Verbs {
				granted = append(granted, cluster.Right{Verb: verb, Group: rule.APIGroups[0], Resource: name, Subresource: sub}.String())
			}
		}
	}
	for _, r := range rights {
		needed = append(needed, r.String())
	}
	slices.Sort(granted)
	slices.Sort(needed)
	if !slices.Equal(granted, needed) {
		t.Errorf("granted %v\nneeded %v", granted, needed)
	}
}
