package mirror

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

type network struct {
	// name of it, and set its DaemonSet as namespace/name; none, if only namespaces are left.
	name, set string
	// namespaces that hold nothing else, and objects outside of them.
	namespaces []string
	objects    []objects.Ref
}

func left(all []network) copyrules.SourceNetwork {
	out := copyrules.SourceNetwork{Namespaces: podnetwork.Namespaces()}
	for _, n := range all {
		out.Namespaces = append(out.Namespaces, n.namespaces...)
		out.Objects = append(out.Objects, n.objects...)
	}
	return out
}

// described says what is left out of each network of the source, one line for each.
func (j *Job) described() []string {
	var out []string
	for _, n := range j.networks {
		text := fmt.Sprintf("%s (DaemonSet %s)", n.name, n.set)
		for _, ns := range n.namespaces {
			text += ", namespace " + ns
		}
		if len(n.objects) > 0 {
			text += fmt.Sprintf(", %s", english.Plural(len(n.objects), "object", ""))
		}
		out = append(out, text)
	}
	return out
}

func (j *Job) findNetworks(ctx context.Context) ([]network, error) {
	sets, err := cluster.List[appsv1.DaemonSet](ctx, j.from, &appsv1.DaemonSetList{})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	bindings, err := cluster.List[rbacv1.ClusterRoleBinding](ctx, j.from, &rbacv1.ClusterRoleBindingList{})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if !slices.ContainsFunc(sets, isNetwork) {
		return nil, nil
	}
	shared, err := j.shared(ctx, sets)
	if err != nil {
		return nil, err
	}
	var out []network
	for i := range sets {
		if !isNetwork(sets[i]) {
			continue
		}
		n := network{name: podnetwork.Name(&sets[i]), set: sets[i].Namespace + "/" + sets[i].Name}
		if !shared[sets[i].Namespace] {
			n.namespaces = []string{sets[i].Namespace}
		}
		n.belongings(&sets[i], bindings)
		out = append(out, n)
	}
	return out, nil
}

func isNetwork(set appsv1.DaemonSet) bool { return podnetwork.Name(&set) != "" }

// shared are the namespaces with other workloads than networks, or that exist in every cluster.
func (j *Job) shared(ctx context.Context, sets []appsv1.DaemonSet) (map[string]bool, error) {
	pods, err := cluster.List[corev1.Pod](ctx, j.from, &corev1.PodList{})
	if err != nil {
		return nil, err
	}
	deployments, err := cluster.List[appsv1.Deployment](ctx, j.from, &appsv1.DeploymentList{})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	all := map[string]bool{metav1.NamespaceSystem: true, metav1.NamespaceDefault: true}
	for i := range deployments {
		all[deployments[i].Namespace] = true
	}
	for i := range sets {
		if !isNetwork(sets[i]) {
			all[sets[i].Namespace] = true
		}
	}
	for i := range pods {
		if !ofDaemonSet(&pods[i]) {
			all[pods[i].Namespace] = true
		}
	}
	return all, nil
}

// belongings are the objects of a network by their usual names, its DaemonSet, and roles bound to
// its ServiceAccounts alone.
func (n *network) belongings(set *appsv1.DaemonSet, bindings []rbacv1.ClusterRoleBinding) {
	n.add("daemonsets.apps", set.Namespace, set.Name)
	for _, r := range podnetwork.Remnants(podnetwork.Program(set), set.Namespace) {
		n.add(resourceOf(r.Kind), r.Namespace, r.Name)
	}
	account := set.Spec.Template.Spec.ServiceAccountName
	if account == "" || account == "default" {
		return
	}
	n.add("serviceaccounts", set.Namespace, account)
	whole := append(podnetwork.Namespaces(), n.namespaces...)
	ours := func(b *rbacv1.ClusterRoleBinding) bool {
		return len(b.Subjects) > 0 && !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			account := s.Namespace == set.Namespace && s.Name == account || slices.Contains(whole, s.Namespace)
			return s.Kind != "ServiceAccount" || !account
		})
	}
	for i := range bindings {
		b := &bindings[i]
		if !ours(b) {
			continue
		}
		n.add("clusterrolebindings.rbac.authorization.k8s.io", "", b.Name)
		shared := slices.ContainsFunc(bindings, func(o rbacv1.ClusterRoleBinding) bool { return o.RoleRef == b.RoleRef && !ours(&o) })
		if b.RoleRef.Kind == "ClusterRole" && !shared {
			n.add("clusterroles.rbac.authorization.k8s.io", "", b.RoleRef.Name)
		}
	}
}

func (n *network) add(resource, namespace, name string) {
	ref := objects.Ref{Resource: resource, Namespace: namespace, Name: name}
	if !slices.Contains(n.objects, ref) {
		n.objects = append(n.objects, ref)
	}
}

func resourceOf(kind string) string {
	return map[string]string{
		"DaemonSet": "daemonsets.apps", "Deployment": "deployments.apps", "PodDisruptionBudget": "poddisruptionbudgets.policy",
		"Service": "services", "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts",
		"ClusterRole": "clusterroles.rbac.authorization.k8s.io", "ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
	}[kind]
}
