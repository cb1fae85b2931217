package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/rehearsal"
	"github.com/replumb/replumb/lab/sample"
)

// TestRehearsal takes a snapshot of a cluster, ends the cluster, and rehearses the move of its Services from the snapshot alone: on an API server
// without nodes, and a sample of them with packets in a lab, there, back, there again and for good. None of the sample's requests is lost. The
// control moves the same sample the naive way, and loses.
func TestRehearsal(t *testing.T) {
	l := bringUp(t, named("e2e-rehearsed"))
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	services := ofOtherShapes(t, l)
	dir := t.TempDir()
	snapshot, file := filepath.Join(dir, "cluster.tar.gz"), filepath.Join(dir, "move.yaml")
	replumb(t, l, "snapshot", "--file", snapshot)
	if err := os.WriteFile(file, []byte(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  serviceCIDR: {to: [172.24.0.0/16]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Down(t.Context(), l.Topology.Name); err != nil {
		t.Fatal(err)
	}

	const size = 8
	cmd := command(t, "replumb-lab", "rehearse", snapshot, "-f", file, "--rollback", "--packets", "8", "-o", "json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	report := rehearsal.Report{}
	must(t, json.Unmarshal(out, &report))
	requireSampled(t, &report, size)
	requireNaiveSampleLoses(t, services)
}

// ofOtherShapes adds Services that nodes lead to in other ways than to those of the shop, and returns all.
func ofOtherShapes(t *testing.T, l *lab.Lab) []corev1.Service {
	t.Helper()
	services := l.Client().CoreV1().Services(shopNamespace)
	for name, change := range map[string]func(*corev1.ServiceSpec){
		"at-nodes": func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort },
		"sticky":   func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP },
		"datagrams": func(s *corev1.ServiceSpec) {
			s.Ports = []corev1.ServicePort{{Name: "udp", Port: 5353, Protocol: corev1.ProtocolUDP}}
		},
	} {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app.kubernetes.io/name": "cart"}, Ports: []corev1.ServicePort{{Name: "http", Port: 8080}},
			},
		}
		change(&s.Spec)
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := l.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return all.Items
}

// requireSampled fails the test unless the rehearsal came to its end, and a sample of every shape was moved without a loss.
func requireSampled(t *testing.T, r *rehearsal.Report, size int) {
	t.Helper()
	if r.Outcome != rehearsal.Done || r.Packets == nil {
		t.Fatalf("%s, with errors %q, and packets %+v", r.Outcome, r.Errors, r.Packets)
	}
	shapes := map[string]bool{}
	for _, s := range r.Packets.Services {
		t.Logf("%s: %s", s.Service, s.Shape)
		shapes[s.Shape] = true
	}
	if len(r.Packets.Services) != size || len(shapes) < 4 {
		t.Errorf("%d Services of %d shapes were moved", len(r.Packets.Services), len(shapes))
	}
	var course []string
	for _, c := range r.Packets.Commands {
		t.Logf("%s: %d requests, %d lost", c.Command, c.Sent, c.Lost)
		course = append(course, c.Command)
		if c.Lost > 0 || c.Sent < 500 {
			t.Errorf("%s: %d of %d requests were lost: %q", c.Command, c.Lost, c.Sent, r.Packets.Losses)
		}
	}
	if len(course) != 4 || len(r.Commands) != 4 {
		t.Errorf("the lab went through %q, and the API server through %d commands", course, len(r.Commands))
	}
	t.Logf("the sample took %.0f s", r.Packets.Seconds)
}

// requireNaiveSampleLoses is the control: Services of the same sample are deleted, and made again with an address of the other range.
func requireNaiveSampleLoses(t *testing.T, services []corev1.Service) {
	t.Helper()
	result, err := sample.Run(t.Context(), sample.Options{
		Services: services, Size: 4, From: lab.Default().ServiceCIDR, To: []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")},
		Migration: &v1alpha1.Migration{Spec: v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{}}},
		Commands:  []string{"naive"}, Progress: t.Logf,
		Command: func(ctx context.Context, _ string, _ *v1alpha1.Migration, kubeconfig string) error {
			return makeAgain(ctx, kubeconfig, shopNamespace)
		},
	})
	must(t, err)
	if result.Lost() == 0 {
		t.Errorf("the naive way lost none of %+v: the sample proves nothing", result.Commands)
	}
	t.Logf("control: the naive way lost %d requests: %+v", result.Lost(), result.Commands)
}

// makeAgain deletes the Services of a namespace, and makes them again, with whatever address they get.
func makeAgain(ctx context.Context, kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	all, err := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		s := &all.Items[i]
		again := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}, Spec: s.Spec}
		again.Spec.ClusterIP, again.Spec.ClusterIPs = "", nil
		deleted := client.CoreV1().Services(namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		_, made := client.CoreV1().Services(namespace).Create(ctx, again, metav1.CreateOptions{})
		if err := errors.Join(deleted, made); err != nil {
			return err
		}
	}
	return nil // clients go on asking at the old addresses
}
