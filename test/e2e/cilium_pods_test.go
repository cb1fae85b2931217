package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// ciliumConfigKey is where Cilium has its configuration.
func ciliumConfigKey() client.ObjectKey {
	return client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "cilium-config"}
}

// TestCiliumPods moves the pods of a cluster with Cilium node by node: there, killed three times, back, there again, and finish. Ranges of
// nodes are of Cilium's operator or of a CiliumPodIPPool, each over tunnels and with native routing, or of Nodes. Clients on the nodes' own network
// and in pods that move call Services throughout, and what policies forbid stays so. The control is what upstream advises: another pool, and every
// CiliumNode, agent and pod at once.
func TestCiliumPods(t *testing.T) {
	native := map[string]string{ciliumipam.RoutingKey: "native", ciliumipam.DirectKey: "true", ciliumipam.NativeKey: bothPods}
	byNodes := maps.Clone(native)
	byNodes[ciliumipam.ModeKey] = ciliumipam.Kubernetes
	poolsNative := ofPools()
	maps.Copy(poolsNative, native)
	for _, tt := range []struct {
		topology lab.Topology
		// config is set before anything is called.
		config map[string]string
		killed []string
	}{
		{
			topology: withCilium("e2e-cilium-pods", lab.NoProxy, lab.NoProxy, lab.NoProxy),
			killed:   []string{"pool/operator", "lead/node1", "agent/node2"},
		},
		{
			topology: withCilium("e2e-cilium-native", lab.IPTables, lab.NFTables), config: native,
			killed: []string{"pool/operator", "switch/node1", "agent/node2"},
		},
		{
			topology: withCilium("e2e-cilium-nodes", lab.IPTables, lab.NFTables), config: byNodes,
			killed: []string{"drain/node1", "switch/node1", "agent/node2"},
		},
		{
			topology: withCilium("e2e-cilium-multi", lab.NoProxy, lab.NoProxy), config: ofPools(),
			killed: []string{"pool/operator", "lead/node1", "agent/node2"},
		},
		{
			topology: withCilium("e2e-cilium-multi-n", lab.NoProxy, lab.NoProxy), config: poolsNative,
			killed: []string{"pool/operator", "switch/node1", "agent/node2"},
		},
	} {
		t.Run(tt.topology.Name, func(t *testing.T) {
			l := bringUp(t, tt.topology)
			reconfigureCilium(t, l, tt.config)
			mode := cmp.Or(tt.config[ciliumipam.ModeKey], ciliumipam.ClusterPool)
			m := ciliumMove{l: l, s: ciliumUnderTraffic(t, l), file: writeNodes(t), mode: mode}
			m.run(t, tt.killed)
			if mode == ciliumipam.Kubernetes {
				requireDeletingLoses(t, l, m.s)
			} else {
				requireUpstreamLoses(t, l, m.s, mode)
			}
		})
	}
}

// ciliumMove is a migration of the pods of a lab with Cilium, by its mode of IPAM.
type ciliumMove struct {
	l    *lab.Lab
	s    *shop
	file string
	mode string
}

// ofPools has nodes get their ranges of CiliumPodIPPools.
func ofPools() map[string]string {
	return map[string]string{ciliumipam.ModeKey: ciliumipam.MultiPool, "enable-bpf-masquerade": "true"}
}

// reconfigureCilium has a lab in which nothing is called yet run Cilium with a configuration; nil is that which it has.
func reconfigureCilium(t *testing.T, l *lab.Lab, config map[string]string) {
	t.Helper()
	if config == nil {
		return
	}
	if l.ProxyModes()[l.NodeNames()[0]] != string(lab.NoProxy) {
		must(t, l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(bothPods)))
	}
	makePool(t, l, config)
	configureCilium(t, l, config)
	restartCilium(t, l)
	forgetFormerRanges(t, l, config)
}

// poolOf is the pool of which nodes have their ranges; empty unless there are several.
func poolOf(mode string) string {
	if mode == ciliumipam.MultiPool {
		return "default"
	}
	return ""
}

// makePool makes the pool of which nodes get their ranges, if there can be several: so small ones that a node needs more than one.
func makePool(t *testing.T, l *lab.Lab, config map[string]string) {
	t.Helper()
	name := poolOf(config[ciliumipam.ModeKey])
	if name == "" {
		return
	}
	pool := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"ipv4": map[string]any{"cidrs": []any{oldPods}, "maskSize": int64(27)},
	}}}
	pool.SetGroupVersionKind(ciliumipam.PoolKind())
	pool.SetName(name)
	must(t, clusterClient(t, l).Create(t.Context(), pool))
}

