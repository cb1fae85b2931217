package lossguard

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/internal/kube/access"
)

// TestNarrow: of what agents take, nothing that writes is good for another namespace or another
// object.
func TestNarrow(t *testing.T) {
	own := access.Grant("replumb.dev", "nodereports", "", "create patch deletecollection")
	own = append(own, access.Grant("replumb.dev", "nodereports", "status", "patch")...)
	own = append(own, access.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "create")...)
	for _, r := range Role("agents", "rbac.yaml", true).Rights() {
		reads := slices.Contains([]string{"get", "list", "watch"}, r.Verb)
		if !reads && r.Namespace == "" && r.Name == "" && !slices.Contains(own, r) {
			t.Errorf("%s is good for others as well", r)
		}
	}
}
