package serviceranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/controlplane"
)

// askRanges reads the ranges from the API server's refusal of an address outside them. Without the
// right to create Services it reads the command line of the API server's pod.
func askRanges(ctx context.Context, c client.WithWatch) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		err := c.Create(ctx, OutOfRange(family), client.DryRunAll)
		r, known := RangeIn(err)
		switch {
		case known:
			all = append(all, r)
		case apierrors.IsForbidden(err):
			return commandRanges(ctx, c)
		case err != nil && !outOfRange(err):
			return nil, fmt.Errorf("asking for the range of the API server: %w", err)
		}
	}
	if len(all) == 0 {
		return commandRanges(ctx, c)
	}
	return all, nil
}

// OutOfRange is a Service with the last address of IPv4 or the first of IPv6, which no range has.
func OutOfRange(family corev1.IPFamily) *corev1.Service {
	a := "255.255.255.255"
	if family == corev1.IPv6Protocol {
		a = "::"
	}
	return &corev1.Service{
		// default exists before replumb's own namespace.
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "range-of-services-"},
		Spec: corev1.ServiceSpec{
			ClusterIP: a, IPFamilies: []corev1.IPFamily{family}, Ports: []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// RangeIn is the range that an API server's refusal of an address names (ErrNotInRange in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/interfaces.go).
func RangeIn(err error) (r netip.Prefix, known bool) {
	if err == nil {
		return r, false
	}
	found := validRange.FindStringSubmatch(err.Error())
	if found == nil {
		return r, false
	}
	r, err = netip.ParsePrefix(found[1])
	return r, err == nil
}

// UnknownRangeError reports that nothing shows the range of the API servers.
type UnknownRangeError struct{}

func (*UnknownRangeError) Error() string {
	return "the cluster has no ServiceCIDRs, and the Service range of its API servers cannot be seen"
}

// Unwrap is a NotFound, for callers that can do without a range.
func (*UnknownRangeError) Unwrap() error { return notFound("servicecidrs", FlagRange) }

// ExitCode implements fault.Coder: nothing was written.
func (*UnknownRangeError) ExitCode() int { return fault.ExitBlocked }

func (*UnknownRangeError) Advice() string {
	return "let the user create Services in namespace default: an API server names its range when it refuses an address that is not in it (by a dry run)"
}

// commandRanges reads the flag from the pods of API servers, all of which must have the same.
func commandRanges(ctx context.Context, c client.Client) ([]netip.Prefix, error) {
	pods, err := controlplane.APIServer.Pods(ctx, c)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("listing the pods of API servers: %w", err)
	}
	var seen []string
	for i := range pods {
		for _, container := range pods[i].Spec.Containers {
			for _, word := range slices.Concat(container.Command, container.Args) {
				if value, is := strings.CutPrefix(word, "--service-cluster-ip-range="); is {
					seen = append(seen, value)
				}
			}
		}
	}
	if seen = slices.Compact(seen); len(seen) != 1 {
		return nil, &UnknownRangeError{}
	}
	var all []netip.Prefix
	for text := range strings.SplitSeq(seen[0], ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, &UnknownRangeError{}
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
