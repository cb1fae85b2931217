package noderanges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// agentTime is how long an agent of Cilium may take to start: it compiles its programs for the
// node.
const agentTime = 5 * time.Minute

const configObject = "ConfigMap " + metav1.NamespaceSystem + "/" + podnetwork.CiliumConfig

var errConfigGone = errors.New("configmap " + metav1.NamespaceSystem + "/" + podnetwork.CiliumConfig + " is gone")

// cilium makes the steps that change what Cilium's operator gives.
type cilium struct {
	tools     migration.Deps
	nodes     *Inventory
	migration string
}

// configure has cilium-config name the pool of a direction.
func (c cilium) configure(d engine.Direction) engine.Step {
	back, to, bits := d == engine.Backward, c.nodes.Spec.To[0], targetBits(c.nodes.NodeRanges)
	change := func(cm *corev1.ConfigMap) error {
		if back {
			ciliumipam.RestorePool(cm, c.nodes.poolAt(back))
			return nil
		}
		return ciliumipam.SetPool(cm, to, bits)
	}
	read := func(ctx context.Context) (*corev1.ConfigMap, error) {
		cm, err := ciliumConfig(ctx, c.tools.Cluster)
		if err != nil || cm == nil {
			return nil, errors.Join(err, errConfigGone)
		}
		want := cm.DeepCopy()
		if err := change(want); err != nil {
			return nil, err
		}
		if !maps.Equal(want.Data, cm.Data) {
			return cm, engine.NotYet("%s is %s", ciliumipam.PoolKey, cm.Data[ciliumipam.PoolKey])
		}
		return cm, nil
	}
	return &engine.Observed[*corev1.ConfigMap]{
		Name: "pool/config", About: "Have cilium-config name " + strings.Join(podmove.Texts(c.nodes.poolAt(back)), " ") + " as the pool of Cilium's operator",
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, cm *corev1.ConfigMap) error {
			return patchConfig(ctx, c.tools.Cluster, cm, change)
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: configObject, Body: map[string]any{
			"data": map[string]any{ciliumipam.PoolKey: strings.Join(podmove.Texts(c.nodes.poolAt(back)), " ")},
		}}),
	}
}

func patchConfig(ctx context.Context, c client.Client, cm *corev1.ConfigMap, change func(*corev1.ConfigMap) error) error {
	was := cm.DeepCopy()
	if err := change(cm); err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, cm, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("configmap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	return nil
}

// forget takes the note of the former pool off cilium-config.
func (c cilium) forget() engine.Step {
	read := func(ctx context.Context) (*corev1.ConfigMap, error) {
		cm, err := ciliumConfig(ctx, c.tools.Cluster)
		if err == nil && cm != nil && ciliumipam.Noted(cm) {
			return cm, engine.NotYet("configmap %s/%s has a note of its former pool", cm.Namespace, cm.Name)
		}
		return cm, err
	}
	return &engine.Observed[*corev1.ConfigMap]{
		Name: "tidy/pool", About: "Remove the annotation from cilium-config", As: engine.RoleOwn,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, cm *corev1.ConfigMap) error {
			return patchConfig(ctx, c.tools.Cluster, cm, func(cm *corev1.ConfigMap) error { ciliumipam.ForgetPool(cm); return nil })
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: configObject, Body: map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationCiliumPool: nil}},
		}}),
	}
}

// restartOperator ends pods of the operator, which reads its pool when it starts. All at once: one
// that had stood by with the former pool would lead next. No node is begun before one is ready.
func (c cilium) restartOperator(d engine.Direction) engine.Step {
	pool, ended := c.nodes.poolAt(d == engine.Backward), map[types.UID]bool{}
	read := func(ctx context.Context) ([]corev1.Pod, error) {
		all, err := ciliumipam.List(ctx, c.tools.Cluster, "")
		if err != nil {
			return nil, err
		}
		pods, err := operatorPods(ctx, c.tools.Cluster)
		if err != nil {
			return nil, err
		}
		missing := taken(pool, all)
		if missing == "" {
			return nil, serving(pods)
		}
		return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return ended[p.UID] }),
			engine.NotYet("Cilium's operator has not the pool %s: %s", strings.Join(podmove.Texts(pool), " "), missing)
	}
	return &engine.Observed[[]corev1.Pod]{
		Name: "pool/operator", About: "Restart Cilium's operator, which learns its pool then", Limit: agentTime, As: engine.RoleMove,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, pods []corev1.Pod) error {
			if len(ended) > 0 {
				return nil
			}
			return endPods(ctx, c.tools.Cluster, pods, ended)
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod kube-system/* of Cilium's operator"}),
	}
}

// serving fails unless a pod of the operator is ready.
func serving(pods []corev1.Pod) error {
	if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return connectivity.Ready(&p) }) {
		return nil
	}
	return engine.NotYet("Cilium's operator has no pod that is ready")
}

// operatorPods are those of Cilium's operator, by the labels of its chart.
func operatorPods(ctx context.Context, c client.Reader) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	err := c.List(ctx, all, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{"io.cilium/app": "operator"})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of Cilium's operator: %w", err)
	}
	return all.Items, nil
}

func endPods(ctx context.Context, c client.Client, pods []corev1.Pod, ended map[types.UID]bool) error {
	for i := range pods {
		p := &pods[i]
		ended[p.UID] = true
		if err := client.IgnoreNotFound(c.Delete(ctx, p, client.Preconditions{UID: &p.UID})); err != nil {
			return fmt.Errorf("restarting pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}
