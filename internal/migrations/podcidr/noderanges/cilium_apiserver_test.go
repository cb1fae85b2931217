//go:build apiserver

package noderanges

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// nextRange is the last one: the operator gives nodes that join the first.
const (
	formerRange, nextRange = "10.244.0.0/24", "10.245.255.0/24"
	formerOwn, anotherOwn  = "10.244.0.7", "10.245.255.9"
)

// ciliumWorld is a node with Cilium, whose operator and agent are played.
type ciliumWorld struct {
	*testing.T
	c    *cluster.Cluster
	node node
	// reserved is what the operator has for the node.
	reserved []string
}

func newCiliumWorld(t *testing.T) *ciliumWorld {
	t.Helper()
	server := lazy.Get(t)
	c, err := cluster.Connect(server.Config)
	must(t, err)
	t.Cleanup(func() { removeWorld(t, c) })
	w := &ciliumWorld{T: t, c: c, node: node{
		cluster: c, migration: "m", name: "a", ranges: []string{nextRange}, former: netip.MustParsePrefix(formerRange),
		agents: []client.ObjectKey{{Namespace: "kube-system", Name: "cilium"}},
	}}
	w.define()
	must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	for _, namespace := range []string{"kube-system", v1alpha1.SystemNamespace} {
		err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	w.agent("first")
	w.ciliumNode()
	return w
}

func removeWorld(t *testing.T, c client.Client) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, kind := range []schema.GroupVersionKind{ciliumipam.GroupVersionKind(), ciliumipam.PoolKind()} {
		all := &unstructured.Unstructured{}
		all.SetGroupVersionKind(kind)
		must(t, c.DeleteAllOf(ctx, all))
	}
	must(t, c.DeleteAllOf(ctx, &corev1.Node{}))
	for _, namespace := range []string{"kube-system", v1alpha1.SystemNamespace} {
		must(t, c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}}
	must(t, client.IgnoreNotFound(c.Delete(ctx, config)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// define makes kinds of Cilium known, as its operator does.
func (w *ciliumWorld) define() {
	w.Helper()
	kinds := map[string]schema.GroupVersionKind{"ciliumnodes": ciliumipam.GroupVersionKind(), "ciliumpodippools": ciliumipam.PoolKind()}
	for plural, kind := range kinds {
		free := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
		crd := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + kind.Group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: kind.Group, Scope: apiextensionsv1.ClusterScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{
					Plural: plural, Singular: strings.ToLower(kind.Kind), Kind: kind.Kind, ListKind: kind.Kind + "List",
				},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: kind.Version, Served: true, Storage: true,
					Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &free},
					Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				}},
			},
		}
		if err := w.c.Create(w.Context(), crd); err != nil && !apierrors.IsAlreadyExists(err) {
			w.Fatal(err)
		}
	}
	for _, kind := range kinds {
		w.eventually(func() error { return w.c.List(w.Context(), listOf(kind)) })
	}
}

func listOf(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	kind.Kind += "List"
	list.SetGroupVersionKind(kind)
	return list
}

func (w *ciliumWorld) eventually(what func() error) {
	w.Helper()
	var last error
	err := wait.PollUntilContextTimeout(w.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		last = what()
		return last == nil, nil
	})
	if err != nil {
		w.Fatal(errors.Join(err, last))
	}
}

// agent starts the agent's pod.
func (w *ciliumWorld) agent(name string) *corev1.Pod {
	w.Helper()
	pod := agentPod(name)
	must(w.T, w.c.Create(w.Context(), pod))
	return w.ready(pod)
}

func agentPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-" + name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "cilium", UID: "cilium", Controller: ptr.To(true)},
		}},
		Spec: corev1.PodSpec{
			NodeName: "a", HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0),
		},
	}
}

func (w *ciliumWorld) ready(pod *corev1.Pod) *corev1.Pod {
	w.Helper()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must(w.T, w.c.Status().Update(w.Context(), pod))
	return pod
}

func (w *ciliumWorld) ciliumNode() {
	w.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"addresses": []any{map[string]any{"type": "InternalIP", "ip": "192.0.2.1"}, map[string]any{"type": "CiliumInternalIP", "ip": formerOwn}},
		"ipam":      map[string]any{"podCIDRs": []any{formerRange}},
	}}}
	u.SetGroupVersionKind(ciliumipam.GroupVersionKind())
	u.SetName("a")
	must(w.T, w.c.Create(w.Context(), u))
	w.complain("allocator not configured for the requested CIDR " + formerRange)
}

func (w *ciliumWorld) now() *ciliumipam.CiliumNode {
	w.Helper()
	n, err := ciliumipam.Get(w.Context(), w.c, "a", "")
	must(w.T, err)
	return n
}

