//go:build apiserver

package cluster_test

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
	policyv1 "k8s.io/api/policy/v1"
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
	"github.com/replumb/replumb/internal/kube/cluster"
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

// TestReferencesFindsOnEveryPage makes more ConfigMaps than fit on one page, each with an address of its own kind.
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
	found, err := server.References(t.Context(), scanner(t))
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
	found, err := server.References(t.Context(), scanner(t))
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
	if want := []cluster.StuckBudget{{Name: "shop/none", Rule: "maxUnavailable is 0"}}; !slices.Equal(found.Stuck, want) {
		t.Errorf("stuck budgets %v, want %v", found.Stuck, want)
	}
	if want := []cluster.Policy{{Name: "freeze", Migration: "other"}}; !slices.Equal(found.Policies, want) {
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
	found, err := blind.References(t.Context(), scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"configmaps", "pods", "persistentvolumes", "customresourcedefinitions", "migrations", "felixconfigurations"} {
		if !found.Unread[r] {
			t.Errorf("%s: not noted in %v", r, found.Unread)
		}
	}
}

func TestReferencesFailsWithoutAnAnswer(t *testing.T) {
	server := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := server.References(ctx, scanner(t)); err == nil || found != nil {
		t.Errorf("got %v and %v", err, found)
	}
}

func TestReferencesAsksCalico(t *testing.T) {
	server := setup(t)
	preserve := true
	create(t, server, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "felixconfigurations.crd.projectcalico.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "crd.projectcalico.org", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "FelixConfiguration", Plural: "felixconfigurations"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
				},
			}},
		},
	})
	look := func() []cluster.Replacement {
		found, err := server.References(t.Context(), scanner(t))
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
	others, err := client.New(server.Config, client.Options{}) // it discovers kinds that replumb has no mapping for
	if err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return others.Create(ctx, felix) == nil, nil // until the definition is served
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := look(); len(got) != 1 || got[0].Object != "FelixConfiguration default" {
		t.Errorf("got %v", got)
	}
}

// TestLoadKeepsWhoOwnsTheClusterIP shows what the API server writes into managedFields: an address that was asked for
// has an owner, one that was given has none.
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
	snap, err := server.Load(t.Context())
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
