package leaving

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

func service(name string, selector map[string]string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: "uid-of-service"},
		Spec:       corev1.ServiceSpec{Selector: selector, ClusterIP: "10.96.0.7"},
	}
}

func TestChoose(t *testing.T) {
	pod := map[string]string{"app": "web", "tier": "front", "pod-template-hash": "abc"}
	app, both := map[string]string{"app": "web"}, map[string]string{"app": "web", "tier": "front"}
	policy := func(s string) labels.Selector {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, tt := range map[string]struct {
		services []corev1.Service
		same     []labels.Selector
		want     []string
		ok       bool
	}{
		"no Service selects it":        {[]corev1.Service{service("a", map[string]string{"app": "x"}), service("b", nil)}, nil, nil, true},
		"one label":                    {[]corev1.Service{service("a", app)}, nil, []string{"app"}, true},
		"one for two Services":         {[]corev1.Service{service("a", both), service("b", map[string]string{"tier": "front"})}, nil, []string{"tier"}, true},
		"two for two Services":         {[]corev1.Service{service("a", app), service("b", map[string]string{"tier": "front"})}, nil, []string{"app", "tier"}, true},
		"around a policy":              {[]corev1.Service{service("a", both)}, []labels.Selector{policy("app=web")}, []string{"tier"}, true},
		"a policy in the way":          {[]corev1.Service{service("a", app)}, []labels.Selector{policy("app=web")}, nil, false},
		"one that would come to apply": {[]corev1.Service{service("a", app)}, []labels.Selector{policy("app!=web")}, nil, false},
		"one of others":                {[]corev1.Service{service("a", app)}, []labels.Selector{policy("app=db"), policy("tier")}, []string{"app"}, true},
	} {
		got, ok := Choose(pod, tt.services, tt.same)
		if !slices.Equal(got, tt.want) || ok != tt.ok {
			t.Errorf("%s: chose %v, %v, want %v, %v", name, got, ok, tt.want, tt.ok)
		}
		if left := Selecting(tt.services, Without(pod, got)); ok && len(left) > 0 {
			t.Errorf("%s: %s selects it still", name, left[0].Name)
		}
	}
}

func TestPolicies(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	policy := func(namespace string, spec networkingv1.NetworkPolicySpec) networkingv1.NetworkPolicy {
		return networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: spec}
	}
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: web}, {NamespaceSelector: web}}
	for name, tt := range map[string]struct {
		policy networkingv1.NetworkPolicy
		want   int
	}{
		"of the namespace": {policy("n", networkingv1.NetworkPolicySpec{PodSelector: *web}), 1},
		"of another":       {policy("o", networkingv1.NetworkPolicySpec{PodSelector: *web}), 0},
		"lets others call": {policy("o", networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{To: peers}}}), 1},
		"lets others in":   {policy("o", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: peers}}}), 1},
	} {
		n := 0
		for _, s := range Policies([]networkingv1.NetworkPolicy{tt.policy}, "n") {
			if s.Matches(labels.Set{"app": "web"}) {
				n++
			}
		}
		if n != tt.want {
			t.Errorf("%s: %d selectors match, want %d", name, n, tt.want)
		}
	}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "web-1", UID: "uid-of-pod",
			Labels: map[string]string{"app": "web", "pod-template-hash": "abc"},
		},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}}},
	}
}

// TestThereAndBack: a pod that was released, and has left, notes what it was, and becomes that
// again.
func TestThereAndBack(t *testing.T) {
	p := pod()
	released, err := release(p, "m", Owner{Kind: "Deployment", Name: "web", UID: "uid-of-web"})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := leave(released, "m", []string{"app"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"app": Gone, "pod-template-hash": Released, v1alpha1.LabelRole: v1alpha1.RoleLeaving, v1alpha1.LabelMigration: "m",
	}
	if !maps.Equal(gone.Labels, want) || !Marked(gone, "m") || Marked(gone, "another") || Marked(p, "") {
		t.Errorf("labels are %v", gone.Labels)
	}
	m := MarkOf(gone)
	if m.Owner == nil || m.Owner.UID != "uid-of-web" || !maps.Equal(m.Labels, p.Labels) {
		t.Errorf("noted %+v", m)
	}
	again, err := leave(gone, "m", []string{"app"})
	if err != nil || !maps.Equal(MarkOf(again).Labels, p.Labels) {
		t.Errorf("a second time noted %+v, %v", MarkOf(again), err)
	}
	if back := restored(gone); !maps.Equal(back.Labels, p.Labels) || len(back.Annotations) > 0 {
		t.Errorf("came back as %v, %v", back.Labels, back.Annotations)
	}
}

func slice(name, service, manager string, addresses ...string) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: manager,
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("dns"), Port: ptr.To[int32](53)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: ptr.To("node")})
	}
	return s
}

func TestFarewells(t *testing.T) {
	headless := service("headless", nil)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	all := []discoveryv1.EndpointSlice{
		slice("web-a", "web", "endpointslice-controller.k8s.io", "10.244.1.6", "10.244.1.7"),
		slice("web-b", "web", "endpointslice-controller.k8s.io", "10.244.1.8"),
		slice("headless-a", "headless", "endpointslice-controller.k8s.io", "10.244.1.7"),
	}
	made := farewells(all, []corev1.Service{service("web", nil), headless}, pod(), "m")
	if len(made) != 1 || len(made[0].Endpoints) != 1 {
		t.Fatalf("made %+v", made)
	}
	e, owner := made[0].Endpoints[0], made[0].OwnerReferences[0]
	if *e.Conditions.Ready || !*e.Conditions.Serving || !*e.Conditions.Terminating || e.Addresses[0] != "10.244.1.7" {
		t.Errorf("the endpoint is %+v", e)
	}
	if owner.Kind != "Pod" || owner.UID != "uid-of-pod" || *made[0].Ports[0].Port != 53 {
		t.Errorf("the slice is %+v", made[0])
	}
	if again := farewells(all, []corev1.Service{service("web", nil)}, pod(), "m"); again[0].Name != made[0].Name {
		t.Errorf("it is called %s, and then %s", made[0].Name, again[0].Name)
	}
	if leads := Leads(append(all, made...), pod()); len(leads) != 2 {
		t.Errorf("%d slices lead to it, want web-a and headless-a", len(leads))
	}
}
