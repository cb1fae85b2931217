package pools

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
)

// TestPullSecrets: what keeps tunnels, and canaries, have those of the Migration, with the image of
// this version too.
func TestPullSecrets(t *testing.T) {
	for _, tt := range []struct {
		secrets []string
		want    []corev1.LocalObjectReference
	}{
		{nil, nil},
		{[]string{"registry", "mirror"}, []corev1.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}},
	} {
		shared := &podmove.Inventory{Spec: podmove.Spec{Name: "m", Common: v1alpha1.MigrationSpec{ImagePullSecrets: tt.secrets}}}
		p := &Planner{
			Planner: &podmove.Planner{Base: migration.Base{Tools: migration.Deps{Image: pull.Image{Name: "own"}}}, Inventory: shared},
		}
		for _, which := range []string{keptOld, keptNew} {
			pod := p.keeper(which, nil).build().Spec.Template.Spec
			if !slices.Equal(pod.ImagePullSecrets, tt.want) || pod.Containers[0].Image != "own" || pod.InitContainers[0].Image != "own" {
				t.Errorf("%v: what keeps %s tunnels has %v", tt.secrets, which, pod.ImagePullSecrets)
			}
		}
		if got := p.Trial("canary", "").Image; got.Name != "own" || !slices.Equal(got.Secrets, tt.secrets) {
			t.Errorf("%v: canaries have %+v", tt.secrets, got)
		}
	}
}
