package sample

import (
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
)

// TestFitLeadsNowhere: nothing of the cluster's surroundings is left in the lab.
func TestFitLeadsNowhere(t *testing.T) {
	s := service("a", func(s *corev1.Service) {
		s.Annotations = map[string]string{"lb.example/subnet": "prod"}
		s.Spec.Type, s.Spec.LoadBalancerIP, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, "192.0.2.1", []string{"192.0.2.2"}
		s.Spec.Ports[0].NodePort = 30007
	})
	got := fit(&s, nil)
	if len(got.Annotations) > 0 || got.Spec.LoadBalancerIP != "" || len(got.Spec.ExternalIPs) > 0 || got.Spec.Ports[0].NodePort != 0 {
		t.Errorf("%+v", got)
	}
	if got.Spec.ClusterIP != "10.96.3.7" || got.Spec.Ports[0].Port != 5432 || got.Spec.Ports[0].TargetPort.StrVal != "http" {
		t.Errorf("%+v", got.Spec)
	}
	if got := fit(&s, []netip.Addr{netip.MustParseAddr("10.96.3.7")}); got.Spec.ClusterIP != "" {
		t.Errorf("it has the address %s, which the lab needs", got.Spec.ClusterIP)
	}
}

// TestServicesHavePods: each Service selects the pods that are made for it, whose Deployments keep apart although Services select alike.
func TestServicesHavePods(t *testing.T) {
	alike := func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app.kubernetes.io/name": "web"} }
	a, b := service("a", alike), service("b", alike)
	ofA, ofB := deployment(&a).(*appsv1.Deployment), deployment(&b).(*appsv1.Deployment)
	for s, d := range map[*corev1.Service]*appsv1.Deployment{&a: ofA, &b: ofB} {
		if !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s does not select %v", s.Name, d.Spec.Template.Labels)
		}
		if !labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s does not select its own %v", d.Name, d.Spec.Template.Labels)
		}
	}
	if labels.SelectorFromSet(ofA.Spec.Selector.MatchLabels).Matches(labels.Set(ofB.Spec.Template.Labels)) {
		t.Error("one Deployment takes the other's pods for its own")
	}
}

func TestCalls(t *testing.T) {
	byName, byAddress := calls([]corev1.Service{service("a"), service("b", udp)})
	if byName.Labels[labelLeaving] != "" || byAddress.Labels[labelLeaving] == "" {
		t.Fatalf("%v and %v", byName.Labels, byAddress.Labels)
	}
	named, at := byName.Targets[traffic.ByName], byAddress.Targets[traffic.ByOldAddress]
	if len(named) != 2 || len(at) != 2 {
		t.Fatalf("%+v, %+v", named, at)
	}
	if named[0].Address != "a.shop:5432" || named[0].Kind != probe.HTTP || at[1].Address != "10.96.3.7:5432" || at[1].Kind != probe.UDP {
		t.Errorf("%+v, %+v", named, at)
	}
}

func TestTopologyKeepsApart(t *testing.T) {
	o := Options{Size: 1, Migration: &v1alpha1.Migration{}, From: netip.MustParsePrefix("10.244.0.0/16")}
	o.To = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}
	got, err := o.topology()
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range append(o.To, o.From) {
		if got.PodCIDR.Overlaps(taken) || got.Networks[0].CIDR.Overlaps(taken) {
			t.Errorf("pods in %s and nodes in %s, beside %s", got.PodCIDR, got.Networks[0].CIDR, taken)
		}
	}
	o.To = append(o.To, netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16"))
	if _, err := o.topology(); err == nil {
		t.Error("a lab without free ranges is brought up")
	}
}
