package ciliumipam

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func config(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: data}
}

func TestReadConfig(t *testing.T) {
	c, err := ReadConfig(config(map[string]string{
		ModeKey: ClusterPool, PoolKey: "10.0.0.0/16 10.1.0.0/16", SizeKey: "26", RoutingKey: "native", NativeKey: "10.0.0.0/8",
	}))
	if err != nil || len(c.Pools) != 2 || c.Bits != 26 || !c.Native || c.Direct || c.NativeRange.String() != "10.0.0.0/8" {
		t.Errorf("%+v, %v", c, err)
	}
	if !c.Gives(netip.MustParsePrefix("10.1.7.0/26")) || c.Gives(netip.MustParsePrefix("10.2.0.0/26")) || c.Gives(netip.Prefix{}) {
		t.Errorf("what %v gives", c.Pools)
	}
	if c, err := ReadConfig(config(map[string]string{ModeKey: ClusterPool, PoolKey: "10.0.0.0/16"})); err != nil || c.Bits != 24 {
		t.Errorf("without a size: %+v, %v", c, err)
	}
	for key, wrong := range map[string]string{PoolKey: "pods", SizeKey: "wide", NativeKey: "10.0.0.0"} {
		if _, err := ReadConfig(config(map[string]string{key: wrong})); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s %q: %v", key, wrong, err)
		}
	}
}

// TestPoolComesBack: what was there comes back as it was, however often another pool was set
// meanwhile.
func TestPoolComesBack(t *testing.T) {
	for _, was := range []map[string]string{
		{PoolKey: "10.0.0.0/16 10.1.0.0/16", SizeKey: "25", "debug": "true"}, {PoolKey: "10.0.0.0/16"},
	} {
		cm := config(maps.Clone(was))
		for _, to := range []string{"10.244.0.0/16", "10.245.0.0/16"} {
			if err := SetPool(cm, netip.MustParsePrefix(to), 24); err != nil {
				t.Fatal(err)
			}
			if cm.Data[PoolKey] != to || cm.Data[SizeKey] != "24" || !Noted(cm) {
				t.Errorf("%+v", cm)
			}
		}
		if c, err := ReadConfig(cm); err != nil || c.Before[0].String() != "10.0.0.0/16" || c.Pools[0].String() != "10.245.0.0/16" {
			t.Errorf("%+v, %v", c, err)
		}
		RestorePool(cm, nil)
		ForgetPool(cm)
		if !maps.Equal(cm.Data, was) || Noted(cm) {
			t.Errorf("it is %+v, and was %v", cm, was)
		}
	}
}

// TestPoolWithoutItsNote: somebody has taken the annotation off.
func TestPoolWithoutItsNote(t *testing.T) {
	cm := config(map[string]string{PoolKey: "10.245.0.0/16", SizeKey: "24"})
	RestorePool(cm, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")})
	if cm.Data[PoolKey] != "10.0.0.0/16 10.1.0.0/16" || cm.Data[SizeKey] != "24" {
		t.Errorf("%v", cm.Data)
	}
}

func TestReadNode(t *testing.T) {
	const text = `
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: a}
spec:
  addresses: [{type: InternalIP, ip: 192.0.2.1}, {type: CiliumInternalIP, ip: 10.0.0.7}, {type: CiliumInternalIP, ip: "fd00::7"}]
  ipam: {podCIDRs: [10.0.0.0/24, "fd00::/120", 10.1.0.0/24]}
status: {ipam: {operator-status: {error: no room}}}
`
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), u); err != nil {
		t.Fatal(err)
	}
	n, err := ReadNode(u, "")
	if err != nil || n.Name != "a" || n.Problem != "no room" {
		t.Fatalf("%+v, %v", n, err)
	}
	if !slices.Equal(n.PodCIDRs, []string{"10.0.0.0/24", "fd00::/120"}) || !slices.Equal(n.Held, []string{"10.1.0.0/24"}) || len(n.Further(nil)) > 0 {
		t.Errorf("its own are %v, it holds %v", n.PodCIDRs, n.Held)
	}
	if !n.Lives(netip.MustParsePrefix("10.0.0.0/24")) || n.Lives(netip.MustParsePrefix("192.0.2.0/24")) {
		t.Errorf("it has %v", n.Internal)
	}
}

