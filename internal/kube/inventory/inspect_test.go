//go:build apiserver && long

package inventory_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

func scanner(t *testing.T) *references.Scanner {
	t.Helper()
	s, err := references.New(
		[]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")},
		[]netip.Addr{netip.MustParseAddr("10.96.3.7")},
	)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func setup(t *testing.T) *apitest.Server {
	t.Helper()
	server := lazy.Get(t)
	server.Clean(t)
	server.Namespace(t, "shop")
	return server
}

// create makes objects that are removed when the test ends.
func create(t *testing.T, c client.Client, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
}

func template(env string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "c", Image: "c", Env: []corev1.EnvVar{{Name: "CART", Value: env}}},
		}},
	}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
}

func at(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

// TestReferencesFindsOnEveryPage makes more ConfigMaps than fit on one page, each with an address
// of its own kind.
func TestReferencesFindsOnEveryPage(t *testing.T) {
	server := setup(t)
	const many = 230
	eg, ctx := errgroup.WithContext(t.Context())
	eg.SetLimit(8)
	for i := range many {
		eg.Go(func() error {
			cm := &corev1.ConfigMap{ObjectMeta: at(fmt.Sprintf("c%03d", i)), Data: map[string]string{}}
			cm.Data[fmt.Sprintf("key%d", i)] = "10.96.3.7"
			return server.Create(ctx, cm)
		})
	}
	if err := eg.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.DeleteAllOf(context.Background(), &corev1.ConfigMap{}, client.InNamespace("shop")); err != nil {
			t.Error(err)
		}
	})
	found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(found.References); got != many {
		t.Fatalf("found %d, want %d", got, many)
	}
	for i, r := range found.References {
		want := references.Reference{
			Object: fmt.Sprintf("ConfigMap shop/c%03d", i),
			Field:  fmt.Sprintf("data[key%d]", i),
			Value:  "10.96.3.7",
		}
		if r != want {
			t.Errorf("reference %d is %+v, want %+v", i, r, want)
		}
	}
	if len(found.Unread) > 0 {
		t.Errorf("unread: %v", found.Unread)
	}
}

func TestReferencesLooksIntoEveryKind(t *testing.T) {
	server := setup(t)
	url, none := "https://10.96.3.7/x", admissionv1.SideEffectClassNone
	hook := admissionv1.ValidatingWebhook{
		Name: "a.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none,
		AdmissionReviewVersions: []string{"v1"},
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: at("none"),
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector(), MaxUnavailable: &intstr.IntOrString{}},
	}
	create(
		t, server,
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "nfs"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{
					corev1.ResourceStorage: resource.MustParse("1Gi"),
				},
				AccessModes:            []corev1.PersistentVolumeAccessMode{"ReadWriteMany"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "10.96.3.7", Path: "/"}},
			},
		},
		&appsv1.Deployment{ObjectMeta: at("front"), Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template("10.96.3.7")}},
		&appsv1.StatefulSet{ObjectMeta: at("db"), Spec: appsv1.StatefulSetSpec{Selector: selector(), Template: template("10.96.3.70")}},
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Webhooks: []admissionv1.ValidatingWebhook{hook},
		},
		&admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "freeze", Labels: map[string]string{v1alpha1.LabelMigration: "other"}},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Update},
						Rule: admissionv1.Rule{
							APIGroups:   []string{"example.com"},
							APIVersions: []string{"v1"},
							Resources:   []string{"things"},
						},
					},
				}}},
				Validations: []admissionv1.Validation{{Expression: "true"}},
			},
		},
		budget,
	)
	budget.Status = policyv1.PodDisruptionBudgetStatus{
		ExpectedPods:   2,
		CurrentHealthy: 2,
		DesiredHealthy: 2,
		DisruptedPods:  map[string]metav1.Time{},
	}
	if err := server.Status().Update(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, r := range found.References {
		objects = append(objects, r.Object)
	}
	if want := []string{
		"Deployment shop/front",
		"PersistentVolume nfs",
		"ValidatingWebhookConfiguration policy",
	}; !slices.Equal(
		objects,
		want,
	) {
		t.Errorf("found in %v, want %v", objects, want)
	}
	if want := []inventory.StuckBudget{{Name: "shop/none", Rule: "maxUnavailable is 0"}}; !slices.Equal(found.Stuck, want) {
		t.Errorf("stuck budgets %v, want %v", found.Stuck, want)
	}
	if want := []inventory.Policy{{Name: "freeze", Migration: "other"}}; !slices.Equal(found.Policies, want) {
		t.Errorf("policies %v, want %v", found.Policies, want)
	}
}

