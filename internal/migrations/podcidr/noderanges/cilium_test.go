package noderanges

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
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
	for i, want := range []string{"10.244.0.0/24 10.245.0.0/24", "10.244.1.0/24 10.245.1.0/24", "10.244.2.0/24 10.245.2.0/24"} {
		if r := s.NodeRanges[i]; strings.Join(append(r.Original, r.Target...), " ") != want {
			t.Errorf("%s: from %v to %v, want %s", r.Node.Name, r.Original, r.Target, want)
		}
	}
	if got := s.poolAt(true); len(got) != 1 || got[0].String() != "10.244.0.0/16" {
		t.Errorf("back to %v", got)
	}
}

// TestForeignModes are those of clouds, and pools that more than one node can have.
func TestForeignModes(t *testing.T) {
	for mode, refused := range map[string]bool{
		"cluster-pool": false, "kubernetes": false, "multi-pool": true, "eni": true, "azure": true, "delegated-plugin": true,
	} {
		cm := &corev1.ConfigMap{Data: map[string]string{ciliumipam.ModeKey: mode, ciliumipam.PoolKey: "10.244.0.0/16"}}
		_, err := New(found("10.245.0.0/16", carrying("a", "10.244.0.0/24", "")),
			Sources{Cilium: NewCilium(cm, map[string]*ciliumipam.CiliumNode{"a": nodeOf("a", "10.244.0.0/24", "")})})
		if (err != nil) != refused {
			t.Errorf("ipam: %s: %v", mode, err)
		}
	}
	_, err := New(found("10.245.0.0/16", carrying("a", "10.244.0.0/24", "")), Sources{Cilium: NewCilium(nil, nil)})
	if err == nil || !strings.Contains(err.Error(), "kube-system/cilium-config") {
		t.Errorf("without cilium-config: %v", err)
	}
}
