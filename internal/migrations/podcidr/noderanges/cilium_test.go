package noderanges

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
)

func nodeOf(name, has, problem string) *ciliumipam.CiliumNode {
	n := &ciliumipam.CiliumNode{Name: name, Problem: problem}
	if has != "" {
		n.PodCIDRs = []string{has}
	}
	return n
}

// TestTaken: whether the operator has a pool shows in what it says of nodes, one that has none yet
// aside.
func TestTaken(t *testing.T) {
	const foreign = "allocator not configured for the requested CIDR"
	pool := []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16")}
	for name, tt := range map[string]struct {
		nodes []*ciliumipam.CiliumNode
		says  string
	}{
		"nothing has moved, and the operator knows": {nodes: []*ciliumipam.CiliumNode{nodeOf("a", "10.244.0.0/24", foreign)}},
		"half has moved": {nodes: []*ciliumipam.CiliumNode{nodeOf("a", "10.244.0.0/24", foreign), nodeOf("b", "10.245.1.0/24", "")}},
		"all has moved":  {nodes: []*ciliumipam.CiliumNode{nodeOf("b", "10.245.1.0/24", "")}},
		"one is on its way, and is not looked at": {nodes: []*ciliumipam.CiliumNode{{Name: "a", PodCIDRs: []string{"10.244.0.0/24"}, Ignored: true}}},
		"one joins":                                  {nodes: []*ciliumipam.CiliumNode{nodeOf("c", "", "")}},
		"the operator has the former pool":           {nodes: []*ciliumipam.CiliumNode{nodeOf("a", "10.244.0.0/24", "")}, says: "still takes 10.244.0.0/24"},
		"the operator has the former pool, and half": {nodes: []*ciliumipam.CiliumNode{nodeOf("b", "10.245.1.0/24", foreign)}, says: "has not reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]*ciliumipam.CiliumNode{}
			for _, n := range tt.nodes {
				all[n.Name] = n
			}
			if got := taken(pool, all); (got == "") != (tt.says == "") || !strings.Contains(got, tt.says) {
				t.Errorf("%q, want %q", got, tt.says)
			}
		})
	}
}

// TestCiliumNodesCount: ranges that controller managers have given Nodes beside them do not.
// Targets are the last ones, since the operator gives nodes that join the first.
func TestCiliumNodesCount(t *testing.T) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{v1alpha1.AnnotationCiliumPool: `{"cluster-pool-ipv4-cidr":"10.244.0.0/16"}`},
	}, Data: map[string]string{ciliumipam.ModeKey: ciliumipam.ClusterPool, ciliumipam.PoolKey: "10.245.0.0/16"}}
	s, err := New(
		found("10.245.0.0/16", carrying("a", "172.16.0.0/24", ""), carrying("b", "172.16.1.0/24", "10.244.1.0/24"), carrying("c", "172.16.2.0/24", "")),
		Sources{Cilium: NewCilium(cm, map[string]*ciliumipam.CiliumNode{
			"a": nodeOf("a", "10.244.0.0/24", ""), "b": nodeOf("b", "10.245.1.0/24", ""), // c joins
		})},
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"10.244.0.0/24 10.245.255.0/24", "10.244.1.0/24 10.245.1.0/24", "10.244.2.0/24 10.245.254.0/24"} {
		if r := s.NodeRanges[i]; strings.Join(append(r.Original, r.Target...), " ") != want {
			t.Errorf("%s: from %v to %v, want %s", r.Node.Name, r.Original, r.Target, want)
		}
	}
	if got := s.poolAt(true); len(got) != 1 || got[0].String() != "10.244.0.0/16" {
		t.Errorf("back to %v", got)
	}
}

