package objectsync

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

const clusterDir = "_cluster"

// Written is what WriteDir did.
type Written struct {
	Files   int
	Secrets int
	Errors  []*ObjectError
}

// WriteDir writes one manifest for each copy, and a kustomization.yaml in the order of the copy.
// The directory must be empty; only its owner can read it.
func (c *Copier) WriteDir(ctx context.Context, dir string, withSecrets bool) (Written, error) {
	w := Written{}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return w, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return w, err
	}
	defer func() { _ = root.Close() }()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return w, err
	}
	if len(entries) > 0 {
		return w, &DirError{Dir: dir}
	}
	if err := root.Chmod(".", 0o700); err != nil {
		return w, err
	}
	kinds, err := FindKinds(ctx, c.Source, c.Target, c.Rules)
	if err != nil {
		return w, err
	}
	var files []string
	all := append(append([]objects.ResourceKind{}, kinds.Copied...), kinds.Missing...)
	copyrules.Order(all)
	for _, k := range all {
		err := c.Source.Each(ctx, k, func(o *unstructured.Unstructured) error {
			file, err := c.writeOne(root, k, o, withSecrets, &w)
			if file != "" {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			return w, fmt.Errorf("writing %s: %w", k, err)
		}
	}
	body, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files,
		"sortOptions": map[string]any{"order": "fifo"},
	})
	if err != nil {
		return w, err
	}
	return w, root.WriteFile("kustomization.yaml", body, 0o600)
}

// DirError says that a directory has something in it, which is not overwritten.
type DirError struct{ Dir string }

func (e *DirError) Error() string { return fmt.Sprintf("directory %s is not empty", e.Dir) }

func (*DirError) Advice() string { return "name one that is empty, or not there yet" }

// writeOne writes the copy of one object, and returns the name of its file; none if it is left out.
func (c *Copier) writeOne(root *os.Root, k objects.ResourceKind, o *unstructured.Unstructured, withSecrets bool, w *Written) (string, error) {
	taken, why, err := c.Rules.Take(k, o)
	if why != "" {
		return "", nil
	}
	if err != nil {
		w.Errors = append(w.Errors, Unfit(objects.RefOf(k, o), err))
		return "", nil
	}
	if k.IsSecret() && !withSecrets {
		w.Secrets++
		return "", nil
	}
	annotations := taken.GetAnnotations()
	delete(annotations, v1alpha1.AnnotationCopied) // who applies the files may change them
	objects.SetOrDrop(taken, "annotations", annotations)
	body, err := yaml.Marshal(taken.Object)
	if err != nil {
		return "", errors.New(objects.RefOf(k, o).String() + " cannot be written as YAML")
	}
	dir := clusterDir
	if o.GetNamespace() != "" {
		dir = o.GetNamespace()
	}
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, fileName(k, o))
	if err := root.WriteFile(file, body, 0o600); err != nil {
		return "", err
	}
	w.Files++
	return file, nil
}

// fileName keeps apart kinds of one name in different groups, and avoids colons.
func fileName(k objects.ResourceKind, o *unstructured.Unstructured) string {
	return k.String() + "-" + url.QueryEscape(o.GetName()) + ".yaml"
}
