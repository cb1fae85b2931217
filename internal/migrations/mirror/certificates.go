package mirror

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// issuance is how long an issuer may take: one that asks a public CA waits for challenges.
const issuance = 15 * time.Minute

// certified is an object by which certificates are issued: one of cert-manager's Certificates, or an Ingress that its annotations
// have one made for (https://cert-manager.io/docs/usage/ingress/).
type certified struct {
	gvk schema.GroupVersionKind
	key client.ObjectKey
	// secrets hold what is issued, each with the names that it must be good for in the end.
	secrets map[string][]string
	// add are the aliases that it lacks, added those that an earlier run has added.
	add, added []string
}

func certificateKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
}

func ingressKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"}
}

// certifiedBy decides what an object has to do with aliases; nil, if nothing.
func certifiedBy(o *unstructured.Unstructured, aliases []v1alpha1.HostAlias) *certified {
	c := &certified{gvk: o.GroupVersionKind(), key: client.ObjectKeyFromObject(o), secrets: map[string][]string{}}
	for _, list := range nameLists(o) {
		for _, a := range aliases {
			if !slices.Contains(list.names, a.Name) || covered(list.names, a.Alias) && !slices.Contains(list.names, a.Alias) {
				continue
			}
			c.secrets[list.secret] = append(c.secrets[list.secret], a.Alias)
			if !slices.Contains(list.names, a.Alias) {
				c.add = append(c.add, a.Alias)
			}
		}
	}
	c.added = addedNames(o)
	if len(c.secrets) == 0 && len(c.added) == 0 {
		return nil
	}
	return c
}

// covered reports whether a wildcard among names stands for host.
func covered(names []string, host string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return slices.Contains(names, "*."+parent) || slices.Contains(names, host)
}

// nameList is the names of one certificate, and the Secret that it is kept in.
type nameList struct {
	names  []string
	secret string
}

func ownedByIngress(ref metav1.OwnerReference) bool { return ref.Kind == ingressKind().Kind }

// nameLists are those that an object asks for.
func nameLists(o *unstructured.Unstructured) []nameList {
	if o.GetKind() == certificateKind().Kind {
		if slices.ContainsFunc(o.GetOwnerReferences(), ownedByIngress) {
			return nil // its Ingress says what is in it
		}
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
		secret, _, _ := unstructured.NestedString(o.Object, "spec", "secretName")
		return []nameList{{names, secret}}
	}
	if !issued(o) {
		return nil
	}
	var lists []nameList
	tls, _, _ := unstructured.NestedSlice(o.Object, "spec", "tls")
	for _, entry := range tls {
		if m, ok := entry.(map[string]any); ok {
			names, _, _ := unstructured.NestedStringSlice(m, "hosts")
			secret, _, _ := unstructured.NestedString(m, "secretName")
			lists = append(lists, nameList{names, secret})
		}
	}
	return lists
}

// issued reports whether cert-manager issues the certificates of an Ingress.
func issued(o *unstructured.Unstructured) bool {
	for _, a := range []string{"cert-manager.io/issuer", "cert-manager.io/cluster-issuer"} {
		if o.GetAnnotations()[a] != "" {
			return true
		}
	}
	return false
}

// withAliases adds names beside those that they are aliases of, and reports whether that changed anything.
func withAliases(o *unstructured.Unstructured, aliases []v1alpha1.HostAlias) bool {
	changed := false
	add := func(names []string) []string {
		for _, a := range aliases {
			if slices.Contains(names, a.Name) && !covered(names, a.Alias) {
				names, changed = append(names, a.Alias), true
			}
		}
		return names
	}
	eachNames(o, add)
	return changed
}

// withoutNames takes names out.
func withoutNames(o *unstructured.Unstructured, gone []string) {
	eachNames(o, func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(gone, n) })
	})
}

// eachNames changes every list of names that certificates are made of.
func eachNames(o *unstructured.Unstructured, change func([]string) []string) {
	if o.GetKind() == certificateKind().Kind {
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
		_ = unstructured.SetNestedStringSlice(o.Object, change(names), "spec", "dnsNames") // it was one
		return
	}
	tls, _, _ := unstructured.NestedSlice(o.Object, "spec", "tls")
	for _, entry := range tls {
		if m, ok := entry.(map[string]any); ok {
			names, _, _ := unstructured.NestedStringSlice(m, "hosts")
			_ = unstructured.SetNestedStringSlice(m, change(names), "hosts")
		}
	}
	if len(tls) > 0 {
		_ = unstructured.SetNestedSlice(o.Object, tls, "spec", "tls")
	}
}

// addedNames are those that replumb has added to an object.
func addedNames(o *unstructured.Unstructured) []string {
	var names []string
	if text := o.GetAnnotations()[v1alpha1.AnnotationAddedNames]; text != "" {
		_ = json.Unmarshal([]byte(text), &names) // whoever wrote something else has taken it over
	}
	return names
}

// certificateStep has a certificate be good for aliases too, and waits until it is.
type certificateStep struct {
	client  client.Client
	of      certified
	aliases []v1alpha1.HostAlias
}

var (
	_ engine.Undoer    = (*certificateStep)(nil)
	_ engine.Previewer = (*certificateStep)(nil)
	_ engine.Timed     = (*certificateStep)(nil)
)

func (c *certified) name() string { return c.gvk.Kind + " " + c.key.String() }