// TestRangesOfAPool: what a CiliumNode has of other pools stays, and a range that is held is none
// of its own.
func TestRangesOfAPool(t *testing.T) {
	const text = `
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: a}
spec:
  addresses: [{type: CiliumInternalIP, ip: 10.244.7.9}]
  ipam:
    pools:
      allocated:
      - {pool: default, cidrs: [10.244.0.0/24, 10.244.7.0/24], allowFirstIP: true}
      - {pool: green, cidrs: [10.20.0.0/24]}
      requested: [{pool: default, needed: {ipv4-addrs: 16}}]
`
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), u); err != nil {
		t.Fatal(err)
	}
	n, err := ReadNode(u, "default")
	if err != nil || !slices.Equal(n.PodCIDRs, []string{"10.244.7.0/24", "10.244.0.0/24"}) || len(n.Held) > 0 {
		t.Fatalf("%+v, %v", n, err)
	}
	if err := n.setRanges(u, []string{"10.245.0.0/24"}, "10.244.7.0/24"); err != nil {
		t.Fatal(err)
	}
	led, err := ReadNode(u, "default")
	if err != nil || !slices.Equal(led.PodCIDRs, []string{"10.245.0.0/24"}) || !slices.Equal(led.All(), []string{"10.245.0.0/24", "10.244.7.0/24"}) {
		t.Errorf("%+v, %v", led, err)
	}
	if err := led.setRanges(u, []string{"10.245.0.0/24"}); err != nil {
		t.Fatal(err)
	}
	all, _, err := unstructured.NestedSlice(u.Object, "spec", "ipam", "pools", "allocated")
	if err != nil || len(all) != 2 || all[0].(map[string]any)["pool"] != "green" || all[1].(map[string]any)["allowFirstIP"] != true {
		t.Errorf("%v, %v", all, err)
	}
	if asked, _, _ := unstructured.NestedSlice(u.Object, "spec", "ipam", "pools", "requested"); len(asked) != 1 {
		t.Errorf("it asks for %v", asked)
	}
}

func TestReadPool(t *testing.T) {
	pool := func(cidrs ...any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"ipv4": map[string]any{"cidrs": cidrs, "maskSize": int64(27)}, "ipv6": map[string]any{"cidrs": []any{"fd00::/104"}},
		}}}
		u.SetName("default")
		return u
	}
	p, err := ReadPool(pool("10.244.0.0/16", "10.30.0.0/16"))
	if err != nil || len(p.Ranges) != 2 || p.Bits != 27 || len(p.IPv6) != 1 || p.Note != nil || len(p.Former()) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	noted := pool("10.245.0.0/16", "10.244.0.0/16")
	if err := setNote(noted, &PoolNote{Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}); err != nil {
		t.Fatal(err)
	}
	if p, err := ReadPool(noted); err != nil || len(p.Former()) != 1 || p.Former()[0].String() != "10.244.0.0/16" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := setNote(noted, nil); err != nil || len(noted.GetAnnotations()) > 0 {
		t.Errorf("%v, %v", noted.GetAnnotations(), err)
	}
	if _, err := ReadPool(pool("pods")); err == nil || !strings.Contains(err.Error(), `ciliumpodippool default: "pods" in spec.ipv4.cidrs`) {
		t.Errorf("%v", err)
	}
}

func TestRouter(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.0/24": "10.0.0.253", "10.0.0.0/29": "10.0.0.5", "10.0.0.64/26": "10.0.0.125"} {
		if got := Router(netip.MustParsePrefix(in)); got.String() != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add("10.0.0.0/16 fd00::/64", "24", "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, pool, size, native string) {
		c, err := ReadConfig(config(map[string]string{PoolKey: pool, SizeKey: size, NativeKey: native}))
		for _, p := range c.Pools {
			if err == nil && (!p.IsValid() || !p.Addr().Is4()) {
				t.Errorf("%q gives %v", pool, p)
			}
		}
	})
}