// complain has the operator say something of the range; nothing, if it has reserved it.
func (w *ciliumWorld) complain(says string) {
	w.Helper()
	u := w.now().Object().DeepCopyObject().(*unstructured.Unstructured)
	must(w.T, unstructured.SetNestedField(u.Object, says, "status", "ipam", "operator-status", "error"))
	must(w.T, w.c.Status().Update(w.Context(), u))
}

// operate is a look of the operator at the CiliumNode, as reuseIPNets has it.
func (w *ciliumWorld) operate() {
	w.Helper()
	n := w.now()
	switch {
	case n == nil || n.Ignored:
	case w.reserved != nil && !slices.Equal(n.PodCIDRs, w.reserved):
		must(w.T, n.Give(w.Context(), w.c, w.reserved))
		w.complain("node has CIDRs allocated that conflict with requested CIDRs")
	case slices.Equal(n.PodCIDRs, []string{nextRange}):
		w.reserved = n.PodCIDRs
		w.complain("")
	}
}

// copyAnnotations is what the agent does with those of its Node.
func (w *ciliumWorld) copyAnnotations() {
	w.Helper()
	found := &corev1.Node{}
	must(w.T, w.c.Get(w.Context(), client.ObjectKey{Name: "a"}, found))
	u := w.now().Object().DeepCopyObject().(*unstructured.Unstructured)
	u.SetAnnotations(found.Annotations)
	must(w.T, w.c.Update(w.Context(), u))
}

// restart replaces the agent, which takes the address that its CiliumNode names.
func (w *ciliumWorld) restart() {
	w.Helper()
	w.eventually(func() error {
		err := w.c.Get(w.Context(), client.ObjectKey{Namespace: "kube-system", Name: "cilium-first"}, &corev1.Pod{})
		if err == nil {
			return errors.New("the agent's pod is still there")
		}
		return client.IgnoreNotFound(err)
	})
	w.agent("second")
}

// write has a step write once. The engine tells what is not proven yet from what has failed.
func (w *ciliumWorld) write(s engine.Step) error {
	w.Helper()
	return s.Do(w.Context())
}

func (w *ciliumWorld) proven(s engine.Step) {
	w.Helper()
	if err := s.Verify(w.Context()); err != nil {
		w.Errorf("%s: %v", s.ID(), err)
	}
}

func (w *ciliumWorld) waits(s engine.Step, says string) {
	w.Helper()
	if err := s.Verify(w.Context()); err == nil || !strings.Contains(err.Error(), says) {
		w.Errorf("%s: %v, want %q", s.ID(), err, says)
	}
}

// TestCiliumNodeOnItsWay takes a node through every step, in the order of the plan. Each is
// repeated by a run of its own, as after a kill, and finds nothing to do then.
func TestCiliumNodeOnItsWay(t *testing.T) {
	w := newCiliumWorld(t)
	w.node.holds = true
	n, image := w.node, pull.Image{Name: "replumb"}
	again := func(s engine.Step) {
		t.Helper()
		w.proven(s)
		if state, err := s.State(t.Context()); err != nil || state != engine.Done {
			t.Errorf("%s again: %v, %v", s.ID(), state, err)
		}
	}

	must(t, w.write(n.give()))
	w.waits(n.give(), "has not reserved")
	w.operate()
	again(n.give())

	must(t, w.write(n.hold(image)))
	w.waits(n.hold(image), "is not ready")
	pod := &corev1.Pod{}
	must(t, w.c.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "tunnel-a"}, pod))
	if got := pod.Spec.InitContainers[0].Args; !slices.Equal(got, []string{"tunnels", "succeed", "cilium_host", "10.245.255.253", formerRange}) {
		t.Errorf("the pod runs %v", got)
	}
	w.ready(pod)
	again(n.hold(image))

	if err := w.write(n.lead()); err == nil {
		t.Error("a range beside that of the operator is written while it looks")
	}
	must(t, w.write(n.ignore()))
	w.waits(n.ignore(), "has not the annotation")
	w.copyAnnotations()
	again(n.ignore())

	must(t, w.write(n.lead()))
	w.operate()
	again(n.lead())
	again(n.give())
	if got := w.now(); !slices.Equal(got.All(), []string{nextRange, formerRange}) || !slices.Equal(got.Internal, []netip.Addr{netip.MustParseAddr("10.245.255.253")}) {
		t.Errorf("the CiliumNode has %v and %v", got.All(), got.Internal)
	}

	restart := n.restartCilium()
	w.waits(restart, "has not taken the range")
	if err := w.write(restart); !engine.Retryable(err) {
		t.Errorf("its agent ends: %v", err)
	}
	w.restart()
	again(restart)
	again(n.hold(image))

	must(t, w.write(n.letGo()))
	w.eventually(func() error {
		err := w.c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)) // no kubelet does
		return client.IgnoreNotFound(err)
	})
	again(n.letGo())
	must(t, w.write(n.settle()))
	w.copyAnnotations()
	w.operate()
	again(n.settle())
	for _, s := range []engine.Step{n.give(), n.hold(image), n.ignore(), n.lead(), n.restartCilium()} {
		again(s)
	}
	found := &corev1.Node{}
	must(t, w.c.Get(t.Context(), client.ObjectKey{Name: "a"}, found))
	if found.Annotations[v1alpha1.AnnotationPodCIDRs] != formerRange || len(found.Annotations) != 1 {
		t.Errorf("the Node has %v", found.Annotations)
	}
}

