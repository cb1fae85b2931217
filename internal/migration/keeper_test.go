package migration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// TestReversible refuses each kind of migration after its point of no return, with the way back of that kind.
func TestReversible(t *testing.T) {
	for hint, spec := range map[string]v1alpha1.MigrationSpec{
		"the old range as spec.serviceCIDR.to":           {ServiceCIDR: &v1alpha1.ServiceCIDRSpec{}},
		"the old range as spec.podCIDR.to":               {PodCIDR: &v1alpha1.PodCIDRSpec{}},
		"spec.nodes.old and spec.nodes.new exchanged":    {Nodes: &v1alpha1.NodesSpec{}},
		"to have the mirror serve, make a new migration": {Mirror: &v1alpha1.MirrorSpec{}},
		"spec.cni.from and spec.cni.to exchanged":        {CNI: &v1alpha1.CNISpec{}},
	} {
		t.Run(hint, func(t *testing.T) {
			m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: spec}
			if err := Reversible(m); err != nil {
				t.Fatalf("refused before its point of no return: %v", err)
			}
			m.Status.PointOfNoReturnPassed = true
			if err := Reversible(m); err == nil || !strings.HasSuffix(fault.Advice(err), hint) {
				t.Errorf("%v (%s); want the hint %q", err, fault.Advice(err), hint)
			}
		})
	}
}
