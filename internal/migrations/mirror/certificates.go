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

// certified is an object by which certificates are issued: a Certificate of cert-manager, or an
// annotated Ingress (https://cert-manager.io/docs/usage/ingress/).
type certified struct {
	gvk     schema.GroupVersionKind
	key     client.ObjectKey
	secrets map[string][]string
	// add are the aliases that it lacks, added those that an earlier run has added, and stale those
	// of added that are no aliases any more.
	add, added, stale []string
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
	c.stale = slices.DeleteFunc(slices.Clone(c.added), func(n string) bool {
		return slices.ContainsFunc(aliases, func(a v1alpha1.HostAlias) bool { return a.Alias == n })
	})
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

type nameList struct {
	names  []string
	secret string
}

func ownedByIngress(ref metav1.OwnerReference) bool { return ref.Kind == ingressKind().Kind }

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

// withAliases adds aliases beside their names, and reports whether that changed anything.
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

func addedNames(o *unstructured.Unstructured) []string {
	var names []string
	if text := o.GetAnnotations()[v1alpha1.AnnotationAddedNames]; text != "" {
		_ = json.Unmarshal([]byte(text), &names) // other content means that someone has taken it over
	}
	return names
}

func (c *certified) name() string { return c.gvk.Kind + " " + c.key.String() }

func (c *certified) id() string {
	return "certificates/" + strings.ToLower(c.gvk.Kind) + "/" + c.key.String()
}

func (c *certified) get(ctx context.Context, from client.Reader) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(c.gvk)
	if err := from.Get(ctx, c.key, o); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name(), err)
	}
	return o, nil
}

func update(ctx context.Context, c client.Client, was, o *unstructured.Unstructured) error {
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	return c.Patch(ctx, o, patch, client.FieldOwner(v1alpha1.FieldManager))
}

func extendCertificate(c client.Client, of certified, aliases []v1alpha1.HostAlias) engine.Step {
	return &engine.Write{
		Name: of.id(), About: "Add the mirror's names to the certificate of " + of.name(), Limit: issuance,
		Holds:   func(ctx context.Context) error { return of.hasAliases(ctx, c, aliases) },
		Write:   func(ctx context.Context) error { return of.addAliases(ctx, c, aliases) },
		Reverse: func() engine.Step { return restoreCertificate(c, of) },
		Changes: func() ([]engine.Change, error) {
			if len(of.add) == 0 {
				return nil, nil
			}
			return []engine.Change{{Verb: "patch", Object: of.name(), Body: map[string]any{"add": of.add}}}, nil
		},
	}
}

// addAliases writes the names, and which of them are new, in one patch.
func (c *certified) addAliases(ctx context.Context, to client.Client, aliases []v1alpha1.HostAlias) error {
	o, err := c.get(ctx, to)
	if err != nil {
		return err
	}
	was := o.DeepCopy()
	before := namesOf(was)
	if !withAliases(o, aliases) {
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
	return update(ctx, to, was, o)
}

func namesOf(o *unstructured.Unstructured) []string {
	var all []string
	for _, l := range nameLists(o) {
		all = append(all, l.names...)
	}
	return all
}

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

// hasAliases looks at what is served: the certificates themselves have to have the names.
func (c *certified) hasAliases(ctx context.Context, from client.Client, aliases []v1alpha1.HostAlias) error {
	o, err := c.get(ctx, from)
	if err != nil {
		return err
	}
	have := certifiedBy(o, aliases)
	if have == nil {
		return nil
	}
	if len(have.add) > 0 {
		return engine.NotYet("%s does not ask for %s", have.name(), strings.Join(have.add, ", "))
	}
	for secret, names := range have.secrets {
		if err := good(ctx, from, client.ObjectKey{Namespace: o.GetNamespace(), Name: secret}, names); err != nil {
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

func leafOf(secret *corev1.Secret) (*x509.Certificate, error) {
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, errors.New("it has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

func restoreCertificate(c client.Client, of certified) engine.Step {
	return removeNames(c, of, "back/"+of.id(), "Remove the mirror's names from the certificate of "+of.name(), nil)
}

// withdrawAliases removes names that an earlier run added, and that are no aliases any more.
func withdrawAliases(c client.Client, of certified) engine.Step {
	kept := slices.DeleteFunc(slices.Clone(of.added), func(n string) bool { return slices.Contains(of.stale, n) })
	return removeNames(c, of, "withdraw/"+of.id(), "Remove names that are no aliases any more from the certificate of "+of.name(), kept)
}

// removeNames removes the names that were added, but for those that are kept.
func removeNames(c client.Client, of certified, id, about string, kept []string) engine.Step {
	gone := func(o *unstructured.Unstructured) []string {
		return slices.DeleteFunc(addedNames(o), func(n string) bool { return slices.Contains(kept, n) })
	}
	return &engine.Observed[*unstructured.Unstructured]{
		Name: id, About: about,
		Look: func(ctx context.Context) (engine.State, *unstructured.Unstructured, error) {
			o, err := of.get(ctx, c)
			switch {
			case apierrors.IsNotFound(err):
				return engine.Done, nil, nil
			case err != nil:
				return engine.Unknown, nil, err
			case o.GetAnnotations()[v1alpha1.AnnotationAddedNames] == "", len(kept) > 0 && len(gone(o)) == 0:
				return engine.Done, nil, nil
			}
			return engine.Pending, o, nil
		},
		Write: func(ctx context.Context, o *unstructured.Unstructured) error {
			was := o.DeepCopy()
			withoutNames(o, gone(o))
			text := ""
			if len(kept) > 0 {
				body, err := json.Marshal(kept)
				if err != nil {
					return err
				}
				text = string(body)
			}
			annotate(o, v1alpha1.AnnotationAddedNames, text)
			return client.IgnoreNotFound(update(ctx, c, was, o))
		},
		Changes: func() ([]engine.Change, error) {
			removed := slices.DeleteFunc(slices.Clone(of.added), func(n string) bool { return slices.Contains(kept, n) })
			return []engine.Change{{Verb: "patch", Object: of.name(), Body: map[string]any{"remove": removed}}}, nil
		},
	}
}