// TestCiliumNodeIsGone: somebody has deleted the CiliumNode, before the range is given or after. It
// is made with the range that the node is to have, which an agent finds that starts.
func TestCiliumNodeIsGone(t *testing.T) {
	w := newCiliumWorld(t)
	must(t, w.c.Delete(t.Context(), w.now().Object()))
	w.waits(w.node.give(), "ciliumnode a is not there")
	must(t, w.write(w.node.give()))
	if err := w.node.makeCilium(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}}); !engine.Retryable(err) {
		t.Errorf("its agent has made it meanwhile: %v", err)
	}
	w.operate()
	w.proven(w.node.give())

	must(t, w.c.Delete(t.Context(), w.now().Object()))
	if err := w.write(w.node.restartCilium()); !engine.Retryable(err) {
		t.Errorf("its agent ends: %v", err)
	}
	if got := w.now(); got == nil || !slices.Equal(got.PodCIDRs, []string{nextRange}) {
		t.Errorf("the next agent finds %+v", got)
	}
}

// TestCiliumRangeOfAnother: the operator has given the range to a node that joined, and says so;
// nothing else begins.
func TestCiliumRangeOfAnother(t *testing.T) {
	w := newCiliumWorld(t)
	must(t, w.write(w.node.give()))
	w.complain("CIDR 10.245.255.0/24 is already allocated")
	w.waits(w.node.give(), "already allocated")
	if err := w.write(w.node.give()); err != nil {
		t.Error(err)
	}
	w.waits(w.node.give(), "already allocated")
}

// TestCiliumAgentByItself: an agent that has restarted with the new range by itself, and chosen its
// own address, is restarted no more.
func TestCiliumAgentByItself(t *testing.T) {
	w := newCiliumWorld(t)
	must(t, w.write(w.node.give()))
	w.operate()
	must(t, w.c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-first"}}, client.GracePeriodSeconds(0)))
	w.restart()
	must(t, w.now().Lead(t.Context(), w.c, []string{nextRange}, netip.MustParseAddr(anotherOwn)))
	w.proven(w.node.restartCilium())
	w.proven(w.node.hold(pull.Image{Name: "replumb"}))
	w.proven(w.node.lead())
	must(t, w.write(w.node.settle()))
	w.proven(w.node.settle())
}

// TestCiliumOperatorLearnsItsPool: it is restarted once, all of its pods at once, and proves by
// what it says of nodes that it has the pool.
func TestCiliumOperatorLearnsItsPool(t *testing.T) {
	w := newCiliumWorld(t)
	w.complain("")
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"},
		Data:       map[string]string{ciliumipam.ModeKey: ciliumipam.ClusterPool, ciliumipam.PoolKey: "10.244.0.0/16"},
	}
	must(t, w.c.Create(t.Context(), cm))
	for _, name := range []string{"operator-1", "operator-2"} {
		must(t, w.c.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"io.cilium/app": "operator"}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: ptr.To(false),
				TerminationGracePeriodSeconds: ptr.To[int64](0),
			},
		}))
	}
	survey, err := New(found("10.245.0.0/16", carrying("a", "", "")), Sources{Cilium: NewCilium(cm, map[string]*ciliumipam.CiliumNode{"a": w.now()})})
	must(t, err)
	all := cilium{nodes: survey, migration: "m"}
	all.tools.Cluster = w.c

	must(t, w.write(all.configure(forward)))
	w.proven(all.configure(forward))
	restart := all.restartOperator(forward)
	w.waits(restart, "still takes 10.244.0.0/24 of node a for its own")
	must(t, w.write(restart))
	pods, err := operatorPods(t.Context(), w.c)
	if err != nil || len(pods) > 0 {
		t.Errorf("%d pods of the operator are left, %v", len(pods), err)
	}
	w.complain("allocator not configured")
	w.waits(restart, "no pod that is ready")
	w.operatorPod("operator-3")
	w.proven(restart)

	must(t, w.write(all.configure(backward)))
	w.complain("")
	w.proven(all.configure(backward))
	w.proven(all.restartOperator(backward))
	must(t, w.write(all.forget()))
	must(t, w.c.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
	if cm.Data[ciliumipam.PoolKey] != "10.244.0.0/16" || cm.Data[ciliumipam.SizeKey] != "" || ciliumipam.Noted(cm) {
		t.Errorf("cilium-config is %v with %v", cm.Data, cm.Annotations)
	}
}
