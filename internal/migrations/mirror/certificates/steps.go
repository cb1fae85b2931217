package certificates

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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// issuance is how long an issuer may take: one that asks a public CA waits for challenges.
const issuance = 15 * time.Minute

func (c *Certified) name() string { return c.gvk.Kind + " " + c.key.String() }

func (c *Certified) id() string {
	return "certificates/" + strings.ToLower(c.gvk.Kind) + "/" + c.key.String()
}

func (c *Certified) get(ctx context.Context, from client.Reader) (*unstructured.Unstructured, error) {
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

// Extend adds aliases to what is asked for, and waits until the certificates have them.
func Extend(c client.Client, of Certified, aliases []v1alpha1.HostAlias) engine.Step {
	return &engine.Write{
		Name: of.id(), About: "Add the mirror's names to the certificate of " + of.name(), Limit: issuance,
		Holds:   func(ctx context.Context) error { return of.hasAliases(ctx, c, aliases) },
		Write:   func(ctx context.Context) error { return of.addAliases(ctx, c, aliases) },
		Reverse: func() engine.Step { return Restore(c, of) },
		Changes: func() ([]engine.Change, error) {
			if len(of.Add) == 0 {
				return nil, nil
			}
			return []engine.Change{{Verb: "patch", Object: of.name(), Body: map[string]any{"add": of.Add}}}, nil
		},
	}
}

// addAliases writes the names, and which of them are new, in one patch.
func (c *Certified) addAliases(ctx context.Context, to client.Client, aliases []v1alpha1.HostAlias) error {
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

// hasAliases looks at what is served: the certificates themselves have to have the names.
func (c *Certified) hasAliases(ctx context.Context, from client.Client, aliases []v1alpha1.HostAlias) error {
	o, err := c.get(ctx, from)
	if err != nil {
		return err
	}
	have := Of(o, aliases)
	if have == nil {
		return nil
	}
	if len(have.Add) > 0 {
		return engine.NotYet("%s does not ask for %s", have.name(), strings.Join(have.Add, ", "))
	}
	for secret, names := range have.Secrets {
		if err := Good(ctx, from, client.ObjectKey{Namespace: o.GetNamespace(), Name: secret}, names); err != nil {
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

// Good fails unless the certificate in a Secret is good for all names.
func Good(ctx context.Context, c client.Client, key client.ObjectKey, names []string) error {
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

// Restore removes all names that were added.
func Restore(c client.Client, of Certified) engine.Step {
	return removeNames(c, of, "back/"+of.id(), "Remove the mirror's names from the certificate of "+of.name(), nil)
}

// Withdraw removes names that an earlier run added, and that are no aliases any more.
func Withdraw(c client.Client, of Certified) engine.Step {
	kept := slices.DeleteFunc(slices.Clone(of.Added), func(n string) bool { return slices.Contains(of.Stale, n) })
	return removeNames(c, of, "withdraw/"+of.id(), "Remove names that are no aliases any more from the certificate of "+of.name(), kept)
}

// removeNames removes the names that were added, but for those that are kept.
func removeNames(c client.Client, of Certified, id, about string, kept []string) engine.Step {
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
			removed := slices.DeleteFunc(slices.Clone(of.Added), func(n string) bool { return slices.Contains(kept, n) })
			return []engine.Change{{Verb: "patch", Object: of.name(), Body: map[string]any{"remove": removed}}}, nil
		},
	}
}
