package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// IsPortTaken reports the refusal of a node port in use (ErrAllocated in k8s.io/kubernetes
// pkg/registry/core/service/portallocator/allocator.go, which clients see as text only).
func IsPortTaken(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "provided port is already allocated")
}

// WithoutTakenPorts is a spec without the node ports that other Services have, for which the API
// server chooses others. lost says of each who has it.
func WithoutTakenPorts(
	ctx context.Context, c client.Reader, of types.NamespacedName, spec *corev1.ServiceSpec,
) (without *corev1.ServiceSpec, lost []string, err error) {
	all := &corev1.ServiceList{}
	if err := c.List(ctx, all); err != nil {
		return nil, nil, fmt.Errorf("listing services: %w", err)
	}
	without = spec.DeepCopy()
	for i := range without.Ports {
		p := &without.Ports[i]
		by := slices.IndexFunc(all.Items, func(s corev1.Service) bool {
			return client.ObjectKeyFromObject(&s) != of && hasNodePort(&s.Spec, p.NodePort)
		})
		if p.NodePort == 0 || by < 0 {
			continue
		}
		lost = append(lost, fmt.Sprintf("service %s has %d by now", client.ObjectKeyFromObject(&all.Items[by]), p.NodePort))
		p.NodePort = 0
	}
	return without, lost, nil
}

func hasNodePort(spec *corev1.ServiceSpec, port int32) bool {
	return spec.HealthCheckNodePort == port || slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == port })
}
