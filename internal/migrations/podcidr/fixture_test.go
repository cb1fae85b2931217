package podcidr

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

const (
	oldRange, newRange = "10.244.0.0/24", "10.245.0.0/24"
	newPool            = "pods-10-245-0-0-24"
	patience           = migrationtest.Patience
)

func sample() *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			PodCIDR: &v1alpha1.PodCIDRSpec{
				To: []string{newRange}, BlockSize: 28,
				Roll: v1alpha1.RollSpec{Parallel: 4, Timeout: &metav1.Duration{Duration: patience}},
			},
			Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled},
		},
	}
}
