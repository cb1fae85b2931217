package main

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/lab/lab"
)

// ordered are the machines that somebody has ordered, and not cancelled, by who did.
type ordered map[string]lab.Order

func (o ordered) Order(_ context.Context, order lab.Order) (*lab.Member, error) {
	o[order.By] = order
	return &lab.Member{Name: "node1", Address: netip.MustParseAddr("172.31.0.11")}, nil
}

func (o ordered) Cancel(_ context.Context, by string) error {
	delete(o, by)
	return nil
}

func (ordered) ProviderID(m *lab.Member) string { return "lab/" + m.Name }

// TestMachine is ordered when all is there that others make, and neither before nor while it is paused, and cancelled when its LabMachine is deleted.
func TestMachine(t *testing.T) {
	ctx, cloud := t.Context(), ordered{}
	cluster, owner, m := core("Cluster"), core("Machine"), infrastructure("LabMachine")
	for _, o := range []*unstructured.Unstructured{cluster, owner, m} {
		o.SetNamespace("default")
		o.SetName("one")
	}
	m.SetUID("its-uid")
	m.SetLabels(map[string]string{clusterLabel: "one"})
	m.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Machine", Name: "one"}})
	m.SetAnnotations(map[string]string{pausedAnnotation: ""})
	set(m, "b", "spec", "network")
	set(m, false, "status", "initialization", "provisioned")
	boot := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "boot"}, Data: map[string][]byte{
		"value": []byte("#cloud-config\nwrite_files: [{path: /run/a, content: one}]\nruncmd: [kubeadm join]\n"),
	}}
	r := &machines{fake.NewClientBuilder().WithObjects(cluster, owner, m, boot).WithStatusSubresource(m).Build(), cloud}
	key := types.NamespacedName{Namespace: "default", Name: "one"}
	step := func(what string, machines int) {
		t.Helper()
		if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(cloud) != machines {
			t.Fatalf("%s: %d machines are ordered, want %d", what, len(cloud), machines)
		}
	}
	change := func(o *unstructured.Unstructured, with func()) {
		t.Helper()
		if err := r.Get(ctx, key, o); err != nil {
			t.Fatal(err)
		}
		with()
		if err := r.Update(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	change(cluster, func() { set(cluster, true, "status", "initialization", "infrastructureProvisioned") })
	change(owner, func() { set(owner, "boot", "spec", "bootstrap", "dataSecretName") })
	step("while it is paused", 0)
	change(m, func() { m.SetAnnotations(nil) })
	change(owner, func() { unstructured.RemoveNestedField(owner.Object, "spec", "bootstrap") })
	step("before it is known what it does when it starts", 0)
	change(owner, func() { set(owner, "boot", "spec", "bootstrap", "dataSecretName") })
	change(cluster, func() { unstructured.RemoveNestedField(cluster.Object, "status") })
	step("before its cluster has an endpoint", 0)
	change(cluster, func() { set(cluster, true, "status", "initialization", "infrastructureProvisioned") })
	step("when all is there", 1)
	step("again", 1)
	if o := cloud["its-uid"]; o.Role != lab.Worker || o.Network != "b" || string(o.Files["/run/a"]) != "one" || string(o.Script) != "#!/bin/sh\nkubeadm join\n" {
		t.Errorf("what is ordered is %+v", o)
	}
	if err := r.Get(ctx, key, m); err != nil {
		t.Fatal(err)
	}
	id, _, _ := unstructured.NestedString(m.Object, "spec", "providerID")
	addresses, _, _ := unstructured.NestedSlice(m.Object, "status", "addresses")
	if id != "lab/node1" || len(addresses) != 2 || !provisioned(m) {
		t.Errorf("it says of itself %v", m.Object)
	}
	if err := r.Delete(ctx, m); err != nil {
		t.Fatal(err)
	}
	step("after it was deleted", 0)
	if err := r.Get(ctx, key, m); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("it is still there: %v", err)
	}
}
