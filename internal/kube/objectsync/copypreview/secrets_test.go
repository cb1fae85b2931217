package copypreview

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

func TestSecretsAreCountedByOwner(t *testing.T) {
	s := &Inventory{}
	for i, tt := range []struct {
		namespace, typ, label, value string
		vault                        bool
	}{
		{namespace: "shop"},
		{namespace: "shop", typ: "Opaque"},
		{namespace: "shop", typ: "kubernetes.io/tls"},
		{namespace: "shop", typ: "helm.sh/release.v1"},
		{namespace: "capi", typ: "cluster.x-k8s.io/secret"},
		{namespace: "argocd", label: "argocd.argoproj.io/secret-type", value: "cluster"},
		{namespace: "argocd", label: partOf, value: "argocd"},
		{namespace: "flux-system"},
		{namespace: "x", label: partOf, value: "flux"},
		{namespace: "vault"},
		{namespace: "shop", vault: true},
		{namespace: "shop", typ: "Opaque", label: "app", value: "x"},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetNamespace(tt.namespace)
		o.SetName(fmt.Sprint("s", i))
		if tt.typ != "" {
			o.Object["type"] = tt.typ
		}
		if tt.label != "" {
			o.SetLabels(map[string]string{tt.label: tt.value})
		}
		if tt.vault {
			_ = unstructured.SetNestedSlice(
				o.Object,
				[]any{map[string]any{"apiVersion": "secrets.hashicorp.com/v1beta1"}},
				"metadata",
				"ownerReferences",
			)
		}
		s.countSecret(objects.Ref{Namespace: tt.namespace, Name: o.GetName()}, o)
	}
	s.sortSecrets()
	var got []string
	for _, c := range s.Secrets {
		got = append(got, fmt.Sprint(c.Count, " ", c.What, " ", c.Example.Name))
	}
	want := []string{
		"3 type Opaque s0", "2 Flux, with credentials of sources s7", "2 Vault s9", "1 Argo CD itself s6",
		"1 Argo CD, with credentials of type cluster s5", "1 Cluster API, with kubeconfigs of other clusters s4",
		"1 Helm releases, with the values they were installed with s3", "1 type kubernetes.io/tls s2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
