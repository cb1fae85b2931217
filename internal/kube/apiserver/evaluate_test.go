package apiserver

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
)

func pod(host string, command ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "kube-apiserver-" + host, Labels: map[string]string{"component": "kube-apiserver"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: command}}},
		Status: corev1.PodStatus{
			HostIP: host, Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func TestFromPods(t *testing.T) {
	host := netip.MustParseAddr("10.0.0.5")
	changed := func(change func(*corev1.Pod)) []corev1.Pod {
		p := pod("10.0.0.5", "kube-apiserver", "--service-cluster-ip-range=10.96.0.0/16")
		change(&p)
		return []corev1.Pod{p}
	}
	known := map[netip.Addr][]netip.Prefix{host: prefixes("10.96.0.0/16")}
	uncertain := map[netip.Addr][]netip.Prefix{host: nil}
	for _, tt := range []struct {
		name string
		pods []corev1.Pod
		want map[netip.Addr][]netip.Prefix
	}{
		{"one word", changed(func(*corev1.Pod) {}), known},
		{"two words", []corev1.Pod{pod("10.0.0.5", "kube-apiserver", "--service-cluster-ip-range", "10.96.0.0/16")}, known},
		{"in args", changed(func(p *corev1.Pod) {
			p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = []string{"kube-apiserver"}, p.Spec.Containers[0].Command
		}), known},
		{"last flag counts", []corev1.Pod{pod("10.0.0.5", "--service-cluster-ip-range=1.2.3.0/24", "--service-cluster-ip-range=10.96.0.0/16")}, known},
		{"not ready", changed(func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }), uncertain},
		{"pending", changed(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), uncertain},
		{"no flag", []corev1.Pod{pod("10.0.0.5", "kube-apiserver")}, uncertain},
		{"word at the end", []corev1.Pod{pod("10.0.0.5", "--service-cluster-ip-range")}, uncertain},
		{"nonsense", []corev1.Pod{pod("10.0.0.5", "--service-cluster-ip-range=$(RANGE)")}, uncertain},
		{"two differ", []corev1.Pod{
			pod("10.0.0.5", "--service-cluster-ip-range=10.96.0.0/16"), pod("10.0.0.5", "--service-cluster-ip-range=172.24.0.0/16"),
		}, uncertain},
		{"not a mirror pod", changed(func(p *corev1.Pod) { p.Annotations = nil }), nil},
		{"another namespace", changed(func(p *corev1.Pod) { p.Namespace = "shop" }), nil},
		{"another component", changed(func(p *corev1.Pod) { p.Labels["component"] = "etcd" }), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := FromPods(tt.pods); !maps.EqualFunc(got, tt.want, slices.Equal) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	name, port, other := "https", int32(6443), int32(9443)
	ofKubernetes := map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
	got := Addresses([]discoveryv1.EndpointSlice{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: ofKubernetes},
			Ports:      []discoveryv1.EndpointPort{{Port: &other}, {Name: &name, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.0.0.6"}},
				{Addresses: []string{"10.0.0.5"}},
				{Addresses: []string{"10.0.0.5"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-v6", Labels: ofKubernetes},
			Ports:      []discoveryv1.EndpointPort{{Port: &other}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"fd00::5"}}},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kubernetes", Labels: ofKubernetes},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}},
		},
	})
	if want := []string{"10.0.0.5:6443", "10.0.0.6:6443", "[fd00::5]:9443"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCertificatesCover(t *testing.T) {
	want := netip.MustParseAddr("172.24.0.1")
	good := APIServer{Address: "a:1", SANs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), want}}
	bad := APIServer{Address: "b:1", SANs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	unknown := APIServer{Address: "c:1", SANs: []netip.Addr{want}, CertErr: errors.New("certificate of API server c:1: refused")}
	for _, tt := range []struct {
		name    string
		servers []APIServer
		say     []string
	}{
		{"all", []APIServer{good, good}, nil},
		{"none known", nil, []string{"no API server"}},
		{"one lacks it", []APIServer{good, bad}, []string{"172.24.0.1 is not in the certificate of b:1"}},
		{"one is unknown", []APIServer{good, unknown}, []string{"not known: certificate of API server c:1: refused"}},
		{"both", []APIServer{bad, unknown}, []string{"b:1", "c:1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := CertificatesCover(tt.servers, want)
			if (err == nil) != (tt.say == nil) || err != nil && !engine.Retryable(err) {
				t.Fatal(err)
			}
			for _, s := range tt.say {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v does not say %q", err, s)
				}
			}
		})
	}
}

func TestAllOnRange(t *testing.T) {
	want := netip.MustParsePrefix("172.24.0.0/16")
	silent := errors.New("flags of API server: nothing")
	a5, a6 := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")
	for _, tt := range []struct {
		name             string
		servers          []APIServer
		pods             map[netip.Addr][]netip.Prefix
		missing, unknown []string
	}{
		{"says so itself", []APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("172.24.0.0/16")}}, nil, nil, nil},
		{"second family counts for itself", []APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("fd00::/108", "172.24.0.0/16")}}, nil, nil, nil},
		{"another range", []APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("10.96.0.0/16")}}, nil, []string{"10.0.0.5:6443 (10.96.0.0/16)"}, nil},
		{"wider range", []APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("172.24.0.0/12")}}, nil, []string{"10.0.0.5:6443"}, nil},
		{"other family only", []APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("fd00::/108")}}, nil, nil, []string{"10.0.0.5:6443 (it names"}},
		{"the pod tells", []APIServer{{Address: "10.0.0.5:6443", FlagsErr: silent}}, map[netip.Addr][]netip.Prefix{a5: {want}}, nil, nil},
		{
			"the pod tells of another",
			[]APIServer{{Address: "10.0.0.5:6443", FlagsErr: silent}},
			map[netip.Addr][]netip.Prefix{a5: prefixes("10.96.0.0/16")},
			[]string{"10.0.0.5:6443"},
			nil,
		},
		{
			"the server knows better",
			[]APIServer{{Address: "10.0.0.5:6443", Ranges: prefixes("10.96.0.0/16")}},
			map[netip.Addr][]netip.Prefix{a5: {want}},
			[]string{"10.0.0.5:6443"},
			nil,
		},
		{"no flags to be seen", []APIServer{{Address: "10.0.0.5:6443", FlagsErr: silent}}, nil, nil, []string{"10.0.0.5:6443 (flags"}},
		{"by name", []APIServer{{Address: "api.example.com:6443", FlagsErr: silent}}, nil, nil, []string{"api.example.com:6443"}},
		{
			"pod without endpoint",
			[]APIServer{{Address: "10.0.0.5:6443", Ranges: []netip.Prefix{want}}},
			map[netip.Addr][]netip.Prefix{a5: {want}, a6: prefixes("10.96.0.0/16")},
			[]string{"the API server pod on 10.0.0.6"},
			nil,
		},
		{
			"uncertain pod without endpoint",
			[]APIServer{{Address: "10.0.0.5:6443", Ranges: []netip.Prefix{want}}},
			map[netip.Addr][]netip.Prefix{a6: nil},
			nil,
			[]string{"the API server pod on 10.0.0.6"},
		},
		{"none", nil, nil, nil, []string{"no API server"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			missing, unknown := AllOnRange(tt.servers, tt.pods, []netip.Prefix{want})
			if !slices.EqualFunc(missing, tt.missing, strings.HasPrefix) || !slices.EqualFunc(unknown, tt.unknown, strings.HasPrefix) {
				t.Errorf("missing %q, unknown %q", missing, unknown)
			}
		})
	}
}