// TestReferencesNotesWhatMayNotBeRead looks with the eyes of a user without any rights.
func TestReferencesNotesWhatMayNotBeRead(t *testing.T) {
	server := setup(t)
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "stranger"}
	blind, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	found, err := inventory.References(t.Context(), blind, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{
		"configmaps", "pods", "persistentvolumes", "customresourcedefinitions", "migrations", "felixconfigurations", "secrets", "services",
		"ingresses", "endpointslices", "serviceentries.networking.istio.io", "networkpolicies.crd.projectcalico.org",
	} {
		if !found.Unread[r] {
			t.Errorf("%s: not noted in %v", r, found.Unread)
		}
	}
}

func TestReferencesFailsWithoutAnAnswer(t *testing.T) {
	server := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := inventory.References(ctx, server.Cluster, scanner(t)); err == nil || found != nil {
		t.Errorf("got %v and %v", err, found)
	}
}

func TestReferencesAsksCalico(t *testing.T) {
	server := setup(t)
	create(t, server, definition("crd.projectcalico.org", "v1", "felixconfigurations", "FelixConfiguration", apiextensionsv1.ClusterScoped))
	look := func() []inventory.Replacement {
		found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
		if err != nil {
			t.Fatal(err)
		}
		return found.Replacements
	}
	if got := look(); len(got) > 0 { // the definition alone says nothing
		t.Errorf("got %v", got)
	}
	felix := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration",
		"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"bpfEnabled": true},
	}}
	createCustom(t, server, felix)
	if got := look(); len(got) != 1 || got[0].Object != "FelixConfiguration default" {
		t.Errorf("got %v", got)
	}
}

// definition is one of a kind whose objects may have any fields.
func definition(group, version, plural, kind string, scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
				},
			}},
		},
	}
}

// createCustom waits until the definitions are served. The objects go with them.
func createCustom(t *testing.T, server *apitest.Server, all ...*unstructured.Unstructured) {
	t.Helper()
	others, err := client.New(server.Config, client.Options{}) // it discovers kinds that replumb has no mapping for
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			return others.Create(ctx, o) == nil, nil
		})
		if err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

func secret(name, key, value string, of corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: at(name), Type: of, Data: map[string][]byte{key: []byte(value)}}
}

// objectsOf are where references were found, but for volumes: no controller lets go of those that
// another test removed.
func objectsOf(found *inventory.Scan) (all []string) {
	for _, r := range found.References {
		if r.Kind() != "PersistentVolume" {
			all = append(all, r.Object)
		}
	}
	return slices.Compact(all)
}

// TestReferencesLooksIntoTrafficAndSecrets also shows which of them API servers are not asked for:
// Secrets of some types, EndpointSlices made from pods.
func TestReferencesLooksIntoTrafficAndSecrets(t *testing.T) {
	server := setup(t)
	slice := func(name string, labels map[string]string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: at(name), AddressType: discoveryv1.AddressTypeIPv4}
		s.Labels, s.Endpoints = labels, []discoveryv1.Endpoint{{Addresses: []string{"10.96.3.7"}}}
		return s
	}
	annotated := at("web")
	annotated.Annotations = map[string]string{"nginx.ingress.kubernetes.io/auth-url": "http://10.96.3.7/"}
	create(t, server,
		secret("url", "url", "postgres://cart:hunter2@10.96.3.7/", corev1.SecretTypeOpaque),
		secret("release", "release", "10.96.3.7", "helm.sh/release.v1"),
		secret("other", "url", "10.96.3.70", corev1.SecretTypeOpaque),
		&corev1.Service{ObjectMeta: at("out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "10.96.3.7"}},
		&networkingv1.Ingress{
			ObjectMeta: annotated,
			Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
				Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
			}},
		},
		slice("by-hand", nil), slice("mirrored", map[string]string{
			discoveryv1.LabelManagedBy: "endpointslicemirroring-controller.k8s.io", discoveryv1.LabelServiceName: "old",
		}),
		slice("from-pods", map[string]string{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}),
	)
	found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"EndpointSlice shop/by-hand", "Endpoints shop/old", "Ingress shop/web", "Secret shop/url", "Service shop/out"}
	if got := objectsOf(found); !slices.Equal(got, want) || len(found.Unread) > 0 {
		t.Errorf("found in %v, want %v; unread: %v", got, want, found.Unread)
	}
	if at := slices.IndexFunc(found.References, func(r references.Reference) bool { return r.Kind() == "Secret" }); at < 0 ||
		found.References[at] != (references.Reference{Object: "Secret shop/url", Field: "data[url]"}) {
		t.Errorf("of the Secret: %+v", found.References)
	}
	if len(found.Routes) != 1 || found.Routes[0].By != "Ingress shop/web" {
		t.Errorf("routes: %+v", found.Routes)
	}
}

