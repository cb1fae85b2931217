package objectsync

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// SecretCount is how many Secrets of a sort would be copied.
type SecretCount struct {
	// What they are: of a well-known owner, or else their type.
	What  string
	Count int
	// Example is one of them.
	Example Ref
}

// countSecret adds a Secret that would be copied.
func (s *Survey) countSecret(ref Ref, o *unstructured.Unstructured) {
	what := sortOfSecret(o)
	i := slices.IndexFunc(s.Secrets, func(c SecretCount) bool { return c.What == what })
	if i < 0 {
		s.Secrets = append(s.Secrets, SecretCount{What: what, Example: ref})
		i = len(s.Secrets) - 1
	}
	s.Secrets[i].Count++
}

// sortSecrets has the most frequent first.
func (s *Survey) sortSecrets() {
	slices.SortFunc(s.Secrets, func(a, b SecretCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What))
	})
}

// sortOfSecret tells those whose owners are known to keep credentials for more than this cluster from the others, which have their type.
// What others write as labels only changes under which name a Secret is counted.
func sortOfSecret(o *unstructured.Unstructured) string {
	labels, typ := o.GetLabels(), string(corev1.SecretTypeOpaque)
	if t, _, _ := unstructured.NestedString(o.Object, "type"); t != "" {
		typ = t
	}
	switch {
	case typ == "helm.sh/release.v1": // secretType in helm.sh/helm/v3 pkg/storage/driver/secrets.go
		return "Helm releases, with the values they were installed with"
	case typ == "cluster.x-k8s.io/secret":
		return "Cluster API, with kubeconfigs of other clusters"
	// LabelKeySecretType in argoproj/argo-cd common/common.go: cluster, repository, repo-creds.
	case labels["argocd.argoproj.io/secret-type"] != "":
		return "Argo CD, with credentials of type " + labels["argocd.argoproj.io/secret-type"]
	case labels[partOf] == "argocd":
		return "Argo CD itself"
	case o.GetNamespace() == "flux-system", labels[partOf] == "flux":
		return "Flux, with credentials of sources"
	case labels["app.kubernetes.io/name"] == "vault", o.GetNamespace() == "vault", ownedByVault(o):
		return "Vault"
	}
	return "type " + typ
}

const partOf = "app.kubernetes.io/part-of"

// ownedByVault reports whether the operator of Vault has made it (groups in hashicorp/vault-secrets-operator api/v1beta1).
func ownedByVault(o *unstructured.Unstructured) bool {
	for _, owner := range o.GetOwnerReferences() {
		if owner.APIVersion == "secrets.hashicorp.com/v1beta1" {
			return true
		}
	}
	return false
}
