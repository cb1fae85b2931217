package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// planRuns is how often plan is measured.
const planRuns = 3

// plan measures the program itself, in turn with bare lists of what it has to read.
func (o services) plan(ctx context.Context, n int) error {
	f, err := newShelf(ctx, n, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.server.Stop() }()
	if err := inParallel(o.slices, 16, func(i int) error { return f.cluster.Create(ctx, slice(i, n)) }); err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(f.server.Kubeconfig), "bench.yaml")
	manifest, err := yaml.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Migration", "metadata": map[string]any{"name": "bench"},
		"spec": map[string]any{"serviceCIDR": map[string]any{
			"to": []string{newRange}, "clusterServices": v1alpha1.ClusterServicesStay, "bridge": v1alpha1.BridgeExternalIPs,
		}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		return err
	}
	fmt.Printf("\nplan of %d Services, %d EndpointSlices\n", n, o.slices)
	for range planRuns {
		bare, err := f.list(ctx, &corev1.ServiceList{}, &networkingv1.IPAddressList{})
		if err != nil {
			return err
		}
		endpoints, err := f.list(ctx, &discoveryv1.EndpointSliceList{})
		if err != nil {
			return err
		}
		took, peak, err := planOnce(ctx, o.program, f.server.Kubeconfig, file)
		if err != nil {
			return err
		}
		fmt.Printf("  RESULT plan %s, peak memory %.0f MB; bare lists of Services and IPAddresses %.1fs, of EndpointSlices %.1fs\n",
			took, peak, bare.Seconds(), endpoints.Seconds())
	}
	return nil
}

func slice(i, n int) *discoveryv1.EndpointSlice {
	service, ready, port, tcp, name := key(i%n), true, int32(8080), corev1.ProtocolTCP, "http"
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: fmt.Sprintf("%s-%d", service.Name, i/n),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{offset("10.244.0.0/16", i).String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
	}
}

// list reads whole collections page by page, as replumb has to, and does nothing with them.
func (f *shelf) list(ctx context.Context, lists ...client.ObjectList) (time.Duration, error) {
	start := time.Now()
	for _, l := range lists {
		for {
			if err := f.cluster.List(ctx, l, client.Limit(500), client.Continue(l.GetContinue())); err != nil {
				return 0, err
			}
			if l.GetContinue() == "" {
				break
			}
		}
	}
	return time.Since(start), nil
}

// planOnce runs the program and tells how long it took and the most memory it had, in MB.
func planOnce(ctx context.Context, program, kubeconfig, file string) (took cost, peak float64, err error) {
	cmd := exec.CommandContext(ctx, program, "plan", "-f", file, "--kubeconfig", kubeconfig)
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return cost{}, 0, fmt.Errorf("%s plan: %w", program, err)
	}
	took.wall = time.Since(start)
	took.cpu, peak = used(cmd.ProcessState)
	return took, peak, nil
}
