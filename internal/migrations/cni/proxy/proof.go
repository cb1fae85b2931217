package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migrations/cni/nodepod"
)

// proofStep makes a Service that no node has heard of, and looks on one node who leads to it: rules
// that are there prove nothing, as they may be left over. On the way to Cilium the node has to
// reach it, by its address and at the node's own port, and kube-proxy must not have written rules
// for it; on the way back kube-proxy must have.
type proofStep struct {
	nodepod.ReadOnly
	direction engine.Direction
}

func (p planner) proof(node string, d engine.Direction) engine.Step {
	prefix, title := "services", "Verify that Cilium alone leads to Services on node "+node
	guide := fmt.Sprintf("Stop kube-proxy on node %s so that it does not start again, and leave its rules as they are (no --cleanup). "+
		"replumb goes on by itself.", node)
	if d == engine.Backward {
		prefix, title = "services-back", "Verify that kube-proxy leads to Services on node "+node
		guide = fmt.Sprintf("Start kube-proxy on node %s again. replumb goes on by itself.", node)
	}
	s := &proofStep{nodepod.ReadOnly{Step: p.OnNode(nodepod.VerbServices, node, prefix, title)}, d}
	if len(p.proxy.ProxySets) > 0 {
		return s
	}
	s.Limit = p.Spec().GateWait
	return gatedProof{s, guide}
}

// gatedProof waits for the operator.
type gatedProof struct {
	*proofStep
	guide string
}

func (gatedProof) Role() engine.StepRole { return engine.RoleGate }

func (g gatedProof) Guide() string { return g.guide }

// Do makes the Service and asks the node.
func (s *proofStep) Do(ctx context.Context) error {
	if err := s.Abandon(ctx); err != nil {
		return err
	}
	servers, err := workload.APIServers(ctx, s.Client)
	if err != nil {
		return err
	}
	svc, slice, err := trial(s.Migration, servers)
	if err != nil {
		return err
	}
	for _, o := range []client.Object{svc, slice} {
		if svc.UID != "" { // it goes when the Service goes
			slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID}}
		}
		err := s.Client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
		if apierrors.IsAlreadyExists(err) {
			return engine.NotYet("%s of an earlier try is still ending", o.GetName())
		}
		if err != nil {
			return fmt.Errorf("trying out Services: %w", err)
		}
	}
	n, err := cordon.Read(ctx, s.Client, s.Node)
	if err != nil || n == nil {
		return err
	}
	return s.Start(ctx, s.questions(svc, inventory.InternalIP(n))...)
}

func (s *proofStep) questions(svc *corev1.Service, address string) []string {
	args := []string{"--root=" + taskpod.HostRoot, "--timeout=" + proofReach.String(), "--quiet=" + proofQuiet.String()}
	if s.direction == engine.Backward {
		return append(args, "--programmed="+svc.Spec.ClusterIP)
	}
	port := svc.Spec.Ports[0]
	reach := net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
	if address != "" && port.NodePort != 0 {
		reach += "," + net.JoinHostPort(address, strconv.Itoa(int(port.NodePort)))
	}
	return append(args, "--reach="+reach, "--unprogrammed="+svc.Spec.ClusterIP)
}

// trial is a Service without pods, in front of what always answers: the API servers.
func trial(migration string, servers []string) (*corev1.Service, *discoveryv1.EndpointSlice, error) {
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: trialName, Labels: map[string]string{v1alpha1.LabelMigration: migration},
		}
	}
	const https = 443
	svc := &corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "https", Port: https}},
	}}
	first, err := netip.ParseAddrPort(servers[0])
	if err != nil {
		return nil, nil, fmt.Errorf("address of an API server: %w", err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta(), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("https"), Port: ptr.To(int32(first.Port())), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	if first.Addr().Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	slice.Labels[discoveryv1.LabelServiceName] = trialName
	slice.Labels[discoveryv1.LabelManagedBy] = v1alpha1.FieldManager
	for _, text := range servers {
		if s, err := netip.ParseAddrPort(text); err == nil && s.Port() == first.Port() && s.Addr().Is4() == first.Addr().Is4() {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{s.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			})
		}
	}
	return svc, slice, nil
}

func (s *proofStep) Verify(ctx context.Context) error {
	r, err := s.Outcome(ctx)
	if err != nil {
		return err
	}
	if len(r.Problems) == 0 {
		return s.Abandon(ctx)
	}
	if err := s.Do(ctx); err != nil {
		return err
	}
	return engine.NotYet("node %s: %s", s.Node, r)
}

func (s *proofStep) Abandon(ctx context.Context) error {
	if err := s.End(ctx); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: trialName}
	for _, o := range []client.Object{&discoveryv1.EndpointSlice{ObjectMeta: meta}, &corev1.Service{ObjectMeta: meta}} {
		if err := s.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing what Services were tried out with: %w", err)
		}
	}
	return nil
}

func (s *proofStep) Preview() ([]engine.Change, error) {
	name := v1alpha1.SystemNamespace + "/" + trialName
	runs, err := s.Step.Preview()
	made := []engine.Change{{Verb: "create", Object: "Service " + name}, {Verb: "create", Object: "EndpointSlice " + name}}
	return append(made, runs...), err
}
