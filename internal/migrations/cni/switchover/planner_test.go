package switchover

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// TestPullSecrets: every pod that a migration runs has those of the Migration, and with none they
// are as ever.
func TestPullSecrets(t *testing.T) {
	for _, tt := range []struct{ secrets, want []string }{
		{nil, nil},
		{[]string{"registry", "mirror"}, []string{"registry", "mirror"}},
	} {
		p := &Planner{Inventory: &Inventory{Spec: Spec{
			Name: "m", Canary: v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun}, Common: v1alpha1.MigrationSpec{ImagePullSecrets: tt.secrets},
		}}}
		p.Deps.Image = pull.Image{Name: "i"}
		for _, verb := range []string{nodepod.VerbTraffic, nodepod.VerbResidue, nodepod.VerbClean} {
			a := p.OnNode(verb, "a", "", "", "calico").Pod
			pod := a.Object()
			var got []string
			for _, s := range pod.Spec.ImagePullSecrets {
				got = append(got, s.Name)
			}
			if !slices.Equal(got, tt.want) || pod.Spec.Containers[0].Image != "i" {
				t.Errorf("%v: pod that is for %s has %v", tt.secrets, verb, got)
			}
			pod.Spec.ImagePullSecrets, a.Image.Secrets = nil, nil
			if !equality.Semantic.DeepEqual(pod, a.Object()) {
				t.Errorf("%v: pod that is for %s differs in more: %+v", tt.secrets, verb, pod)
			}
		}
		canaries := p.Matrix("matrix", "", false)[0].Steps[0].(*matrixStep).pods()
		if canaries.Image.Name != "i" || !slices.Equal(canaries.Image.Secrets, tt.want) {
			t.Errorf("%v: canaries have %+v", tt.secrets, canaries.Image)
		}
	}
}
