package podcidr

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
)

// Survey looks at the cluster as it is now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) {
	state, err := j.pools(ctx)
	if err != nil {
		return nil, err
	}
	now, err := j.Tools.occupants(ctx)
	if err != nil {
		return nil, err
	}
	if state == nil {
		survey, err := j.lookAtNodes(ctx, now)
		if err != nil {
			return nil, err
		}
		return survey, j.criticals(ctx, survey)
	}
	survey, err := Look(j.Spec, state, now.Workloads, now.Nodes)
	if err != nil {
		return nil, err
	}
	j.Spec.From = survey.Spec.From // later looks find the old pools disabled, and would not know them any more
	namespaces := &corev1.NamespaceList{}
	if err := j.Tools.Cluster.List(ctx, namespaces); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	survey.Namespaces = map[string]map[string]string{}
	for i := range namespaces.Items {
		survey.Namespaces[namespaces.Items[i].Name] = namespaces.Items[i].Annotations
	}
	if err := j.surroundings(ctx, survey); err != nil {
		return nil, err
	}
	return survey, j.criticals(ctx, survey)
}

// surroundings reads what else decides how pods are connected. What is not there, or may not be read, is left out: the
// rights are a check of their own.
func (j *Job) surroundings(ctx context.Context, s *Survey) error {
	s.Configs = map[string]map[string]string{}
	for _, key := range []types.NamespacedName{
		{Namespace: metav1.NamespaceSystem, Name: "calico-config"},
		{Namespace: "calico-system", Name: "cni-config"},
		{Namespace: metav1.NamespaceSystem, Name: "ip-masq-agent"},
		{Namespace: metav1.NamespaceSystem, Name: "azure-ip-masq-agent-config"},
	} {
		found := &corev1.ConfigMap{}
		err := j.Tools.Cluster.Get(ctx, key, found)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("configmap %s: %w", key, err)
		}
		s.Configs[key.String()] = found.Data
	}
	reservations := &unstructured.UnstructuredList{}
	reservations.SetGroupVersionKind(calico.GroupVersion().WithKind("IPReservationList"))
	err := j.Tools.Cluster.List(ctx, reservations, client.Limit(1))
	if s.Unreservable = apierrors.IsNotFound(err); err != nil && !s.Unreservable && !apierrors.IsForbidden(err) {
		return fmt.Errorf("listing ipreservations: %w", err)
	}
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.tigera.io", Version: "v1", Kind: "InstallationList"})
	err = j.Tools.Cluster.List(ctx, all)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing installations: %w", err)
	}
	for i := range all.Items {
		one, err := readInstallation(&all.Items[i])
		if err != nil {
			return fmt.Errorf("installation %s: %w", all.Items[i].GetName(), err)
		}
		s.Installations = append(s.Installations, one)
	}
	return nil
}

func readInstallation(u *unstructured.Unstructured) (Installation, error) {
	i := Installation{Name: u.GetName()}
	network, _, err := unstructured.NestedMap(u.Object, "spec", "calicoNetwork")
	if err != nil {
		return i, err
	}
	var fields struct {
		Pools []InstalledPool `json:"ipPools"`
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(network, &fields)
	i.Pools = fields.Pools
	return i, err
}

// criticals finds the Services that the cluster itself cannot do without.
func (j *Job) criticals(ctx context.Context, s *Survey) error {
	keys := []types.NamespacedName{{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}}
	hooks, err := j.Tools.Cluster.WebhookServices(ctx)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	for _, key := range append(keys, hooks...) {
		svc := &corev1.Service{}
		err := j.Tools.Cluster.Get(ctx, key, svc)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("service %s: %w", key, err)
		}
		s.CriticalServices = append(s.CriticalServices, *svc)
	}
	return nil
}
