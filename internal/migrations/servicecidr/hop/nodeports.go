package hop

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// Charges are what quotas count.
type Charges map[corev1.ResourceName]int64

// lackError says that a quota has no room.
type lackError struct {
	Quota      types.NamespacedName
	resource   corev1.ResourceName
	used, need int64
	hard       int64
}

func (e *lackError) Error() string {
	return fmt.Sprintf("resourcequota %s allows %d %s (status.hard), of which %d are used, and the move takes %d more: it needs %d",
		e.Quota, e.hard, e.resource, e.used, e.need, e.used+e.need)
}

// Advice says how there comes to be room.
func (e *lackError) Advice() string {
	return "raise the quota until finish: kubectl edit resourcequota -n " + e.Quota.Namespace + " " + e.Quota.Name + "; then run the same command again"
}

// QuotasLacking are the quotas of a namespace that have no room.
func QuotasLacking(quotas []corev1.ResourceQuota, namespace string, needs Charges) (out []*lackError) {
	for i := range quotas {
		q := &quotas[i]
		if q.Namespace != namespace {
			continue
		}
		for _, resource := range slices.Sorted(maps.Keys(needs)) {
			hard, limited := q.Status.Hard[resource]
			used := q.Status.Used[resource]
			if limited && needs[resource] > 0 && used.Value()+needs[resource] > hard.Value() {
				out = append(out, &lackError{client.ObjectKeyFromObject(q), resource, used.Value(), needs[resource], hard.Value()})
			}
		}
	}
	return out
}

// checkQuota waits before a hop, not in its middle, for room for the node ports of the second
// patch: quotas count those of the hop before this one until their controller looks again.
func (a *attempt) checkQuota(ctx context.Context) error {
	key := a.progress.Key()
	quotas := &corev1.ResourceQuotaList{}
	err := a.Client.List(ctx, quotas, client.InNamespace(key.Namespace))
	switch {
	case apierrors.IsForbidden(err): // a finding says that quotas are not known
		return nil
	case err != nil:
		return fmt.Errorf("quotas of service %s: %w", key, err)
	}
	takes := Charges{corev1.ResourceServicesNodePorts: int64(len(a.svc.Spec.Ports))}
	for _, lack := range QuotasLacking(quotas.Items, key.Namespace, takes) {
		return engine.NotYet("the node ports of service %s: %w", key, lack)
	}
	return nil
}

// arriveWithoutPorts gives up the node ports that others were given while the Service had none, and
// gets others: one without an address must not wait for them.
func (a *attempt) arriveWithoutPorts(ctx context.Context, original *corev1.ServiceSpec, refused error) error {
	spec, lost, err := bridge.WithoutTakenPorts(ctx, a.Client, a.progress.Key(), original)
	switch {
	case err != nil:
		return err
	case len(lost) == 0:
		return stranded(refused)
	}
	a.progress.remark = fmt.Sprintf("service %s arrives with other node ports: %s", a.progress.Key(), strings.Join(lost, ", "))
	return a.arriveAs(ctx, spec)
}

// samePorts compares ports after a hop. The API server has replaced node ports that others were
// given meanwhile.
func samePorts(have, want []corev1.ServicePort) bool {
	have = slices.Clone(have)
	for i := range have {
		if i < len(want) && want[i].NodePort == 0 {
			have[i].NodePort = 0
		}
	}
	return equality.Semantic.DeepEqual(have, want)
}

// delayKubeProxies has the next sync of every kube-proxy come after both patches; done undoes it.
func (a *attempt) delayKubeProxies(ctx context.Context) (done func(context.Context) error, err error) {
	if err := a.checkQuota(ctx); err != nil {
		return nil, err
	}
	if a.routed() {
		if err := a.throttle.Rest(ctx); err != nil {
			return nil, err
		}
	}
	return bridge.Nudge(ctx, a.Client, a.Pool, a.Migration)
}
