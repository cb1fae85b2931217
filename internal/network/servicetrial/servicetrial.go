// Package servicetrial finds out who leads to Services on a node, by one that was not there before.
package servicetrial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

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
	"github.com/replumb/replumb/internal/network/nodepod"
)

// Step makes a Service that no node has heard of, and looks on one node who leads to it: rules that
// are there prove nothing, as they may be left over.
type Step struct {
	nodepod.ReadOnly
	// Ask is what the node is asked, as arguments of replumb node services, of the Service and of
	// the node's own address.
	Ask func(svc *corev1.Service, address string) []string
}

const name = "kube-proxy-trial"

// The times of a trial. A kube-proxy that runs writes rules for a new Service within its
// minSyncPeriod, a second by default.
const (
	reachTime = 90 * time.Second
	quietTime = 20 * time.Second
)

// Do makes the Service and asks the node.
func (s *Step) Do(ctx context.Context) error {
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
	return s.Start(ctx, s.Ask(svc, inventory.InternalIP(n))...)
}

// Programmed asks whether kube-proxy has written rules for the Service.
func Programmed(svc *corev1.Service, _ string) []string {
	return []string{"--root=" + taskpod.HostRoot, "--timeout=" + reachTime.String(), "--programmed=" + svc.Spec.ClusterIP}
}

// ProgrammedInIPVS asks that of a kube-proxy in mode ipvs.
func ProgrammedInIPVS(svc *corev1.Service, address string) []string {
	return append(Programmed(svc, address), "--in-ipvs")
}

// Replaced asks whether the node reaches the Service, by its address and at the node's own port,
// while kube-proxy has written no rules for it.
func Replaced(svc *corev1.Service, address string) []string {
	port := svc.Spec.Ports[0]
	reach := net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
	if address != "" && port.NodePort != 0 {
		reach += "," + net.JoinHostPort(address, strconv.Itoa(int(port.NodePort)))
	}
	return []string{
		"--root=" + taskpod.HostRoot, "--timeout=" + reachTime.String(), "--quiet=" + quietTime.String(),
		"--reach=" + reach, "--unprogrammed=" + svc.Spec.ClusterIP,
	}
}

// trial is a Service without pods, in front of what always answers: the API servers.
func trial(migration string, servers []string) (*corev1.Service, *discoveryv1.EndpointSlice, error) {
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: name, Labels: map[string]string{v1alpha1.LabelMigration: migration},
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
	slice.Labels[discoveryv1.LabelServiceName] = name
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

// Verify asks again with another Service as long as the node does not say what it has to.
func (s *Step) Verify(ctx context.Context) error {
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

// Abandon removes both.
func (s *Step) Abandon(ctx context.Context) error {
	if err := s.End(ctx); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name}
	for _, o := range []client.Object{&discoveryv1.EndpointSlice{ObjectMeta: meta}, &corev1.Service{ObjectMeta: meta}} {
		if err := s.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing what Services were tried out with: %w", err)
		}
	}
	return nil
}

// Preview has the Service and the pod.
func (s *Step) Preview() ([]engine.Change, error) {
	object := v1alpha1.SystemNamespace + "/" + name
	runs, err := s.Step.Preview()
	made := []engine.Change{{Verb: "create", Object: "Service " + object}, {Verb: "create", Object: "EndpointSlice " + object}}
	return append(made, runs...), err
}
