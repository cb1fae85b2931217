package calico

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// object reads YAML as the API server's JSON would be read: whole numbers are int64.
func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(body); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestReadPool(t *testing.T) {
	for _, tt := range []struct {
		name, spec, want, err string
	}{
		{"usual", "{cidr: 10.244.0.0/16, vxlanMode: CrossSubnet, ipipMode: Never, natOutgoing: true}", "10.244.0.0/16 26 VXLAN pods", ""},
		{"blocks", "{cidr: 10.244.0.0/16, blockSize: 24, ipipMode: Always}", "10.244.0.0/16 24 IPIP pods", ""},
		{"no overlay", "{cidr: 10.244.0.0/16, vxlanMode: Never, ipipMode: Never}", "10.244.0.0/16 26  pods", ""},
		{"for pods among others", "{cidr: 10.244.0.0/16, allowedUses: [Tunnel, Workload]}", "10.244.0.0/16 26  pods", ""},
		{"not for pods", "{cidr: 10.244.0.0/16, allowedUses: [LoadBalancer]}", "10.244.0.0/16 26  others", ""},
		{"no range", "{cidr: pods}", "", "pods"},
		{"empty", "{}", "", "ParsePrefix"},
		{"wrong type", "{cidr: 7}", "", "string"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ReadPool(object(t, "{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: p}, spec: "+tt.spec+"}"))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want %q", err, tt.err)
				}
				return
			}
			what := "others"
			if p.ForPods() {
				what = "pods"
			}
			if got := fmt.Sprintf("%s %d %s %s", p.CIDR, p.BlockSize(), p.Overlay(), what); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestReadBlock(t *testing.T) {
	for _, tt := range []struct {
		name, spec, want, err string
	}{
		{
			"used", `{cidr: 10.244.0.0/30, affinity: "host:a", allocations: [null, 0, null, 1], unallocated: [0, 2],
			attributes: [{handle_id: one, secondary: {pod: web, namespace: shop}}, {handle_id: two}]}`,
			"10.244.0.0/30 a 10.244.0.1=one(pod shop/web) 10.244.0.3=two(handle two)", "",
		},
		{"shared attributes", "{cidr: 10.244.0.0/31, allocations: [0, 0], attributes: [{handle_id: one}]}", "10.244.0.0/31  10.244.0.0=one(handle one) 10.244.0.1=one(handle one)", ""},
		{"empty", "{cidr: 10.244.0.0/32, allocations: [null], attributes: []}", "10.244.0.0/32 ", ""},
		{"attributes that are not there", "{cidr: 10.244.0.0/31, allocations: [7, -1], attributes: []}", "10.244.0.0/31  10.244.0.0=(handle ) 10.244.0.1=(handle )", ""},
		{"virtual affinity", `{cidr: 10.244.0.0/32, affinity: "virtual:load-balancer", allocations: [null], attributes: []}`, "10.244.0.0/32 ", ""},
		{"IPv6", `{cidr: "fd00::/127", affinity: "host:a", allocations: [null, 0], attributes: [{handle_id: six}]}`, "fd00::/127 a fd00::1=six(handle six)", ""},
		{"no range", "{cidr: x}", "", "x"},
		{"more allocations than addresses", "{cidr: 255.255.255.255/32, allocations: [0, 0], attributes: []}", "", "more than"},
		{"wrong type", "{cidr: 10.244.0.0/30, allocations: 3}", "", "allocations"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := readBlock(
				object(t, "{apiVersion: crd.projectcalico.org/v1, kind: IPAMBlock, metadata: {name: b}, spec: "+tt.spec+"}"),
			)
			if tt.err != "" {
				if err == nil {
					t.Fatalf("got %+v, want an error of %q", b, tt.err)
				}
				return
			}
			got := fmt.Sprintf("%s %s", b.CIDR, b.Node)
			for _, a := range b.Allocations {
				got += fmt.Sprintf(" %s=%s(%s)", a.Addr, a.Handle, describe(a))
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestReadAffinityAndHandle(t *testing.T) {
	a, err := readAffinity(
		object(t, `{kind: BlockAffinity, metadata: {name: f}, spec: {cidr: 10.244.0.0/26, node: a, state: confirmed, deleted: "false"}}`),
	)
	if err != nil || a.CIDR != netip.MustParsePrefix("10.244.0.0/26") || a.Node != "a" || a.State != "confirmed" || a.Name != "f" {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := readAffinity(object(t, "{kind: BlockAffinity, metadata: {name: f}, spec: {node: a}}")); err == nil {
		t.Error("an affinity without a range was read")
	}
	h, err := readHandle(object(t, "{kind: IPAMHandle, metadata: {name: h}, spec: {handleID: H, block: {10.244.0.0/26: 2}}}"))
	if err != nil || h.ID != "H" || h.Blocks["10.244.0.0/26"] != 2 {
		t.Errorf("got %+v, %v", h, err)
	}
	if _, err := readHandle(object(t, "{kind: IPAMHandle, metadata: {name: h}, spec: {block: [1]}}")); err == nil {
		t.Error("a handle of another shape was read")
	}
}

func TestPodAddresses(t *testing.T) {
	ips := corev1.PodStatus{PodIP: "10.244.0.7", PodIPs: []corev1.PodIP{{IP: "10.244.0.7"}, {IP: "fd00::7"}}}
	ended := ips
	ended.Phase = corev1.PodSucceeded
	for _, tt := range []struct {
		name string
		pod  corev1.Pod
		want int
	}{
		{"both families", corev1.Pod{Status: ips}, 2},
		{"on the host's network", corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}, Status: ips}, 0},
		{"ended", corev1.Pod{Status: ended}, 0},
		{"none yet", corev1.Pod{}, 0},
	} {
		if got := PodAddresses(&tt.pod); len(got) != tt.want {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}

// FuzzRead gives the readers objects of any shape: they fail, and do not panic.
func FuzzRead(f *testing.F) {
	f.Add(
		`{"cidr":"10.244.0.0/30","affinity":"host:a","allocations":[null,0],"unallocated":[0],"attributes":[{"handle_id":"h"}]}`,
		uint8(2),
	)
	f.Add(`{"cidr":"0.0.0.0/0","allocations":[9223372036854775807],"attributes":[{}]}`, uint8(200))
	f.Add(`{"cidr":"255.255.255.255/32","allocations":[0,0,0]}`, uint8(0))
	f.Add(`{"cidr":7,"block":{"x":"y"},"handleID":1}`, uint8(0))
	f.Fuzz(func(t *testing.T, spec string, n uint8) {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"K","metadata":{"name":"o"},"spec":`+spec+`}`)) != nil {
			return
		}
		if p, err := ReadPool(u.DeepCopy()); err == nil && !p.CIDR.IsValid() {
			t.Errorf("a pool without a range: %s", spec)
		}
		_, _ = readAffinity(u.DeepCopy())
		_, _ = readHandle(u.DeepCopy())
		b, err := readBlock(u)
		if err != nil {
			return
		}
		for _, a := range b.Allocations {
			if !a.Addr.IsValid() || !b.CIDR.Contains(a.Addr) {
				t.Fatalf("block %s gives out %s", b.CIDR, a.Addr)
			}
		}
		_ = freeOrdinal(&b, int(n))
	})
}
