// Package backup stores manifests in the cluster before their first change, and exports them.
package backup

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

// Key is one object. An object that was deleted and recreated under its name is another one.
type Key struct {
	Group, Kind, Namespace, Name string
	UID                          types.UID
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// KeyOf is the key of a read object, with its kind from the scheme if need be.
func KeyOf(c client.Client, o client.Object) (Key, error) {
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return Key{}, fmt.Errorf("the kind of %T %s: %w", o, client.ObjectKeyFromObject(o), err)
	}
	return Key{Group: gvk.Group, Kind: gvk.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}, nil
}

// Objects is what is stored.
type Objects map[Key]struct{}

func (s Objects) Has(k Key) bool {
	_, ok := s[k]
	return ok
}

// ManifestError says which object could not be stored.
type ManifestError struct {
	Object Key
	Err    error
}

func (e *ManifestError) Error() string { return fmt.Sprintf("backing up %s: %v", e.Object, e.Err) }
func (e *ManifestError) Unwrap() error { return e.Err }

// Store stores the manifests that are not stored yet: a resumed run never overwrites an original.
// Objects share ConfigMaps, and Secrets share Secrets of their own; all belong to the Migration,
// which must exist. A ManifestError names what cannot be stored.
//
// It reads all that is stored, so store the objects of a phase at once.
func Store(ctx context.Context, c client.Client, m *v1alpha1.Migration, objects []client.Object) error {
	owner := &v1alpha1.Migration{}
	if err := c.Get(ctx, client.ObjectKey{Name: m.Name}, owner); err != nil {
		return fmt.Errorf("migration %s: %w", m.Name, err)
	}
	pieces, err := load(ctx, c, m.Name)
	if err != nil {
		return err
	}
	have, next, sums := Objects{}, 0, []string{}
	for _, piece := range pieces {
		next, sums = max(next, piece.sequence+1), append(sums, piece.sum)
		if err := piece.addTo(have); err != nil {
			return err
		}
	}
	lines, err := missing(c, have, objects)
	if err != nil {
		return err
	}
	var chunks []client.Object
	for _, secret := range []bool{false, true} {
		packed, err := pack(lines[secret], chunklog.Size)
		if err != nil {
			return err
		}
		for _, p := range packed {
			chunks, sums = append(chunks, p.build(owner, next, secret)), append(sums, chunklog.Sum(p.payload))
			next++
		}
	}
	// Digests come first: a kill in between leaves one too many, and no backup that seems forged.
	if err := note(ctx, c, m.Name, sums); err != nil {
		return err
	}
	for _, o := range chunks {
		if err := create(ctx, c, o); err != nil {
			return err
		}
	}
	return nil
}

func note(ctx context.Context, c client.Client, migration string, sums []string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := c.Get(ctx, client.ObjectKey{Name: migration}, m); err != nil {
			return fmt.Errorf("migration %s: %w", migration, err)
		}
		before := len(m.Status.Backups)
		for _, sum := range sums {
			if !slices.Contains(m.Status.Backups, sum) {
				m.Status.Backups = append(m.Status.Backups, sum)
			}
		}
		if len(m.Status.Backups) == before {
			return nil
		}
		return c.Status().Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// noted are the digests of a Migration's backups. Without any, as for a Migration that is gone or
// older, backups are believed.
func noted(ctx context.Context, c client.Client, migration string) ([]string, error) {
	m := &v1alpha1.Migration{}
	if err := c.Get(ctx, client.ObjectKey{Name: migration}, m); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("migration %s: %w", migration, err)
	}
	return m.Status.Backups, nil
}

func create(ctx context.Context, c client.Client, o client.Object) error {
	err := c.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	// The name is made from the content, so what exists is the same.
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("backup %s: %w", client.ObjectKeyFromObject(o), err)
	}
	return nil
}

