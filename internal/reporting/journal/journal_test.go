package journal

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// clock is when the test runs begin.
func clock() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

func migration() *v1alpha1.Migration {
	return &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}},
	}
}

func sample(i int) Sample {
	at := clock().Unix() + 10*int64(i)
	return Sample{
		Probe:  "host/old-address",
		Start:  at,
		End:    at + 10,
		Sent:   50,
		Failed: int64(i % 2),
		P50:    900,
		P99:    int64(4000 + i),
		Max:    9000,
	}
}

func TestBounded(t *testing.T) {
	w := NewWriter(nil, migration(), clock)
	w.room = 10
	for i := range 8 {
		w.Sample(sample(i))
	}
	for i := range 6 {
		w.Loss(v1alpha1.Loss{Node: fmt.Sprint(i)})
	}
	w.Sample(sample(9))
	var samples, losses int
	for _, r := range w.waiting {
		if r.Sample != nil {
			samples++
		} else {
			losses++
		}
	}
	if len(w.waiting) != 10 || losses != 6 || samples != 4 || w.lost != 5 {
		t.Errorf("%d samples and %d losses wait, %d lost", samples, losses, w.lost)
	}
}