// TestRangesOfPools: a node lives in one range of the pool, and can have others, which no other
// node gets. Nodes, and pods, of other pools stay as they are.
func TestRangesOfPools(t *testing.T) {
	shared := found("10.245.0.0/16", carrying("a", "", ""), carrying("b", "", "10.244.1.0/24"), carrying("c", "", ""), carrying("d", "", ""))
	shared.Workloads.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "apart"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.20.0.5"}}}}}
	s := NewCilium(&corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: ciliumipam.MultiPool}}, map[string]*ciliumipam.CiliumNode{
		"a": {Name: "a", Pool: "default", PodCIDRs: []string{"10.244.0.0/24", "10.244.7.0/24"}},
		"b": {Name: "b", Pool: "default", PodCIDRs: []string{"10.245.1.0/24", "10.245.2.0/24"}}, // it has moved, and needs two
		"c": {Name: "c", Pool: "default", PodCIDRs: []string{"10.244.2.0/24", "10.245.9.0/24"}}, // it got one as it needed more
		"d": {Name: "d", Pool: "default"},                                                       // its pods have addresses of another one
	})
	s.TakePools(map[string]*ciliumipam.PodPool{
		"default": {Name: "default", Bits: 24, Ranges: prefixesOf("10.245.0.0/16", "10.244.0.0/16"), Note: &ciliumipam.PoolNote{Ranges: prefixesOf("10.244.0.0/16")}},
		"other":   {Name: "other", Ranges: prefixesOf("10.20.0.0/16")},
	})
	inventory, err := New(shared, Sources{Cilium: s})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range inventory.NodeRanges {
		got = append(got, r.Node.Name+" "+strings.Join(r.Original, ",")+" "+strings.Join(r.Target, ","))
	}
	want := "a 10.244.0.0/24 10.245.255.0/24; b 10.244.1.0/24 10.245.1.0/24; c 10.244.2.0/24 10.245.9.0/24"
	if strings.Join(got, "; ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "; "), want)
	}
	shared.Spec.From = prefixesOf("10.20.0.0/16")
	if _, err := New(shared, Sources{Cilium: s}); err == nil || !strings.Contains(err.Error(), "is not of CiliumPodIPPool default") {
		t.Errorf("the range of another pool is to be emptied: %v", err)
	}
	if len(s.overlaps(netip.MustParsePrefix("10.20.5.0/24"))) != 1 || len(s.overlaps(netip.MustParsePrefix("10.245.0.0/16"))) != 0 {
		t.Error("which targets overlap another pool")
	}
}

func prefixesOf(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// TestCutOffOnItsWay: CiliumNodes name only the next range, there and back, and the former one is
// known by the node's own address, else by the Node.
func TestCutOffOnItsWay(t *testing.T) {
	addr := netip.MustParseAddr
	s := NewCilium(&corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: ciliumipam.MultiPool}}, map[string]*ciliumipam.CiliumNode{
		"a": {Name: "a", Pool: "default", PodCIDRs: []string{"10.245.255.224/27"}, Internal: []netip.Addr{addr("10.244.0.55")}},
		"b": {Name: "b", Pool: "default", PodCIDRs: []string{"10.244.0.0/27"}, Internal: []netip.Addr{addr("10.245.3.70")}},
		"c": {Name: "c", Pool: "default", PodCIDRs: []string{"10.245.0.32/27"}},
	})
	s.TakePools(map[string]*ciliumipam.PodPool{
		"default": {Name: "default", Bits: 27, Ranges: prefixesOf("10.245.0.0/16", "10.244.0.0/16"), Note: &ciliumipam.PoolNote{Ranges: prefixesOf("10.244.0.0/16")}},
	})
	inventory, err := New(found("10.245.0.0/16", carrying("a", "", ""), carrying("b", "", ""), carrying("c", "", "10.244.9.0/27")), Sources{Cilium: s})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range inventory.NodeRanges {
		got = append(got, r.Node.Name+" "+strings.Join(r.Original, ",")+" "+strings.Join(r.Target, ","))
	}
	if want := "a 10.244.0.32/27 10.245.255.224/27; b 10.244.0.0/27 10.245.3.64/27; c 10.244.9.0/27 10.245.0.32/27"; strings.Join(got, "; ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "; "), want)
	}
}

// TestPoolOnItsWay: what a pool has while nodes move, and after, with and without the note of what
// it had.
func TestPoolOnItsWay(t *testing.T) {
	shared := found("10.246.0.0/16", carrying("a", "10.244.0.0/24", ""))
	shared.Spec.From = prefixesOf("10.244.0.0/16")
	p := podPool{nodes: &Inventory{Inventory: *shared}}
	former := prefixesOf("10.244.0.0/16", "10.30.0.0/16") // of which only the first is to go
	for _, pool := range []*ciliumipam.PodPool{
		{Ranges: former},
		{Ranges: prefixesOf("10.246.0.0/16", "10.244.0.0/16", "10.30.0.0/16"), Note: &ciliumipam.PoolNote{Ranges: former}},
		{Ranges: prefixesOf("10.246.0.0/16", "10.244.0.0/16", "10.30.0.0/16")},
	} {
		for got, want := range map[string]string{
			fmt.Sprint(p.during(pool, forward)):  "[10.246.0.0/16 10.244.0.0/16 10.30.0.0/16]",
			fmt.Sprint(p.during(pool, backward)): "[10.244.0.0/16 10.30.0.0/16 10.246.0.0/16]",
			fmt.Sprint(p.after(pool, forward)):   "[10.246.0.0/16 10.30.0.0/16]",
			fmt.Sprint(p.after(pool, backward)):  "[10.244.0.0/16 10.30.0.0/16]",
		} {
			if got != want {
				t.Errorf("of %v: %s, want %s", pool.Ranges, got, want)
			}
		}
	}
}