func (m ciliumMove) run(t *testing.T, killed []string) {
	from, to := netip.MustParsePrefix(oldPods), netip.MustParsePrefix(newPods)
	shown(t, m.l, "check", "-f", m.file)
	there := m.s.during(t, "the move of pods behind Cilium", func() {
		for _, step := range killed {
			o := operator{lab: m.l, podCIDR: to, killAt: eventOf(engine.StepStarted, step)}
			cmd := command(t, "replumb", "apply", "-f", m.file, "-o", "json", "--kubeconfig", m.l.Kubeconfig())
			if _, code, _ := o.attend(t, cmd); code != -1 {
				t.Fatalf("apply ended with exit code %d before %s", code, step)
			}
		}
		attendNodes(t, m.l, newPods, "apply", "-f", m.file)
	})
	there.requireHarmless(t)
	m.requireIn(t, to)

	back := m.s.during(t, "the rollback of pods behind Cilium", func() { attendNodes(t, m.l, oldPods, "rollback", "pods", "--yes") })
	back.requireHarmless(t)
	m.requireIn(t, from)
	requireNoTrace(t, m.l)

	again := m.s.during(t, "the second move of pods behind Cilium", func() {
		attendNodes(t, m.l, newPods, "apply", "-f", m.file)
		attendNodes(t, m.l, newPods, "finish", "pods", "--yes")
	})
	again.requireHarmless(t)
	m.requireIn(t, to)
	requireNoTrace(t, m.l)
	requireVerdictsAreThePolicies(t, m.l, m.s, varietyNamespace)
}

// forgetFormerRanges takes out of CiliumNodes what agents have left there that had no pools.
func forgetFormerRanges(t *testing.T, l *lab.Lab, config map[string]string) {
	t.Helper()
	if poolOf(config[ciliumipam.ModeKey]) == "" {
		return
	}
	nodes, err := ciliumipam.List(t.Context(), clusterClient(t, l), "")
	must(t, err)
	for _, n := range nodes {
		patch := []byte(`{"spec":{"ipam":{"podCIDRs":null}}}`)
		must(t, clusterClient(t, l).Patch(t.Context(), n.Object(), client.RawPatch(types.MergePatchType, patch)))
	}
}

// restartCilium has operator and agents read their configuration again, and pods that there are already get addresses by it.
func restartCilium(t *testing.T, l *lab.Lab) {
	t.Helper()
	deletePods(t, l, metav1.NamespaceSystem, "io.cilium/app=operator")
	replaceAgents(t, l)
	deletePods(t, l, metav1.NamespaceSystem, "k8s-app=kube-dns")
}

func deletePods(t *testing.T, l *lab.Lab, namespace, selector string) {
	t.Helper()
	must(t, l.Client().CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector}))
}

// TestCiliumWatched has agents on every node, on its own network and on that of pods, while pods move behind Cilium over tunnels. They see
// nothing lost, and neither do clients of the test's own.
func TestCiliumWatched(t *testing.T) {
	l := bringUp(t, withCilium("e2e-cilium-watched", lab.NoProxy, lab.NoProxy))
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 6, LookUp: 3})
	file := writeWatched(t, fmt.Sprintf("from: [%s]\n    to: [%s]", oldPods, newPods))
	for _, args := range [][]string{
		{"apply", "-f", file}, {"rollback", watchedName, "--yes"}, {"apply", "-f", file}, {"finish", watchedName, "--yes"},
	} {
		lived := s.during(t, args[0], func() { attendNodes(t, l, newPods, args...) })
		lived.requireNothingLost(t, traffic.All)
		requireNothingLostBy(t, l, watchedName)
	}
	requirePodsIn(t, l, netip.MustParsePrefix(newPods))
	requireNoTrace(t, l)
}

