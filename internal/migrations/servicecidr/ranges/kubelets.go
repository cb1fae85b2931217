package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// Kubelets may not give pods the cluster DNS address that is left.
type Kubelets struct {
	Cluster   *cluster.Cluster
	Migration string
	// Left are the addresses that no kubelet may name any more.
	Left []netip.Addr
	// Want are those in their places.
	Want []netip.Addr
	// Confirmation is the annotation's value by which the operator vouches for silent kubelets.
	Confirmation string

	// waiting are the nodes that were not in order when last asked; nil means all.
	waiting []string
}

// Holds asks nodes that were not in order, until all are; then all again.
func (k *Kubelets) Holds(ctx context.Context) error {
	if k.waiting == nil {
		nodes := &corev1.NodeList{}
		if err := k.Cluster.List(ctx, nodes); err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		for i := range nodes.Items {
			k.waiting = append(k.waiting, nodes.Items[i].Name)
		}
	}
	vouched, err := k.vouched(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var still, reasons []string
	var eg errgroup.Group
	eg.SetLimit(stepsAtOnce)
	for _, node := range k.waiting {
		eg.Go(func() error {
			if reason := k.ask(ctx, node, vouched); reason != "" {
				mu.Lock()
				defer mu.Unlock()
				still, reasons = append(still, node), append(reasons, reason)
			}
			return nil
		})
	}
	_ = eg.Wait() // the goroutines report in still
	if len(still) == 0 {
		k.waiting = nil
		return nil
	}
	k.waiting = still
	slices.Sort(reasons)
	return engine.NotYet("%s", services.FirstTen(reasons))
}

// vouched reports whether the operator vouches for kubelets that cannot be asked.
func (k *Kubelets) vouched(ctx context.Context) (bool, error) {
	if k.Confirmation == "" {
		return false, nil
	}
	m, err := migration.Get(ctx, k.Cluster, k.Migration)
	return err == nil && migration.Answered(m, v1alpha1.AnnotationKubelets, k.Confirmation), err
}

// ask says what is wrong with one kubelet; nothing, if it is in order.
func (k *Kubelets) ask(ctx context.Context, node string, vouched bool) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer := inventory.AskKubelet(ctx, k.Cluster, node)
	if answer.Err != nil {
		return k.silent(ctx, node, answer.Err, vouched)
	}
	for _, a := range k.Left {
		if slices.Contains(answer.DNS, a.String()) {
			return fmt.Sprintf("the kubelet of node %s gives pods clusterDNS %s", node, a)
		}
	}
	return ""
}

// silent says what to do about a kubelet that does not answer; empty if it is vouched for, or gone.
func (k *Kubelets) silent(ctx context.Context, node string, why error, vouched bool) string {
	err := k.Cluster.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err): // it has left the cluster
		return ""
	case !apierrors.IsForbidden(why):
		return fmt.Sprintf("the kubelet of node %s did not say: %v", node, why)
	case vouched:
		return ""
	}
	return fmt.Sprintf("the kubelet of node %s cannot be asked without the right to get nodes/proxy; once it names %s as cluster DNS, "+
		"confirm it: kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		node, k.Confirmation, k.Migration, v1alpha1.AnnotationKubelets, k.Confirmation)
}

// RecordKubelets records since when no kubelet names the old address: older pods may carry it.
func RecordKubelets(c client.Client, name string, now func() time.Time) engine.Step {
	return &engine.Write{
		Name: "record/kubelets", About: "Record that kubelets have been seen to name the other address", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			m, err := migration.Get(ctx, c, name)
			if err == nil && (m == nil || m.Status.NodesRepointedAt == nil) {
				return engine.NotYet("status.nodesRepointedAt of migration %s is not set yet", name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			at := metav1.NewTime(now())
			return migration.UpdateStatus(ctx, c, name, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = &at })
		},
		Changes: migration.StatusChange(name, map[string]any{"nodesRepointedAt": "<now>"}),
	}
}