// TestPoolAfterwards: once the pool has the target alone, status and report still say how a
// migration went. Another pool's range is refused before anything has moved.
func TestPoolAfterwards(t *testing.T) {
	for has, fails := range map[string]bool{"10.245.0.0/16": false, "10.30.0.0/16": true} {
		cm := &corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: ciliumipam.MultiPool}}
		s := NewCilium(cm, map[string]*ciliumipam.CiliumNode{"a": nodeOf("a", strings.Replace(has, "/16", "/24", 1), "")})
		s.TakePools(map[string]*ciliumipam.PodPool{"default": {Name: "default", Bits: 24, Ranges: prefixesOf(has)}})
		shared := found("10.245.0.0/16", carrying("a", "", ""))
		shared.Spec.From = prefixesOf("10.244.0.0/16")
		inventory, err := New(shared, Sources{Cilium: s})
		if (err != nil) != fails {
			t.Errorf("a pool that has %s: %v", has, err)
		}
		if err == nil && len(inventory.Outstanding(forward)) > 0 {
			t.Errorf("still to move: %+v", inventory.NodeRanges)
		}
	}
}

// TestForeignModes are those of clouds.
func TestForeignModes(t *testing.T) {
	for mode, refused := range map[string]bool{
		"cluster-pool": false, "kubernetes": false, "multi-pool": false, "eni": true, "azure": true, "delegated-plugin": true,
	} {
		cm := &corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: mode, ciliumipam.PoolKey: "10.244.0.0/16"}}
		s := NewCilium(cm, map[string]*ciliumipam.CiliumNode{"a": nodeOf("a", "10.244.0.0/24", "")})
		if mode == ciliumipam.MultiPool {
			s.TakePools(map[string]*ciliumipam.PodPool{"default": {Name: "default", Bits: 24, Ranges: prefixesOf("10.244.0.0/16")}})
		}
		_, err := New(found("10.245.0.0/16", carrying("a", "10.244.0.0/24", "")), Sources{Cilium: s})
		if (err != nil) != refused {
			t.Errorf("ipam: %s: %v", mode, err)
		}
	}
	_, err := New(found("10.245.0.0/16", carrying("a", "10.244.0.0/24", "")), Sources{Cilium: NewCilium(nil, nil)})
	if err == nil || !strings.Contains(err.Error(), "kube-system/cilium-config") {
		t.Errorf("without cilium-config: %v", err)
	}
	absent := NewCilium(&corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: ciliumipam.MultiPool, ciliumipam.DefaultKey: "green"}}, nil)
	absent.TakePools(nil)
	_, err = New(found("10.245.0.0/16", carrying("a", "10.244.0.0/24", "")), Sources{Cilium: absent})
	if err == nil || !strings.Contains(err.Error(), "ciliumpodippool green") {
		t.Errorf("without its pool: %v", err)
	}
}

// TestOperatorThatIsAway: a run waits for an operator that it may have restarted itself, and was
// killed. Before anything has changed nobody does.
func TestOperatorThatIsAway(t *testing.T) {
	operator := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-operator"}}
	operator.Spec.Template.Labels = map[string]string{"io.cilium/app": "operator"}
	ranges := prefixesOf("10.244.0.0/16")
	cm := &corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: ciliumipam.ClusterPool, ciliumipam.PoolKey: "10.244.0.0/16"}}
	begun := cm.DeepCopy()
	begun.Annotations = map[string]string{v1alpha1.AnnotationCiliumPool: "{}"}
	for name, tt := range map[string]struct {
		cilium *CiliumState
		fails  bool
	}{
		"nothing is begun":           {NewCilium(cm, nil), true},
		"the pool has changed":       {NewCilium(begun, nil), false},
		"nothing is begun, of pools": {&CiliumState{ConfigMap: cm, Pool: &ciliumipam.PodPool{Ranges: ranges}}, true},
		"the CiliumPodIPPool has changed": {
			&CiliumState{ConfigMap: cm, Pool: &ciliumipam.PodPool{Ranges: ranges, Note: &ciliumipam.PoolNote{Ranges: ranges}}}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			shared := found("10.245.0.0/16")
			shared.Workloads.Deployments = []appsv1.Deployment{operator}
			got := checkOperator(Input{Input: podmove.Input{Inventory: shared}, Cilium: tt.cilium, Pooled: true})
			if len(got) != 1 || (got[0].Outcome == findings.Fail) != tt.fails || got[0].Outcome == findings.Pass {
				t.Errorf("%+v", got)
			}
		})
	}
}
