// Package copypreview looks at what a copy would find, before anything is written.
package copypreview

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Inventory is what a copy would find, before anything is written.
type Inventory struct {
	Kinds  *objectsync.ResourceKinds
	Counts []Count
	// Missing are kinds that the target does not serve although objects of them would be copied.
	Missing []Count
	// LeftOut are the reasons for which objects are left out, the most frequent first.
	LeftOut []LeftOut
	// Conflicts are objects that the target has with other contents, and that replumb did not make.
	Conflicts []objects.Note
	// Claims are PersistentVolumeClaims of the source in the namespaces that are copied.
	Claims []objects.Ref
	// Cloud are objects that something outside the cluster knows the source's side of.
	Cloud []objects.Note
	// Twice are workloads that may not be meant to run twice, and are no singletons by the rules.
	Twice []objects.Note
	// Beside are the other workloads that run in both clusters, by kind and namespace.
	Beside []NamedWorkloads
	// Secrets are those that would be copied, by what they are, the most frequent first.
	Secrets []SecretCount
	// Definitions are versions and fields of custom resources that the target's definitions lack.
	Definitions []objects.Note
	Errors      []*objectsync.ObjectError
}

// Count is how many objects of a kind there are.
type Count struct {
	Resource        string
	Copied, LeftOut int
	Refs            []objects.Ref
}

// LeftOut is why some objects of a kind are left out.
type LeftOut struct {
	Resource, Why string
	Count         int
	Examples      []objects.Ref
}

// Foundation reports whether workloads stand on objects of a kind, which come first.
func (s *Inventory) Foundation(resource string) bool {
	return s.Kinds != nil && slices.ContainsFunc(s.Kinds.Copied, func(k objects.ResourceKind) bool { return k.String() == resource && copyrules.Foundations.Of(k) })
}

// maxNotes is how many of a sort are listed, and maxExamples how many of those left out.
const (
	maxNotes    = 10000
	maxExamples = 3
)

// Of reads the source in full, and of the target the names. It writes nothing.
func Of(ctx context.Context, c *objectsync.Copier) (*Inventory, error) {
	kinds, err := objectsync.FindKinds(ctx, c.Source, c.Target, c.Rules)
	if err != nil {
		return nil, err
	}
	s := &surveyor{Copier: c, Inventory: &Inventory{Kinds: kinds}}
	if s.rights, err = rightsOfAccounts(ctx, c.Source, c.Rules); err != nil {
		return nil, err
	}
	if s.definitions, err = definitionPairs(ctx, c); err != nil {
		return nil, err
	}
	for _, k := range kinds.Copied {
		there, err := c.Names(ctx, k)
		if err != nil {
			return nil, err
		}
		if err := s.kind(ctx, k, there); err != nil {
			return nil, err
		}
	}
	for _, k := range kinds.Missing {
		if err := s.kind(ctx, k, nil); err != nil {
			return nil, err
		}
		last := len(s.Counts) - 1
		if last < 0 || s.Counts[last].Resource != k.String() {
			continue
		}
		if s.Counts[last].Copied > 0 {
			s.Missing = append(s.Missing, s.Counts[last])
		}
		s.Counts = s.Counts[:last]
	}
	slices.SortStableFunc(s.LeftOut, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Resource, b.Resource))
	})
	s.sortSecrets()
	return s.Inventory, nil
}

type surveyor struct {
	*objectsync.Copier
	*Inventory

	rights      map[objects.Key]accountRights
	definitions map[string]*definitionPair
	// reader is that of the kind that is looked at; nil for those whose fields all arrive.
	reader *fieldReader
}

func (s *surveyor) kind(ctx context.Context, k objects.ResourceKind, there map[objects.Key]bool) error {
	n := Count{Resource: k.String()}
	left := map[string]*LeftOut{}
	if err := s.readFields(k); err != nil {
		return err
	}
	err := s.Source.Each(ctx, k, func(o *unstructured.Unstructured) error {
		taken, why, err := s.Rules.Take(k, o)
		if k.Is("", "PersistentVolumeClaim") && (why == "" || why == copyrules.IsAClaim) {
			s.Claims = append(s.Claims, objects.RefOf(k, o))
		}
		switch {
		case why != "":
			n.LeftOut++
			s.leave(left, k, o, why)
			return nil
		case err != nil:
			s.Errors = append(s.Errors, objectsync.Unfit(objects.RefOf(k, o), err))
			return nil
		}
		n.Copied++
		n.Refs = append(n.Refs, objects.RefOf(k, o))
		s.note(k, o)
		s.noteFields(k, taken)
		return s.conflict(ctx, k, taken, there)
	})
	if err != nil {
		return fmt.Errorf("looking through %s: %w", k, err)
	}
	for _, l := range left {
		s.LeftOut = append(s.LeftOut, *l)
	}
	if n.Copied > 0 {
		s.noteVersions(k)
	}
	if n.Copied+n.LeftOut > 0 {
		s.Counts = append(s.Counts, n)
	}
	return nil
}

