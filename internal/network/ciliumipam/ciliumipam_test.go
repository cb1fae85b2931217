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
  ipam: {podCIDRs: [10.0.0.0/24, "fd00::/120"]}
status: {ipam: {operator-status: {error: no room}}}
`
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), u); err != nil {
		t.Fatal(err)
	}
	n, err := ReadNode(u)
	if err != nil || n.Name != "a" || len(n.PodCIDRs) != 2 || n.Problem != "no room" {
		t.Fatalf("%+v, %v", n, err)
	}
	n.PodCIDRs = append(n.PodCIDRs, "10.1.0.0/24")
	if got := n.Own(); !slices.Equal(got, []string{"10.0.0.0/24", "fd00::/120"}) {
		t.Errorf("its own are %v", got)
	}
	if !n.Lives(netip.MustParsePrefix("10.0.0.0/24")) || n.Lives(netip.MustParsePrefix("192.0.2.0/24")) {
		t.Errorf("it has %v", n.Internal)
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
