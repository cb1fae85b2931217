package sample

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	// labelSample is what the pods behind one Service have, and no others.
	labelSample = "replumb.local/sample"
	// labelLeaving is of the clients that go by addresses, and so end before the command that it names.
	labelLeaving = "replumb.local/leaves-before"
	// callers is the namespace that clients are in.
	callers = "replumb-sample"
	// podsOfEach is how many pods each Service has: one on each node.
	podsOfEach = 2
	// rate is how many requests a second each node sends to each Service by name, and as many to its address.
	rate = 5
)

// objects are namespaces, Deployments of echo servers, and the Services before them as the lab can have them.
func objects(chosen []corev1.Service, reserved ...netip.Addr) []runtime.Object {
	all := []runtime.Object{workload.Namespace(callers)}
	for i := range chosen {
		if ns := chosen[i].Namespace; ns != metav1.NamespaceDefault && ns != metav1.NamespaceSystem && !slices.ContainsFunc(
			chosen[:i], func(before corev1.Service) bool { return before.Namespace == ns },
		) {
			all = append(all, workload.Namespace(ns))
		}
	}
	for i := range chosen {
		all = append(all, deployment(&chosen[i]), fit(&chosen[i], reserved))
	}
	return all
}

// deployment has pods that the Service selects.
func deployment(s *corev1.Service) runtime.Object {
	d := workload.Echo{Namespace: s.Namespace, Name: "sample-" + s.Name, PartOf: callers, Replicas: podsOfEach}.Deployment()
	own := map[string]string{labelSample: s.Name}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: own}
	d.Spec.Template.Labels = maps.Clone(s.Spec.Selector)
	maps.Copy(d.Spec.Template.Labels, own)
	for i := range d.Spec.Template.Spec.TopologySpreadConstraints {
		d.Spec.Template.Spec.TopologySpreadConstraints[i].LabelSelector = d.Spec.Selector
	}
	return d
}

// fit is a Service with what matters to how nodes lead to it, and with its address unless the lab needs that itself. Nothing of the outside is left:
// no address, no class of balancers, no annotation.
func fit(s *corev1.Service, reserved []netip.Addr) *corev1.Service {
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: s.Labels},
		Spec: corev1.ServiceSpec{
			Type: s.Spec.Type, Selector: s.Spec.Selector, ClusterIP: s.Spec.ClusterIP,
			SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
			InternalTrafficPolicy: s.Spec.InternalTrafficPolicy, ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy,
			PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses, TrafficDistribution: s.Spec.TrafficDistribution,
			AllocateLoadBalancerNodePorts: s.Spec.AllocateLoadBalancerNodePorts,
		},
	}
	if a, err := netip.ParseAddr(s.Spec.ClusterIP); err != nil || slices.Contains(reserved, a) {
		out.Spec.ClusterIP = ""
	}
	for _, p := range ports(s) {
		target := "http"
		if protocol(p) == corev1.ProtocolUDP {
			target = "udp"
		}
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: intstr.FromString(target),
		})
	}
	return out
}

// calls are what the clients of each node ask: each Service by its name, and others of them at the address that it has. Those are labelLeaving,
// for they have to go before old addresses may.
func calls(services []corev1.Service) (named, fixed traffic.Calls) {
	named = traffic.Calls{Namespace: callers, Client: "by-name", Targets: map[traffic.Via][]probe.Target{}}
	fixed = traffic.Calls{Namespace: callers, Client: "by-address", Targets: map[traffic.Via][]probe.Target{}}
	for i := range services {
		s := &services[i]
		port, kind := answering(s)
		ask := func(c traffic.Calls, via traffic.Via, host string) {
			c.Targets[via] = append(c.Targets[via], probe.Target{
				Name: nameOf(s), Kind: kind, Address: net.JoinHostPort(host, strconv.Itoa(int(port))), Rate: rate,
			})
		}
		ask(named, traffic.ByName, s.Name+"."+s.Namespace)
		ask(fixed, traffic.ByOldAddress, s.Spec.ClusterIP)
	}
	return named, fixed.As(map[string]string{labelLeaving: "finish"}, nil)
}

// answering is the port that is asked, and how: the first of TCP, or else of UDP.
func answering(s *corev1.Service) (int32, probe.TargetKind) {
	for _, p := range s.Spec.Ports {
		if protocol(p) == corev1.ProtocolTCP {
			return p.Port, probe.HTTP
		}
	}
	return s.Spec.Ports[0].Port, probe.UDP
}
