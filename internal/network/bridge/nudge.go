package bridge

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/cidr"
)

const (
	// syncPeriod is the pause between syncs of kube-proxy (minSyncPeriod, 1s in k8s.io/kubernetes
	// pkg/proxy/apis/config/v1alpha1/defaults.go), with room for the API server's watch.
	syncPeriod = 1200 * time.Millisecond
	// nudged is how long kube-proxy gets to see the nudge and begin a sync.
	nudged = 100 * time.Millisecond
)

// Nudge makes kube-proxies sync now, so that they see changes of the next second as a whole. It
// waits a sync period, creates a throw-away Service, which done removes, and waits until
// kube-proxies have seen it. Other changes of Services may still cause a sync in that second.
func Nudge(ctx context.Context, c client.Client, pool *cidr.Allocator, migration string) (done func(context.Context) error, err error) {
	if err := pass(ctx, syncPeriod); err != nil {
		return nil, err
	}
	svc, err := createNudge(ctx, c, pool, migration)
	if err != nil {
		return nil, fmt.Errorf("opening a sync window: %w", err)
	}
	done = func(ctx context.Context) error { return client.IgnoreNotFound(c.Delete(ctx, svc)) }
	if err := pass(ctx, nudged); err != nil {
		_ = done(context.WithoutCancel(ctx)) // removing the namespace removes it as well
		return nil, err
	}
	return done, nil
}

func createNudge(ctx context.Context, c client.Client, pool *cidr.Allocator, migration string) (*corev1.Service, error) {
	for {
		own, err := pool.Highest()
		if err != nil {
			return nil, err
		}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: v1alpha1.SystemNamespace, GenerateName: "nudge-",
				Labels: map[string]string{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleNudge},
			},
			Spec: corev1.ServiceSpec{
				ClusterIP: own.String(),
				// kube-proxy syncs each family by itself, and only if it changed.
				IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
				Ports:          []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}},
			},
		}
		err = c.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		if !IsTaken(err) {
			return svc, NotReadyYet(err)
		}
	}
}

func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
