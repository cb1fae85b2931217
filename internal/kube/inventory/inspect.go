// Package inventory reads what runs in a cluster beside replumb, as far as it concerns its network,
// and the Snapshot that plans and checks are made from.
package inventory

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
)

// scans bounds how many collections are read at once, since each holds a page in memory.
const scans = 4

// Pages of large objects are shorter: a ConfigMap may have 1 MiB.
const (
	configMapPage = 100
	secretPage    = 25
	crdPage       = 25
)

// References looks through all objects that may name an old address or otherwise stand in the way
// of a migration. Resources that the user may not list are in Unread.
func References(ctx context.Context, c *cluster.Cluster, scanner *references.Scanner) (*Scan, error) {
	found := &Scan{Unread: map[string]bool{}}
	var mu sync.Mutex
	eg, ectx := errgroup.WithContext(ctx)
	eg.SetLimit(scans)
	for _, src := range sources() {
		eg.Go(func() error {
			err := cluster.EachPage(ectx, c, src.list, src.page, func(o client.Object) {
				mu.Lock()
				defer mu.Unlock()
				found.Take(scanner, o)
			}, src.opts...)
			mu.Lock()
			defer mu.Unlock()
			return found.noteUnread(src.resource, err)
		})
	}
	if err := eg.Wait(); err != nil {
		return nil, err
	}
	if err := felix(ctx, c, found); err != nil {
		return nil, err
	}
	if err := secrets(ctx, c, scanner, found); err != nil {
		return nil, err
	}
	err := eachCustom(ctx, c, slices.Concat(policyKinds(), settingKinds()), found, func(o *unstructured.Unstructured) {
		found.Take(scanner, o)
	})
	if err != nil {
		return nil, err
	}
	if err := search(ctx, c, scanner, found); err != nil {
		return nil, err
	}
	found.sort()
	return found, nil
}

// ReferenceRights are for References, beside the rights to list Services, EndpointSlices,
// ConfigMaps, pods, workloads, budgets and Migrations. Secrets are left out: they are read only
// where another role gives the right.
func ReferenceRights() []access.Right {
	return slices.Concat(
		access.Grant("", "persistentvolumes", "", "list"),
		access.Grant("batch", "cronjobs", "", "list"),
		access.Grant("networking.k8s.io", "networkpolicies", "", "list"),
		access.Grant("networking.k8s.io", "ingressclasses", "", "list"),
		access.Grant("networking.k8s.io", "ingresses", "", "list"),
		WebhookRights(),
		access.Grant("apiregistration.k8s.io", "apiservices", "", "list"),
		access.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"),
		access.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "list"),
		access.Named(access.Grant(cluster.CalicoGroup, "felixconfigurations", "", "get"), "default"),
		listRights(policyKinds()),
		listRights(settingKinds()),
	)
}

func felix(ctx context.Context, c *cluster.Cluster, found *Scan) error {
	if !found.calico && !found.Unread["customresourcedefinitions"] {
		return nil
	}
	body, err := c.GetRaw(ctx, "/apis/crd.projectcalico.org/v1/felixconfigurations/default")
	if err != nil {
		return found.noteUnread("felixconfigurations", err)
	}
	return found.TakeFelix(body)
}

// secrets asks for the right first, since a refused request would stand in the audit log. It leaves
// out certificates, tokens and Helm's releases, which are compressed.
func secrets(ctx context.Context, c *cluster.Cluster, scanner *references.Scanner, found *Scan) error {
	answers, err := c.Access(ctx, access.Grant("", "secrets", "", "list"))
	if err != nil {
		return found.noteUnread("secrets", err)
	}
	if !answers[0].Allowed {
		found.Unread["secrets"] = true
		return nil
	}
	var wanted []fields.Selector
	for _, skipped := range []corev1.SecretType{
		corev1.SecretTypeTLS, corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken, "helm.sh/release.v1",
	} {
		wanted = append(wanted, fields.OneTermNotEqualSelector("type", string(skipped)))
	}
	err = cluster.EachPage(ctx, c, &corev1.SecretList{}, secretPage, func(o client.Object) { found.Take(scanner, o) },
		client.MatchingFieldsSelector{Selector: fields.AndSelectors(wanted...)})
	return found.noteUnread("secrets", err)
}

type source struct {
	resource string
	list     client.ObjectList
	page     int64
	opts     []client.ListOption
}

func sources() []source {
	return []source{
		{resource: "configmaps", list: &corev1.ConfigMapList{}, page: configMapPage},
		{resource: "pods", list: &corev1.PodList{}, page: cluster.PageSize},
		{resource: "customresourcedefinitions", list: &apiextensionsv1.CustomResourceDefinitionList{}, page: crdPage},
		{resource: "persistentvolumes", list: &corev1.PersistentVolumeList{}, page: cluster.PageSize},
		{resource: "deployments", list: &appsv1.DeploymentList{}, page: cluster.PageSize},
		{resource: "statefulsets", list: &appsv1.StatefulSetList{}, page: cluster.PageSize},
		{resource: "daemonsets", list: &appsv1.DaemonSetList{}, page: cluster.PageSize},
		{resource: "jobs", list: &batchv1.JobList{}, page: cluster.PageSize},
		{resource: "cronjobs", list: &batchv1.CronJobList{}, page: cluster.PageSize},
		{resource: "networkpolicies", list: &networkingv1.NetworkPolicyList{}, page: cluster.PageSize},
		{resource: "services", list: &corev1.ServiceList{}, page: cluster.PageSize},
		{resource: "ingresses", list: &networkingv1.IngressList{}, page: cluster.PageSize},
		{resource: "endpointslices", list: &discoveryv1.EndpointSliceList{}, page: cluster.PageSize, opts: []client.ListOption{handMade()}},
		{resource: "ingressclasses", list: &networkingv1.IngressClassList{}, page: cluster.PageSize},
		{resource: "poddisruptionbudgets", list: &policyv1.PodDisruptionBudgetList{}, page: cluster.PageSize},
		{resource: "validatingwebhookconfigurations", list: &admissionv1.ValidatingWebhookConfigurationList{}, page: cluster.PageSize},
		{resource: "mutatingwebhookconfigurations", list: &admissionv1.MutatingWebhookConfigurationList{}, page: cluster.PageSize},
		{resource: "apiservices", list: apiServices(), page: cluster.PageSize},
		{
			resource: "validatingadmissionpolicies", list: &admissionv1.ValidatingAdmissionPolicyList{}, page: cluster.PageSize,
			opts: []client.ListOption{client.HasLabels{v1alpha1.LabelMigration}},
		},
		{resource: "migrations", list: &v1alpha1.MigrationList{}, page: cluster.PageSize},
	}
}

// handMade selects the EndpointSlices that no controller makes from pods.
func handMade() client.MatchingLabelsSelector {
	made, err := labels.NewRequirement(discoveryv1.LabelManagedBy, selection.NotIn, []string{fromPods})
	if err != nil {
		panic(err) // both are constants
	}
	return client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*made)}
}

// fromPods is the controllerName of k8s.io/kubernetes pkg/controller/endpointslice.
const fromPods = "endpointslice-controller.k8s.io"
