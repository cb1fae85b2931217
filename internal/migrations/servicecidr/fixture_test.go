package servicecidr

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

func sample() *v1alpha1.Migration {
	none := metav1.Duration{}
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			ServiceCIDR: &v1alpha1.ServiceCIDRSpec{
				To: []string{"172.24.0.0/16"}, Drain: &none, ClusterServices: v1alpha1.ClusterServicesStay,
				Overlap: v1alpha1.OverlapBridge, // what is asked of Services that keep addresses themselves stands beside it
			},
			Freeze: v1alpha1.FreezeDisabled, // the tests themselves play everybody else
			Batch:  v1alpha1.BatchSpec{Size: 2, Settle: &none},
		},
	}
}