func (s *surveyor) leave(left map[string]*LeftOut, k objects.ResourceKind, o *unstructured.Unstructured, why string) {
	l := left[why]
	if l == nil {
		l = &LeftOut{Resource: k.String(), Why: why}
		left[why] = l
	}
	l.Count++
	if len(l.Examples) < maxExamples {
		l.Examples = append(l.Examples, objects.RefOf(k, o))
	}
	if k.Is("batch", "Job") && why == copyrules.RunsTwice && !finished(o) && len(s.Twice) < maxNotes {
		s.Twice = append(s.Twice, objects.Note{Ref: objects.RefOf(k, o), What: "is running, and is left to the source"})
	}
}

func (s *surveyor) note(k objects.ResourceKind, o *unstructured.Unstructured) {
	if k.Is("", "Secret") {
		s.countSecret(objects.RefOf(k, o), o)
	}
	if what := cloudBound(k, o); what != "" && len(s.Cloud) < maxNotes {
		s.Cloud = append(s.Cloud, objects.Note{Ref: objects.RefOf(k, o), What: what})
	}
	s.noteTwice(k, o)
}

func (s *surveyor) conflict(ctx context.Context, k objects.ResourceKind, taken *unstructured.Unstructured, there map[objects.Key]bool) error {
	ref := objects.RefOf(k, taken)
	if owned, is := there[ref.Key()]; !is || owned || copyrules.Adopts(k, ref.Key()) || len(s.Conflicts) >= maxNotes {
		return nil
	}
	have, err := s.Target.Read(ctx, k, ref.Key())
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if diffs := s.Rules.Differences(k, taken, have); len(diffs) > 0 {
		s.Conflicts = append(s.Conflicts, objects.Note{Ref: ref, What: fmt.Sprintf("is in the target, and differs in %s", diffs[0].Path)})
	}
	return nil
}

func finished(o *unstructured.Unstructured) bool {
	for _, c := range objects.Slice(objects.Inside(o.Object, "status")["conditions"]) {
		m := objects.Map(c)
		if (m["type"] == "Complete" || m["type"] == "Failed") && m["status"] == "True" {
			return true
		}
	}
	return false
}

// cloudBound says what outside a cluster an object is tied to; nothing if it is not.
func cloudBound(k objects.ResourceKind, o *unstructured.Unstructured) string {
	if k.Is("vpcresources.k8s.aws", "SecurityGroupPolicy") {
		return "names security groups"
	}
	if k.Is("", "Service") && objects.Inside(o.Object, "spec")["type"] == "LoadBalancer" {
		if class, ok := objects.Inside(o.Object, "spec")["loadBalancerClass"].(string); ok {
			return "has a load balancer of class " + class
		}
		return "has a load balancer"
	}
	annotations := o.GetAnnotations()
	for _, known := range []struct{ annotation, what string }{
		{"eks.amazonaws.com/role-arn", "acts by the role of AWS "},
		{"iam.gke.io/gcp-service-account", "acts by the service account of Google Cloud "},
		{"azure.workload.identity/client-id", "acts by the identity of Azure "},
		{"iam.amazonaws.com/role", "acts by the role of AWS "},
		{"alb.ingress.kubernetes.io/security-groups", "names the security groups "},
		{"service.beta.kubernetes.io/aws-load-balancer-security-groups", "names the security groups "},
		{"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups", "names the security groups "},
		{"alb.ingress.kubernetes.io/certificate-arn", "names the certificate of AWS "},
		{"service.beta.kubernetes.io/aws-load-balancer-ssl-cert", "names the certificate of AWS "},
		{"service.beta.kubernetes.io/aws-load-balancer-eip-allocations", "names the addresses "},
	} {
		if value, ok := annotations[known.annotation]; ok {
			return known.what + value
		}
	}
	return ""
}

// SecretCount is how many Secrets of a sort would be copied.
type SecretCount struct {
	// Their owner, if it is well known, or else their type.
	What    string
	Count   int
	Example objects.Ref
}

func (s *Inventory) countSecret(ref objects.Ref, o *unstructured.Unstructured) {
	what := sortOfSecret(o)
	i := slices.IndexFunc(s.Secrets, func(c SecretCount) bool { return c.What == what })
	if i < 0 {
		s.Secrets = append(s.Secrets, SecretCount{What: what, Example: ref})
		i = len(s.Secrets) - 1
	}
	s.Secrets[i].Count++
}

func (s *Inventory) sortSecrets() {
	slices.SortFunc(s.Secrets, func(a, b SecretCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What))
	})
}

// sortOfSecret names owners that keep credentials for more than this cluster, else the type.
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

// ownedByVault reports whether the operator of Vault has made it (groups in
// hashicorp/vault-secrets-operator api/v1beta1).
func ownedByVault(o *unstructured.Unstructured) bool {
	for _, owner := range o.GetOwnerReferences() {
		if owner.APIVersion == "secrets.hashicorp.com/v1beta1" {
			return true
		}
	}
	return false
}
