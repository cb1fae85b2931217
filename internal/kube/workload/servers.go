package workload

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// APIFlag gives programs the addresses of API servers.
const APIFlag = "--api="

// servers are those that a workload is given: those that it has, unless one is missing among them.
func servers(now []string, have *unstructured.Unstructured) []string {
	known := serversOf(have)
	if slices.ContainsFunc(now, func(a string) bool { return !slices.Contains(known, a) }) {
		return now
	}
	return known
}

// serversOf are the API servers that the pods of a workload are given.
func serversOf(o *unstructured.Unstructured) []string {
	body, there, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
	pod := &corev1.PodSpec{}
	if err != nil || !there || runtime.DefaultUnstructuredConverter.FromUnstructured(body, pod) != nil {
		return nil
	}
	for _, c := range pod.Containers {
		for _, arg := range c.Args {
			if all, ok := strings.CutPrefix(arg, APIFlag); ok {
				return strings.Split(all, ",")
			}
		}
	}
	return nil
}

// APIServers are the endpoints of the Service kubernetes, as IP:port.
func APIServers(ctx context.Context, c client.Client) ([]string, error) {
	all := &discoveryv1.EndpointSliceList{}
	err := c.List(ctx, all, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("looking for the addresses of API servers: %w", err)
	}
	var addresses []string
	for i := range all.Items {
		slice := &all.Items[i]
		for _, port := range slice.Ports {
			if port.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				for _, a := range e.Addresses {
					addresses = append(addresses, net.JoinHostPort(a, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	if len(addresses) == 0 {
		return nil, engine.NotYet("service default/kubernetes leads to no API server")
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}