// TestReferencesLeavesSecretsToWhoMayReadThem looks with what roles to view have, then with the
// right to list Secrets beside it.
func TestReferencesLeavesSecretsToWhoMayReadThem(t *testing.T) {
	server := setup(t)
	create(t, server, secret("url", "url", "10.96.3.7", corev1.SecretTypeOpaque))
	rights := slices.Concat(
		inventory.ReferenceRights(), access.Grant("", "configmaps", "", "list"), access.Grant("", "pods", "", "list"),
		access.Grant("", "services", "", "list"), access.Grant("discovery.k8s.io", "endpointslices", "", "list"),
		access.Grant("apps", "deployments", "", "list"), access.Grant("apps", "statefulsets", "", "list"),
		access.Grant("apps", "daemonsets", "", "list"), access.Grant("batch", "jobs", "", "list"),
		access.Grant("policy", "poddisruptionbudgets", "", "list"), access.Grant("replumb.dev", "migrations", "", "list"),
	)
	look := func(user string, rights []access.Right) *inventory.Scan {
		t.Helper()
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}}
		for _, r := range rights {
			role.Rules = append(
				role.Rules,
				rbacv1.PolicyRule{Verbs: []string{r.Verb}, APIGroups: []string{r.Group}, Resources: []string{r.Resource}},
			)
		}
		create(t, server, role, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})
		config := rest.CopyConfig(server.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c, err := cluster.Connect(config)
		if err != nil {
			t.Fatal(err)
		}
		last := rights[len(rights)-1]
		err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			answers, err := c.Access(ctx, []access.Right{last}) // authorizers hear of roles a little later
			return err == nil && answers[0].Allowed, err
		})
		if err != nil {
			t.Fatal(err)
		}
		found, err := inventory.References(t.Context(), c, scanner(t))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := look("viewer", rights); len(objectsOf(found)) > 0 || !found.Unread["secrets"] || len(found.Unread) > 1 {
		t.Errorf("without the right: found %v; unread: %v", objectsOf(found), found.Unread)
	}
	found := look("reader", append(rights, access.Grant("", "secrets", "", "list")...))
	if got := objectsOf(found); !slices.Equal(got, []string{"Secret shop/url"}) || len(found.Unread) > 0 {
		t.Errorf("with the right: found in %v; unread: %v", got, found.Unread)
	}
}

// TestReferencesLooksIntoCustomResources asks for kinds that are defined, in the version in which
// they are kept, page by page.
func TestReferencesLooksIntoCustomResources(t *testing.T) {
	server := setup(t)
	const many = 510 // more than a page
	create(t, server,
		definition("networking.istio.io", "v1beta1", "serviceentries", "ServiceEntry", apiextensionsv1.NamespaceScoped),
		definition("crd.projectcalico.org", "v1", "networkpolicies", "NetworkPolicy", apiextensionsv1.NamespaceScoped),
		definition("crd.projectcalico.org", "v1", "ippools", "IPPool", apiextensionsv1.ClusterScoped),
		definition("crd.projectcalico.org", "v1", "bgpconfigurations", "BGPConfiguration", apiextensionsv1.ClusterScoped),
	)
	custom := func(version, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "spec": spec}}
		o.SetNamespace(namespace)
		o.SetName(name)
		return o
	}
	nets := func(net string) map[string]any {
		return map[string]any{"egress": []any{map[string]any{"destination": map[string]any{"nets": []any{net}}}}}
	}
	createCustom(t, server,
		custom("crd.projectcalico.org/v1", "NetworkPolicy", "shop", "old", nets("10.96.0.0/16")),
		custom("crd.projectcalico.org/v1", "NetworkPolicy", "shop", "both", nets("0.0.0.0/0")),
		custom("crd.projectcalico.org/v1", "IPPool", "", "later", map[string]any{"cidr": "172.24.128.0/20"}),
		custom("crd.projectcalico.org/v1", "BGPConfiguration", "", "default", map[string]any{
			"serviceClusterIPs": []any{map[string]any{"cidr": "10.96.0.0/16"}},
		}),
	)
	for i := range many {
		createCustom(t, server, custom("networking.istio.io/v1beta1", "ServiceEntry", "shop", fmt.Sprintf("e%03d", i), map[string]any{
			"addresses": []any{"10.96.3.7"},
		}))
	}
	found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	got := objectsOf(found)
	if len(got) != many+1 || got[0] != "Calico NetworkPolicy shop/old" || got[many] != "ServiceEntry shop/e509" || len(found.Unread) > 0 {
		t.Errorf("found in %d objects; unread: %v", len(got), found.Unread)
	}
	if err := inventory.Neighbours(t.Context(), server.Cluster, found); err != nil {
		t.Fatal(err)
	}
	if len(found.Pools) != 1 || found.Pools[0] != (inventory.Pool{Object: "IPPool later", Range: netip.MustParsePrefix("172.24.128.0/20")}) {
		t.Errorf("pools: %+v", found.Pools)
	}
	if len(found.Advertisers) != 1 || found.Advertisers[0].Object != "BGPConfiguration default" {
		t.Errorf("advertisers: %+v", found.Advertisers)
	}
}