// TestCiliumReturns has Cilium's agent on one node not start while its pods move: apply takes that node back by itself, loses nothing on the
// way, on any node, and begins no other. Killed on the way back, it completes that before it stops. Once agents start, it moves all nodes.
// Ranges of nodes are of Cilium's operator, and of a CiliumPodIPPool, where agents write to their CiliumNode themselves.
func TestCiliumReturns(t *testing.T) {
	for name, config := range map[string]map[string]string{"e2e-cilium-returns": nil, "e2e-cilium-return-m": ofPools()} {
		t.Run(name, func(t *testing.T) {
			l := bringUp(t, withCilium(name, lab.NoProxy, lab.NoProxy))
			reconfigureCilium(t, l, config)
			mode := cmp.Or(config[ciliumipam.ModeKey], ciliumipam.ClusterPool)
			m := ciliumMove{l: l, s: nodesUnderTraffic(t, l, traffic.Rates{Request: 6, LookUp: 3}), file: writeNodes(t), mode: mode}
			returned := m.s.during(t, "the way there and back of a node whose agent does not start", func() { m.turnBack(t) })
			returned.requireNothingLost(t, traffic.All)
			m.requireReturned(t)
			there := m.s.during(t, "the move once agents start", func() { attendNodes(t, l, newPods, "apply", "-f", m.file) })
			there.requireNothingLost(t, traffic.All)
			m.requireIn(t, netip.MustParsePrefix(newPods))
			requireUpstreamLoses(t, l, m.s, mode)
		})
	}
}

// turnBack applies while the agent on node1 does not start, kills that on the node's way back, and applies again.
func (m ciliumMove) turnBack(t *testing.T) {
	t.Helper()
	image, began := agentImage(t, m.l, ""), map[string]bool{}
	o := operator{lab: m.l, killAt: func(e engine.Event) bool {
		switch {
		case e.Kind != engine.StepStarted:
		case e.Step == "hold/node1" && !began["return/node1"]: // agents that run stay
			agentImage(t, m.l, "replumb.local/absent:lab")
		case e.Step == "return/node1":
			agentImage(t, m.l, image)
		}
		kill := e.Step == "canary/node1" && !began[e.Step] // none is there on the way out
		began[e.Step] = true
		return kill
	}}
	for _, want := range []int{-1, 1} {
		cmd := command(t, "replumb", "apply", "-f", m.file, "-o", "json", "--kubeconfig", m.l.Kubeconfig())
		events, code, _ := o.attend(t, cmd)
		if code != want || !began["return/node1"] || began["cordon/node2"] {
			t.Errorf("apply ends with exit code %d: %+v", code, events[max(0, len(events)-4):])
		}
	}
}

// agentImage has agents that start from now on run an image, and returns the one of before; an empty one changes nothing but that agents that
// run stay.
func agentImage(t *testing.T, l *lab.Lab, image string) (before string) {
	t.Helper()
	sets := l.Client().AppsV1().DaemonSets(metav1.NamespaceSystem)
	have, err := sets.Get(t.Context(), "cilium", metav1.GetOptions{})
	must(t, err)
	before = have.Spec.Template.Spec.InitContainers[0].Image
	if image == "" {
		image = before
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"updateStrategy": map[string]any{"type": "OnDelete", "rollingUpdate": nil},
		"template": map[string]any{"spec": map[string]any{"initContainers": []any{
			map[string]any{"name": have.Spec.Template.Spec.InitContainers[0].Name, "image": image},
		}}},
	}})
	must(t, err)
	_, err = sets.Patch(t.Context(), "cilium", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	return before
}

// requireReturned fails the test unless every node has its former range, takes pods, and tells nothing of a way.
func (m ciliumMove) requireReturned(t *testing.T) {
	t.Helper()
	from := netip.MustParsePrefix(oldPods)
	requirePodsIn(t, m.l, from)
	m.requireRanges(t, from)
	for name, n := range nodesByName(t, m.l) {
		if n.Spec.Unschedulable || n.Annotations[v1alpha1.AnnotationReturning] != "" || n.Annotations[v1alpha1.AnnotationCiliumAgent] != "" {
			t.Errorf("node %s has %v and is unschedulable: %t", name, n.Annotations, n.Spec.Unschedulable)
		}
	}
	requireNothingOnLoopback(t, m.l)
}

// ciliumUnderTraffic has clients on nodes call Services without policies, and clients in pods, which move, call others with them. They call
// less often than elsewhere: agents that start compile their programs, on the processors that clients have.
func ciliumUnderTraffic(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 1.5, LookUp: 1})
	front := workload.Echo{Namespace: varietyNamespace, Name: workload.GuestsMay, PartOf: workload.PartOfVariety, Replicas: 2}
	cart := workload.Echo{Namespace: varietyNamespace, Name: "cart", PartOf: workload.PartOfVariety, Replicas: 2}
	objects := slices.Concat(
		[]runtime.Object{workload.Namespace(varietyNamespace)}, front.Objects(), cart.Objects(), workload.Policies(varietyNamespace))
	callees, err := start(t.Context(), l, varietyNamespace, objects)
	must(t, err)
	for _, c := range callsOf(varietyNamespace, callees, traffic.Rates{Request: 1, LookUp: 1, Forbidden: 1}) {
		must(t, s.watch.AddRoving(t.Context(), l.Client(), l.NodeNames(), c))
	}
	s.awaitVerdicts(t)
	return s
}

