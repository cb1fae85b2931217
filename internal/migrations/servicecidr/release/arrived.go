package release

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// ArrivalStep verifies that a Service has arrived, before its old address is taken away.
func ArrivalStep(c client.Client, listed *ServiceList, e *services.Entry, domain string) engine.Step {
	return &engine.Wait{
		Name: "verify/" + e.Key().String(), About: fmt.Sprintf("Verify %s at %s", e.Key(), e.New),
		For: func(ctx context.Context) error {
			if svc := listed.get(ctx, c, e); svc != nil && services.IsAt(svc, e.New) {
				return nil
			}
			svc, err := e.Read(ctx, c)
			if err != nil || svc == nil || services.IsAt(svc, e.New) {
				return err
			}
			if reason := services.WhyAddressless(svc); reason.Kind != "" && !e.IsInTransit(svc, domain) {
				return nil // others took its address away, and it is not for the migration to give it one
			}
			return services.ChangedError(e.Key(), "is of type %s at %q, not at %s", svc.Spec.Type, svc.Spec.ClusterIP, e.New)
		},
	}
}

// ServiceList has the Services of the cluster, by one list that the first step of a group makes.
type ServiceList struct {
	once sync.Once
	all  map[types.UID]*corev1.Service
}

// get returns nil for what was not listed: that is to be read by itself.
func (l *ServiceList) get(ctx context.Context, c client.Client, e *services.Entry) *corev1.Service {
	l.once.Do(func() {
		all, err := cluster.List[corev1.Service](ctx, c, &corev1.ServiceList{})
		if err != nil {
			return
		}
		l.all = make(map[types.UID]*corev1.Service, len(all))
		for i := range all {
			l.all[all[i].UID] = &all[i]
		}
	})
	return l.all[e.Service.UID]
}
