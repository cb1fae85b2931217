package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// NoneError says that a migration has no backups.
type NoneError struct {
	Migration string
}

func (e *NoneError) Error() string {
	return fmt.Sprintf("there are no backups of migration %s", e.Migration)
}

func (*NoneError) Advice() string {
	return "backups are made by apply and removed at the end of a migration, unless spec.backups is Keep"
}

// ExistsError says which file is in the way.
type ExistsError struct {
	Path string
}

func (e *ExistsError) Error() string { return fmt.Sprintf("%s exists and is not overwritten", e.Path) }

func (*ExistsError) Advice() string {
	return "nothing was written; name a directory that is empty or not there"
}

// Export writes stored manifests into dir for kubectl apply, one file for each object, and returns
// the paths. Files are private to the owner, since some may be Secrets. An ExistsError means that
// nothing was written; of a recreated object the latest is.
func Export(ctx context.Context, c client.Client, migration, dir string) ([]string, error) {
	all, err := Read(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, &NoneError{Migration: migration}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("exporting: %w", err)
	}
	// A Root because names come from the cluster: none may lead out of the directory.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("exporting: %w", err)
	}
	defer func() { _ = root.Close() }()
	files := nameFiles(latest(all))
	for _, f := range files {
		if _, err := root.Lstat(f.name); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				err = &ExistsError{Path: filepath.Join(dir, f.name)}
			}
			return nil, fmt.Errorf("exporting: %w", err)
		}
	}
	var written []string
	for _, f := range files {
		if err := writeFile(root, f); err != nil {
			return written, fmt.Errorf("exporting %s: %w", keyOf(f.object), err)
		}
		written = append(written, filepath.Join(dir, f.name))
	}
	return written, nil
}

func latest(all []unstructured.Unstructured) []*unstructured.Unstructured {
	byName := map[Key]*unstructured.Unstructured{}
	for i := range all {
		k := keyOf(&all[i])
		k.UID = ""
		byName[k] = &all[i]
	}
	var out []*unstructured.Unstructured
	for _, o := range byName {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int {
		ka, kb := keyOf(a), keyOf(b)
		return cmp.Or(cmp.Compare(ka.Kind, kb.Kind), cmp.Compare(ka.Namespace, kb.Namespace),
			cmp.Compare(ka.Name, kb.Name), cmp.Compare(ka.Group, kb.Group))
	})
	return out
}

type file struct {
	name   string
	object *unstructured.Unstructured
}

func nameFiles(objects []*unstructured.Unstructured) []file {
	taken := map[string]bool{}
	var out []file
	for _, o := range objects {
		k := keyOf(o)
		parts := []string{strings.ToLower(k.Kind), k.Namespace, k.Name}
		base := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "-")
		base = strings.ReplaceAll(base, string(filepath.Separator), "_")
		name := base + ".yaml"
		for i := 2; taken[name]; i++ {
			name = fmt.Sprintf("%s-%d.yaml", base, i)
		}
		taken[name] = true
		out = append(out, file{name: name, object: o})
	}
	return out
}

func writeFile(root *os.Root, f file) error {
	body, err := yaml.Marshal(applicable(f.object).Object)
	if err != nil {
		return err
	}
	to, err := root.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = to.Write(body)
	return errors.Join(err, to.Close())
}

// applicable drops what belongs to the old object. Owner references hold UIDs, by which the garbage
// collector would delete it. Addresses stay: they are what a backup is for.
func applicable(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	unstructured.RemoveNestedField(o.Object, "status")
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences", "selfLink",
		"deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	return o
}
