package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/replumb/replumb/lab/cloudconfig"
	"github.com/replumb/replumb/lab/lab"
)

// finalizer keeps a LabMachine until its machine has ended.
const finalizer = "infrastructure.cluster.x-k8s.io/labmachine"

// Names of Cluster API's.
const (
	clusterLabel      = "cluster.x-k8s.io/cluster-name"
	controlPlaneLabel = "cluster.x-k8s.io/control-plane"
	pausedAnnotation  = "cluster.x-k8s.io/paused"
)

// askAgain is how soon it is looked again for what is not there yet.
const askAgain = time.Second

// cloud is where machines are ordered: a lab.
type cloud interface {
	Order(ctx context.Context, o lab.Order) (*lab.Member, error)
	Cancel(ctx context.Context, by string) error
	ProviderID(m *lab.Member) string
}

// machines has a machine for each LabMachine.
type machines struct {
	client.Client
	lab cloud
}

// Reconcile implements reconcile.Reconciler.
func (r *machines) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m := infrastructure("LabMachine")
	if err := r.Get(ctx, request.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if provisioned(m) && m.GetDeletionTimestamp() == nil {
		return ctrl.Result{}, nil
	}
	err := r.reconcile(ctx, m)
	if busy := (*lab.BusyError)(nil); errors.As(err, &busy) || errors.Is(err, errNotYet) {
		return ctrl.Result{RequeueAfter: askAgain}, nil
	}
	return ctrl.Result{}, err
}

// errNotYet is that others have work to do first.
var errNotYet = errors.New("not yet")

func (r *machines) reconcile(ctx context.Context, m *unstructured.Unstructured) error {
	cluster := core("Cluster")
	err := r.Get(ctx, client.ObjectKey{Namespace: m.GetNamespace(), Name: m.GetLabels()[clusterLabel]}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if paused(m, cluster) {
		return errNotYet
	}
	if m.GetDeletionTimestamp() != nil {
		if err := r.lab.Cancel(ctx, string(m.GetUID())); err != nil {
			return err
		}
		return r.patched(ctx, m, func() { controllerutil.RemoveFinalizer(m, finalizer) })
	}
	if !provisioned(cluster) {
		return errNotYet
	}
	order, err := r.order(ctx, m)
	if err != nil {
		return err
	}
	if err := r.patched(ctx, m, func() { controllerutil.AddFinalizer(m, finalizer) }); err != nil {
		return err
	}
	made, err := r.lab.Order(ctx, order)
	if err != nil {
		return err
	}
	if err := r.patched(ctx, m, func() { set(m, r.lab.ProviderID(made), "spec", "providerID") }); err != nil {
		return err
	}
	was := m.DeepCopy()
	set(m, []any{
		map[string]any{"type": "Hostname", "address": made.Name}, map[string]any{"type": "InternalIP", "address": made.Address.String()},
	}, "status", "addresses")
	set(m, true, "status", "initialization", "provisioned")
	return r.Status().Patch(ctx, m, client.MergeFrom(was))
}

// paused tells whether Cluster API is to leave a machine as it is.
func paused(m, cluster *unstructured.Unstructured) bool {
	_, annotated := m.GetAnnotations()[pausedAnnotation]
	all, _, _ := unstructured.NestedBool(cluster.Object, "spec", "paused")
	return annotated || all
}

// provisioned tells whether the infrastructure of a cluster or machine is there.
func provisioned(o *unstructured.Unstructured) bool {
	field := "provisioned"
	if o.GetKind() == "Cluster" {
		field = "infrastructureProvisioned"
	}
	is, _, _ := unstructured.NestedBool(o.Object, "status", "initialization", field)
	return is
}

// order is what is ordered, once the bootstrap provider has written what the machine is to do.
func (r *machines) order(ctx context.Context, m *unstructured.Unstructured) (lab.Order, error) {
	o := lab.Order{By: string(m.GetUID()), Role: lab.Worker}
	o.Network, _, _ = unstructured.NestedString(m.Object, "spec", "network")
	if _, is := m.GetLabels()[controlPlaneLabel]; is {
		o.Role = lab.ControlPlane
	}
	owner := metav1.OwnerReference{}
	for _, reference := range m.GetOwnerReferences() {
		if reference.Kind == "Machine" {
			owner = reference
		}
	}
	if owner.Name == "" {
		return o, errNotYet
	}
	machine := core("Machine")
	if err := r.Get(ctx, client.ObjectKey{Namespace: m.GetNamespace(), Name: owner.Name}, machine); err != nil {
		return o, err
	}
	secret, _, _ := unstructured.NestedString(machine.Object, "spec", "bootstrap", "dataSecretName")
	if secret == "" {
		return o, errNotYet
	}
	config, err := r.bootstrap(ctx, client.ObjectKey{Namespace: m.GetNamespace(), Name: secret})
	if err != nil {
		return o, err
	}
	o.Files, o.Script = map[string][]byte{}, config.Script()
	for _, f := range config.Files {
		o.Files[f.Path] = []byte(f.Content)
	}
	return o, nil
}

// bootstrap is what a Secret says that a machine does when it starts.
func (r *machines) bootstrap(ctx context.Context, key client.ObjectKey) (*cloudconfig.Config, error) {
	secret := object(schema.GroupVersionKind{Version: "v1", Kind: "Secret"})
	if err := r.Get(ctx, key, secret); err != nil {
		return nil, err
	}
	encoded, _, _ := unstructured.NestedString(secret.Object, "data", "value")
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	config, err := cloudconfig.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	return config, nil
}

// patched writes a change of an object.
func (r *machines) patched(ctx context.Context, o *unstructured.Unstructured, change func()) error {
	was := o.DeepCopy()
	change()
	return r.Patch(ctx, o, client.MergeFrom(was))
}