// TestAnyCustomResourceIsSearched: values of releases pin what a Service has, in kinds that replumb
// does not know.
func TestAnyCustomResourceIsSearched(t *testing.T) {
	server := setup(t)
	create(t, server,
		definition("helm.toolkit.fluxcd.io", "v2", "helmreleases", "HelmRelease", apiextensionsv1.NamespaceScoped),
		definition("helm.cattle.io", "v1", "helmchartconfigs", "HelmChartConfig", apiextensionsv1.NamespaceScoped),
		definition("example.com", "v1", "others", "Other", apiextensionsv1.ClusterScoped),
	)
	custom := func(version, kind, namespace string, spec map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "spec": spec}}
		o.SetNamespace(namespace)
		o.SetName("web")
		return o
	}
	createCustom(t, server,
		custom("helm.toolkit.fluxcd.io/v2", "HelmRelease", "shop", map[string]any{
			"values": map[string]any{"service": map[string]any{"clusterIP": "10.96.3.7"}},
		}),
		custom("helm.cattle.io/v1", "HelmChartConfig", "kube-system", map[string]any{"valuesContent": "service:\n  clusterIP: 10.96.3.7\n"}),
		custom("example.com/v1", "Other", "", map[string]any{"cidr": "192.0.2.0/24"}),
	)
	found, err := inventory.References(t.Context(), server.Cluster, scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := objectsOf(found); !slices.Equal(got, []string{"HelmChartConfig kube-system/web", "HelmRelease shop/web"}) || len(found.Unsearched) > 0 {
		t.Errorf("found in %q; not searched: %v", got, found.Unsearched)
	}
}

// TestLoadKeepsWhoOwnsTheClusterIP shows what the API server writes into managedFields: an address
// that was asked for has an owner, one that was given has none.
func TestLoadKeepsWhoOwnsTheClusterIP(t *testing.T) {
	server := setup(t)
	service := func(name, ip string) *corev1.Service {
		return &corev1.Service{ObjectMeta: at(name), Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	for _, s := range []struct {
		svc   *corev1.Service
		owner client.FieldOwner
	}{
		{service("pinned", "10.96.3.7"), "Helm"}, {service("given", ""), "Helm"}, {service("ours", "10.96.3.8"), v1alpha1.FieldManager},
	} {
		if err := server.Create(t.Context(), s.svc, s.owner); err != nil {
			t.Fatal(err)
		}
	}
	applied := "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: applied}\nspec: {clusterIP: 10.96.3.9, ports: [{port: 80}]}\n"
	err := server.Patch(
		t.Context(),
		service("applied", ""),
		client.RawPatch(types.ApplyPatchType, []byte(applied)),
		client.FieldOwner("sync"),
	)
	if err != nil {
		t.Fatal(err)
	}
	snap, err := inventory.Load(t.Context(), server.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for key, owners := range snap.ClusterIPOwners {
		if key.Namespace == "shop" {
			got = append(got, fmt.Sprint(key.Name, owners))
		}
	}
	slices.Sort(got)
	if want := "applied[{sync true}] pinned[{Helm false}]"; strings.Join(got, " ") != want {
		t.Errorf("owners %v, want %v", got, want)
	}
	for i := range snap.Services {
		if len(snap.Services[i].ManagedFields) > 0 {
			t.Errorf("service %s still has managedFields", snap.Services[i].Name)
		}
	}
}
