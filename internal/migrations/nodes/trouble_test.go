//go:build apiserver

package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// applying starts a run of its own.
func (f *fixture) applying() <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f.apply() }()
	return ended
}

func (f *fixture) patch(o client.Object, body string) {
	f.Helper()
	f.Must(server.Patch(f.Context(), o, client.RawPatch(types.MergePatchType, []byte(body))))
}

func TestNewNodesInTheWrongNetwork(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.New.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: []string{"c", "d"}},
		}}
		m.Spec.Nodes.Old = v1alpha1.NodeSet{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}},
		}}}
	})
	f.misled = true
	f.Deployment("web", 2)
	f.Fails(f.apply(), "has the addresses [192.0.2.101]", newNetwork)
	f.on("a b", "web", 2)
}

// TestNoRoom: the new nodes have a foreign taint.
func TestNoRoom(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.idle = true
	ended := f.applying()
	f.Waiting("0 of 2 new nodes take pods")
	f.node("c", "198.51.100.1")
	f.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, `{"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`)
	f.node("d", "198.51.100.2")
	f.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "d"}}, `{"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`)
	err := <-ended
	f.Fails(err, "there is no place for pod shop/web-", "2 nodes with the taint gpu", "and 1 pods more")
	f.on("a b", "web", 2)
	f.Fails(f.apply(), "RP3106")
}