func (sp span) requireHarmless(t *testing.T) {
	t.Helper()
	sp.requireNothingLost(t, traffic.Permitted)
	sp.requireDenied(t)
}

// requireIn fails the test unless every pod off the hosts' network, every CiliumNode and its agent are in a range, and nothing tells of the
// way there.
func (m ciliumMove) requireIn(t *testing.T, in netip.Prefix) {
	t.Helper()
	requirePodsIn(t, m.l, in)
	for name, n := range m.requireRanges(t, in) {
		if n.Problem != "" {
			t.Errorf("of ciliumnode %s the operator says %q", name, n.Problem)
		}
	}
	requireNothingOnLoopback(t, m.l)
	switch m.mode {
	case ciliumipam.ClusterPool:
		config := &corev1.ConfigMap{}
		must(t, clusterClient(t, m.l).Get(t.Context(), ciliumConfigKey(), config))
		if got := config.Data[ciliumipam.PoolKey]; got != in.String() {
			t.Errorf("the pool is %s, not %s", got, in)
		}
	case ciliumipam.MultiPool:
		pool, err := ciliumipam.GetPool(t.Context(), clusterClient(t, m.l), poolOf(m.mode))
		must(t, err)
		if pool.Ranges[0] != in || pool.Note == nil && len(pool.Ranges) != 1 {
			t.Errorf("the pool has %v, not %s first, and noted is %+v", pool.Ranges, in, pool.Note)
		}
	}
}

// requireRanges fails the test unless CiliumNodes have ranges within one alone, and agents live there.
func (m ciliumMove) requireRanges(t *testing.T, in netip.Prefix) map[string]*ciliumipam.CiliumNode {
	t.Helper()
	nodes, err := ciliumipam.List(t.Context(), clusterClient(t, m.l), poolOf(m.mode))
	must(t, err)
	if len(nodes) != len(m.l.NodeNames()) {
		t.Errorf("there are %d CiliumNodes for %d nodes", len(nodes), len(m.l.NodeNames()))
	}
	for name, n := range nodes {
		apart := slices.ContainsFunc(n.All(), func(text string) bool { return !in.Overlaps(netip.MustParsePrefix(text)) })
		if apart || len(n.All()) != 1 && m.mode != ciliumipam.MultiPool || n.Ignored || !n.Lives(in) {
			t.Errorf("ciliumnode %s has %v, its agent %v", name, n.All(), n.Internal)
		}
		t.Logf("node %s has %v", name, n.All())
	}
	return nodes
}

func configureCilium(t *testing.T, l *lab.Lab, data map[string]string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"data": data})
	must(t, err)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ciliumConfigKey().Namespace, Name: ciliumConfigKey().Name}}
	must(t, clusterClient(t, l).Patch(t.Context(), config, client.RawPatch(types.MergePatchType, patch)))
}

// requireUpstreamLoses is the control: another pool, and all at once what takes ranges of it, must lose.
func requireUpstreamLoses(t *testing.T, l *lab.Lab, s *shop, mode string) {
	t.Helper()
	began := time.Now().Truncate(time.Second)
	lost := s.during(t, "another pool for all nodes at once", func() {
		const another = "10.246.0.0/16"
		configureCilium(t, l, map[string]string{ciliumipam.PoolKey: another})
		if name := poolOf(mode); name != "" {
			pool, err := ciliumipam.GetPool(t.Context(), clusterClient(t, l), name)
			must(t, err)
			must(t, pool.Set(t.Context(), clusterClient(t, l), []netip.Prefix{netip.MustParsePrefix(another)}, nil))
		}
		all := &unstructured.Unstructured{}
		all.SetGroupVersionKind(ciliumipam.GroupVersionKind())
		must(t, clusterClient(t, l).DeleteAllOf(t.Context(), all))
		deletePods(t, l, metav1.NamespaceSystem, "io.cilium/app=operator")
		replaceAgents(t, l)
		deletePods(t, l, shopNamespace, "app.kubernetes.io/part-of=shop")
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, traffic.Permitted).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
	})
	total := lost.stats(t, traffic.Permitted)
	t.Logf("control: another pool for all nodes at once lost %d of %d requests", total.Failed, total.Sent)
}