func (s *certificateStep) ID() string {
	return "certificates/" + strings.ToLower(s.of.gvk.Kind) + "/" + s.of.key.String()
}

func (s *certificateStep) Title() string {
	return "Add the mirror's names to the certificate of " + s.of.name()
}

// Deadline implements engine.Timed.
func (*certificateStep) Deadline() time.Duration { return issuance }

func (s *certificateStep) get(ctx context.Context) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(s.of.gvk)
	if err := s.client.Get(ctx, s.of.key, o); err != nil {
		return nil, fmt.Errorf("%s: %w", s.of.name(), err)
	}
	return o, nil
}

func (s *certificateStep) State(ctx context.Context) (engine.State, error) {
	switch err := s.Verify(ctx); {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	default:
		return engine.Unknown, err
	}
}

// Do writes the names, and what they were, in one patch.
func (s *certificateStep) Do(ctx context.Context) error {
	o, err := s.get(ctx)
	if err != nil {
		return err
	}
	was := o.DeepCopy()
	before := slices.Concat(namesOf(was))
	if !withAliases(o, s.aliases) {
		return nil
	}
	added := addedNames(was)
	for _, n := range namesOf(o) {
		if !slices.Contains(before, n) && !slices.Contains(added, n) {
			added = append(added, n)
		}
	}
	text, err := json.Marshal(added)
	if err != nil {
		return err
	}
	annotate(o, v1alpha1.AnnotationAddedNames, string(text))
	return s.client.Patch(
		ctx,
		o,
		client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager),
	)
}

func namesOf(o *unstructured.Unstructured) []string {
	var all []string
	for _, l := range nameLists(o) {
		all = append(all, l.names...)
	}
	return all
}

// annotate sets an annotation; an empty text takes it away.
func annotate(o *unstructured.Unstructured, key, text string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = text
	if text == "" {
		delete(all, key)
	}
	o.SetAnnotations(all)
}

// Verify looks at what is served: the certificates themselves have to have the names.
func (s *certificateStep) Verify(ctx context.Context) error {
	o, err := s.get(ctx)
	if err != nil {
		return err
	}
	have := certifiedBy(o, s.aliases)
	if have == nil {
		return nil
	}
	if len(have.add) > 0 {
		return engine.NotYet("%s does not ask for %s", have.name(), strings.Join(have.add, ", "))
	}
	for secret, names := range have.secrets {
		if err := good(ctx, s.client, client.ObjectKey{Namespace: o.GetNamespace(), Name: secret}, names); err != nil {
			return issuerSays(o, err)
		}
	}
	return nil
}

// issuerSays adds why a Certificate is not ready, if it says so.
func issuerSays(o *unstructured.Unstructured, err error) error {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		m, ok := c.(map[string]any)
		if ok && m["type"] == "Ready" && m["status"] != "True" {
			return engine.NotYet("%w: %v", err, m["message"])
		}
	}
	return err
}

// good fails unless the certificate in a Secret is good for all names.
func good(ctx context.Context, c client.Client, key client.ObjectKey, names []string) error {
	secret := &corev1.Secret{}
	if err := c.Get(ctx, key, secret); apierrors.IsNotFound(err) {
		return engine.NotYet("secret %s does not exist", key)
	} else if err != nil {
		return fmt.Errorf("secret %s: %w", key, err)
	}
	leaf, err := leafOf(secret)
	if err != nil {
		return engine.NotYet("secret %s: %w", key, err)
	}
	for _, n := range names {
		if err := leaf.VerifyHostname(strings.Replace(n, "*", "any", 1)); err != nil {
			return engine.NotYet("the certificate in secret %s is not good for %s", key, n)
		}
	}
	return nil
}

// leafOf is the first certificate in a Secret.
func leafOf(secret *corev1.Secret) (*x509.Certificate, error) {
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, errors.New("it has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Preview implements engine.Previewer.
func (s *certificateStep) Preview() ([]engine.Change, error) {
	if len(s.of.add) == 0 {
		return nil, nil
	}
	return []engine.Change{{Verb: "patch", Object: s.of.name(), Body: map[string]any{"add": s.of.add}}}, nil
}

// Undo implements engine.Undoer.
func (s *certificateStep) Undo() engine.Step {
	return &uncertifyStep{certificateStep{client: s.client, of: s.of}}
}

// uncertifyStep takes names out of a certificate that replumb had added.
type uncertifyStep struct{ certificateStep }

var _ engine.Previewer = (*uncertifyStep)(nil)

func (s *uncertifyStep) ID() string { return "back/" + s.certificateStep.ID() }
func (s *uncertifyStep) Title() string {
	return "Take the mirror's names out of the certificate of " + s.of.name()
}

func (s *uncertifyStep) State(ctx context.Context) (engine.State, error) {
	o, err := s.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return engine.Done, nil
	case err != nil:
		return engine.Unknown, err
	case o.GetAnnotations()[v1alpha1.AnnotationAddedNames] == "":
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *uncertifyStep) Do(ctx context.Context) error {
	o, err := s.get(ctx)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	was := o.DeepCopy()
	withoutNames(o, addedNames(o))
	annotate(o, v1alpha1.AnnotationAddedNames, "")
	return s.client.Patch(
		ctx,
		o,
		client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager),
	)
}

func (s *uncertifyStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("%s still has %s", s.of.name(), v1alpha1.AnnotationAddedNames)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *uncertifyStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: s.of.name(), Body: map[string]any{"remove": s.of.added}}}, nil
}