// TestAllOnRangesOfBothFamilies wants the whole list, in its order: the first range is that of the
// primary family.
func TestAllOnRangesOfBothFamilies(t *testing.T) {
	want := prefixes("172.24.0.0/16", "fd00:10:96::/112")
	silent := errors.New("flags of API server: nothing")
	a5 := netip.MustParseAddr("10.0.0.5")
	for name, tt := range map[string]struct {
		ranges           []netip.Prefix
		pod              []netip.Prefix
		missing, unknown []string
	}{
		"both":                 {ranges: want},
		"in the other order":   {ranges: prefixes("fd00:10:96::/112", "172.24.0.0/16"), missing: []string{"10.0.0.5:6443 (fd00:10:96::/112,172.24.0.0/16)"}},
		"one of them":          {ranges: prefixes("172.24.0.0/16"), missing: []string{"10.0.0.5:6443 (172.24.0.0/16)"}},
		"before the move":      {ranges: prefixes("10.96.0.0/16", "fd00:10:96::/112"), missing: []string{"10.0.0.5:6443 (10.96.0.0/16,fd00:10:96::/112)"}},
		"other than it kept":   {ranges: prefixes("172.24.0.0/16", "fd00:10:97::/112"), missing: []string{"10.0.0.5:6443 (172.24.0.0/16,fd00:10:97::/112)"}},
		"the pod tells":        {pod: want},
		"the pod tells of one": {pod: prefixes("172.24.0.0/16"), missing: []string{"10.0.0.5:6443 (172.24.0.0/16)"}},
		"nothing to be seen":   {unknown: []string{"10.0.0.5:6443 (flags"}},
	} {
		server := APIServer{Address: "10.0.0.5:6443", Ranges: tt.ranges}
		if tt.ranges == nil {
			server.FlagsErr = silent
		}
		pods := map[netip.Addr][]netip.Prefix{}
		if tt.pod != nil {
			pods[a5] = tt.pod
		}
		missing, unknown := AllOnRange([]APIServer{server}, pods, want)
		if !slices.EqualFunc(missing, tt.missing, strings.HasPrefix) || !slices.EqualFunc(unknown, tt.unknown, strings.HasPrefix) {
			t.Errorf("%s: missing %q, unknown %q", name, missing, unknown)
		}
	}
}
