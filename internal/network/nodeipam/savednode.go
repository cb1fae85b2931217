package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	dataNode     = "node.json"
	dataPodCIDRs = "podCIDRs"
)

// SavedNode is a Node before its deletion, with its future ranges. It is in the cluster until the
// new Node is complete, so a Node that is gone is found here.
type SavedNode struct {
	Node     *corev1.Node
	PodCIDRs []string
}

// SavedNodes are the stored Nodes of one migration.
type SavedNodes struct {
	Client    client.Client
	Migration string
}

func (k SavedNodes) key(node string) client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "node-" + node}
}

// Get returns nil if there is none of that node.
func (k SavedNodes) Get(ctx context.Context, node string) (*SavedNode, error) {
	m := &corev1.ConfigMap{}
	err := k.Client.Get(ctx, k.key(node), m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what is kept of node %s: %w", node, err)
	}
	return read(m)
}

func (k SavedNodes) List(ctx context.Context) (map[string]*SavedNode, error) {
	maps := &corev1.ConfigMapList{}
	err := k.Client.List(ctx, maps, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{
		v1alpha1.LabelMigration: k.Migration, v1alpha1.LabelRole: v1alpha1.RoleNode,
	})
	if err != nil {
		return nil, fmt.Errorf("listing what is kept of nodes: %w", err)
	}
	all := map[string]*SavedNode{}
	for i := range maps.Items {
		one, err := read(&maps.Items[i])
		if err != nil {
			return nil, err
		}
		all[one.Node.Name] = one
	}
	return all, nil
}

func read(m *corev1.ConfigMap) (*SavedNode, error) {
	one := &SavedNode{Node: &corev1.Node{}, PodCIDRs: strings.Split(m.Data[dataPodCIDRs], ",")}
	if err := json.Unmarshal([]byte(m.Data[dataNode]), one.Node); err != nil || one.Node.Name == "" || m.Data[dataPodCIDRs] == "" {
		return nil, fmt.Errorf("configmap %s/%s does not hold a node (%w)", m.Namespace, m.Name, err)
	}
	return one, nil
}

// Save stores a Node that is about to be deleted, in place of what was stored of it.
func (k SavedNodes) Save(ctx context.Context, node *corev1.Node, podCIDRs []string) error {
	node = node.DeepCopy()
	node.ManagedFields = nil
	body, err := json.Marshal(node)
	if err != nil {
		return fmt.Errorf("keeping node %s: %w", node.Name, err)
	}
	key := k.key(node.Name)
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{v1alpha1.LabelMigration: k.Migration, v1alpha1.LabelRole: v1alpha1.RoleNode},
		},
		Data: map[string]string{dataNode: string(body), dataPodCIDRs: strings.Join(podCIDRs, ",")},
	}
	err = k.Client.Create(ctx, want, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		err = k.Client.Update(ctx, want, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("keeping node %s: %w", node.Name, err)
	}
	stored, err := k.Get(ctx, node.Name)
	if err != nil {
		return err
	}
	if stored == nil || stored.Node.ResourceVersion != node.ResourceVersion || !slices.Equal(stored.PodCIDRs, podCIDRs) {
		return fmt.Errorf("node %s was not kept as it is", node.Name)
	}
	return nil
}

func (k SavedNodes) Forget(ctx context.Context, node string) error {
	key := k.key(node)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := client.IgnoreNotFound(k.Client.Delete(ctx, m)); err != nil {
		return fmt.Errorf("forgetting node %s: %w", node, err)
	}
	return nil
}