func missing(c client.Client, have Objects, objects []client.Object) (map[bool][]line, error) {
	lines := map[bool][]line{}
	seen := Objects{}
	for _, o := range objects {
		key, err := KeyOf(c, o)
		if err != nil {
			return nil, err
		}
		if have.Has(key) || seen.Has(key) {
			continue
		}
		seen[key] = struct{}{}
		l, err := manifest(c, key, o)
		if err != nil {
			return nil, &ManifestError{Object: key, Err: err}
		}
		secret := key.Group == corev1.GroupName && key.Kind == "Secret"
		lines[secret] = append(lines[secret], l)
	}
	return lines, nil
}

// Stored tells what is stored of a migration. Damage is an error.
func Stored(ctx context.Context, c client.Client, migration string) (Objects, error) {
	pieces, err := load(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	have := Objects{}
	for _, piece := range pieces {
		if err := piece.addTo(have); err != nil {
			return nil, err
		}
	}
	return have, nil
}

// exist reports whether anything is stored of a migration, sound or not.
func exist(ctx context.Context, c client.Client, migration string) (bool, error) {
	for _, kind := range []string{"ConfigMap", "Secret"} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := c.List(ctx, list, selected(migration)...); err != nil && !noSecrets(kind == "Secret", err) {
			return false, fmt.Errorf("listing the backups of migration %s: %w", migration, err)
		}
		if len(list.Items) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Read gives every object that is stored, in the order in which they were, each once.
func Read(ctx context.Context, c client.Client, migration string) ([]unstructured.Unstructured, error) {
	pieces, err := load(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	seen := Objects{}
	var all []unstructured.Unstructured
	for _, piece := range pieces {
		err := piece.each(func(o *unstructured.Unstructured) {
			if k := keyOf(o); !seen.Has(k) {
				seen[k] = struct{}{}
				all = append(all, *o)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func keyOf(o *unstructured.Unstructured) Key {
	gvk := o.GroupVersionKind()
	return Key{Group: gvk.Group, Kind: gvk.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

func selected(migration string) []client.ListOption {
	return []client.ListOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleBackup},
	}
}

// load reads all chunks in order. A foreign one is an error: ignoring it could hide a replacement.
func load(ctx context.Context, c client.Client, migration string) ([]*piece, error) {
	sums, err := noted(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	maps, secrets := &corev1.ConfigMapList{}, &corev1.SecretList{}
	for _, list := range []client.ObjectList{maps, secrets} {
		if err := c.List(ctx, list, selected(migration)...); err != nil && !noSecrets(list == client.ObjectList(secrets), err) {
			return nil, fmt.Errorf("listing the backups of migration %s: %w", migration, err)
		}
	}
	var all []*piece
	for i := range maps.Items {
		all = append(all, pieceOf("ConfigMap", &maps.Items[i], maps.Items[i].BinaryData[dataObjects]))
	}
	for i := range secrets.Items {
		all = append(all, pieceOf("Secret", &secrets.Items[i], secrets.Items[i].Data[dataObjects]))
	}
	for _, p := range all {
		if len(sums) > 0 && !slices.Contains(sums, p.sum) {
			return nil, &CorruptError{Object: p.name, Err: ErrForeign}
		}
	}
	slices.SortStableFunc(all, func(a, b *piece) int { return a.sequence - b.sequence })
	return all, nil
}

// noSecrets reports a missing right to list Secrets: users who change none need no such right, and
// have stored none.
func noSecrets(secrets bool, err error) bool { return secrets && apierrors.IsForbidden(err) }

func pieceOf(kind string, o client.Object, payload []byte) *piece {
	return &piece{
		name: fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName()), sequence: chunklog.Sequence(o),
		sum: o.GetAnnotations()[chunklog.AnnotationSum], payload: payload,
	}
}

// Remove deletes everything that is stored of a migration.
func Remove(ctx context.Context, c client.Client, migration string) error {
	for _, kind := range []string{"ConfigMap", "Secret"} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := c.List(ctx, list, selected(migration)...); err != nil && !noSecrets(kind == "Secret", err) {
			return fmt.Errorf("listing the backups of migration %s: %w", migration, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
			if err := client.IgnoreNotFound(c.Delete(ctx, o, client.Preconditions{UID: &o.UID})); err != nil {
				return fmt.Errorf("backup %s %s/%s: %w", kind, o.Namespace, o.Name, err)
			}
		}
	}
	return nil
}
