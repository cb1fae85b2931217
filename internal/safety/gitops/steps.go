package gitops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// RecordName is the ConfigMap of objects before their suspension.
	RecordName = "gitops"

	recordKey = "objects"

	pageSize = 500
)

// List reads all objects of a kind, none if it is not served. c must discover kinds dynamically.
func List(ctx context.Context, c client.Client, gk schema.GroupKind) ([]*unstructured.Unstructured, error) {
	mapping, err := c.RESTMapper().RESTMapping(gk)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the versions of %s: %w", gk, err)
	}
	var all []*unstructured.Unstructured
	token := ""
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(gk.Kind + "List"))
		err := c.List(ctx, list, client.Limit(pageSize), client.Continue(token))
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) { // its definition has gone
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", mapping.Resource.GroupResource(), err)
		}
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		if token = list.GetContinue(); token == "" {
			return all, nil
		}
	}
}

// Found is what a cluster has of Argo CD and Flux.
type Found struct {
	// Objects are all Applications, Kustomizations and HelmReleases, Sets all ApplicationSets.
	Objects, Sets []*unstructured.Unstructured
}

// Load finds it.
func Load(ctx context.Context, c client.Client) (found Found, err error) {
	for _, r := range resources() {
		objects, err := List(ctx, c, schema.GroupKind{Group: r.group, Kind: r.kind})
		if err != nil {
			return Found{}, err
		}
		found.Objects = append(found.Objects, objects...)
	}
	found.Sets, err = List(ctx, c, schema.GroupKind{Group: argoGroup, Kind: "ApplicationSet"})
	return found, err
}

func (f Found) Reconciling() []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(f.Objects), func(o *unstructured.Unstructured) bool { return !reconciles(o) })
}

// record is nil without an error if nothing is recorded. It is listed, a right of all readers.
func record(ctx context.Context, c client.Client) (*corev1.ConfigMap, SuspendRecord, error) {
	list := &corev1.ConfigMapList{}
	err := c.List(ctx, list, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleGitOps})
	if err != nil {
		return nil, nil, fmt.Errorf("listing what is suspended: %w", err)
	}
	i := slices.IndexFunc(list.Items, func(cm corev1.ConfigMap) bool { return cm.Name == RecordName })
	if i < 0 {
		return nil, nil, nil
	}
	cm, all := &list.Items[i], SuspendRecord{}
	if err := json.Unmarshal([]byte(cm.Data[recordKey]), &all); err != nil {
		return nil, nil, fmt.Errorf("configmap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	return cm, all, nil
}

// Holder is the migration that has suspended something, if one has.
func Holder(ctx context.Context, c client.Client) (migration string, err error) {
	cm, _, err := record(ctx, c)
	if err != nil || cm == nil {
		return "", err
	}
	return cm.Labels[v1alpha1.LabelMigration], nil
}

// Suspend suspends everything that Argo CD and Flux reconcile by themselves.
type Suspend struct {
	Client    client.Client
	Migration string
	Found     Found
}

var (
	_ engine.Undoer    = (*Suspend)(nil)
	_ engine.Previewer = (*Suspend)(nil)
)

func (*Suspend) ID() string    { return "freeze/gitops" }
func (*Suspend) Title() string { return "Suspend what Argo CD and Flux reconcile" }

func (s *Suspend) State(ctx context.Context) (engine.State, error) {
	found, err := Load(ctx, s.Client)
	switch {
	case err != nil:
		return engine.Unknown, err
	case len(found.Reconciling()) > 0:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *Suspend) Do(ctx context.Context) error {
	found, err := Load(ctx, s.Client)
	if err != nil {
		return err
	}
	objects := found.Reconciling()
	if err := s.note(ctx, objects); err != nil {
		return err
	}
	var failed []error
	for _, o := range objects {
		failed = append(failed, write(ctx, s.Client, o, Suspended(o, s.Migration)))
	}
	return errors.Join(failed...)
}

func (s *Suspend) note(ctx context.Context, objects []*unstructured.Unstructured) error {
	cm, have, err := record(ctx, s.Client)
	if err != nil {
		return err
	}
	want, err := have.With(objects)
	if err != nil {
		return err
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("recording what is suspended: %w", err)
	}
	labels := map[string]string{v1alpha1.LabelMigration: s.Migration, v1alpha1.LabelRole: v1alpha1.RoleGitOps}
	if cm == nil {
		err = s.Client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: RecordName, Labels: labels},
			Data:       map[string]string{recordKey: string(body)},
		}, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		cm.Labels, cm.Data = labels, map[string]string{recordKey: string(body)}
		err = s.Client.Update(ctx, cm, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("recording what is suspended in configmap %s/%s: %w", v1alpha1.SystemNamespace, RecordName, err)
	}
	return nil
}

func write(ctx context.Context, c client.Client, from, to *unstructured.Unstructured) error {
	if to == nil {
		return nil
	}
	patch := client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{})
	err := c.Patch(ctx, to, patch, client.FieldOwner(v1alpha1.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("%s: %w", Title(from), err)
	}
	return nil
}

func (s *Suspend) Verify(ctx context.Context) error {
	found, err := Load(ctx, s.Client)
	if err != nil {
		return err
	}
	if left := found.Reconciling(); len(left) > 0 {
		return engine.NotYet("%s reconciles by itself", Title(left[0]))
	}
	return nil
}

func (s *Suspend) Preview() ([]engine.Change, error) {
	objects := s.Found.Reconciling()
	if len(objects) == 0 {
		return nil, nil
	}
	all := []engine.Change{{Verb: "create", Object: "ConfigMap " + v1alpha1.SystemNamespace + "/" + RecordName}}
	for _, o := range objects {
		body, err := client.MergeFrom(o).Data(Suspended(o, s.Migration))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Title(o), err)
		}
		all = append(all, engine.Change{Verb: "patch", Object: Title(o), Body: json.RawMessage(body)})
	}
	return all, nil
}

func (s *Suspend) Undo() engine.Step { return &Resume{Client: s.Client, Migration: s.Migration} }

// Resume restores what was suspended, except what its owner has changed.
type Resume struct {
	Client client.Client
	// Migration is the only one whose objects are resumed; empty for whichever has suspended some.
	Migration string

	left []string
}

var (
	_ engine.Previewer = (*Resume)(nil)
	_ engine.Noter     = (*Resume)(nil)
)

func (*Resume) ID() string    { return "tidy/gitops" }
func (*Resume) Title() string { return "Resume what Argo CD and Flux reconciled" }

// Note implements engine.Noter: what was left as it is.
func (s *Resume) Note() string { return strings.Join(s.left, "; ") }

func (s *Resume) recorded(ctx context.Context) (*corev1.ConfigMap, SuspendRecord, error) {
	cm, all, err := record(ctx, s.Client)
	if err != nil || cm == nil || s.Migration != "" && cm.Labels[v1alpha1.LabelMigration] != s.Migration {
		return nil, nil, err
	}
	return cm, all, nil
}

func (s *Resume) State(ctx context.Context) (engine.State, error) {
	cm, _, err := s.recorded(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case cm != nil:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *Resume) Do(ctx context.Context) error {
	cm, all, err := s.recorded(ctx)
	if err != nil || cm == nil {
		return err
	}
	var failed []error
	for _, e := range all {
		failed = append(failed, s.resume(ctx, e))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return client.IgnoreNotFound(s.Client.Delete(ctx, cm, client.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion}))
}

func (s *Resume) resume(ctx context.Context, e SuspendedObject) error {
	mapping, err := s.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: e.Group, Kind: e.Kind})
	if meta.IsNoMatchError(err) { // its definition has gone, and it with it
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e, err)
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(mapping.GroupVersionKind)
	err = s.Client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, o)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e, err)
	}
	back, why, err := e.Resumed(o)
	if err != nil {
		return err
	}
	if text := fmt.Sprintf("%s is left as it is: %s", e, why); why != "" && !slices.Contains(s.left, text) {
		s.left = append(s.left, text)
	}
	return write(ctx, s.Client, o, back)
}

func (s *Resume) Verify(ctx context.Context) error {
	cm, _, err := s.recorded(ctx)
	if err == nil && cm != nil {
		return engine.NotYet("configmap %s/%s still has what is suspended", cm.Namespace, cm.Name)
	}
	return err
}

func (*Resume) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "patch", Object: "Applications, Kustomizations and HelmReleases that were suspended, as they were"},
		{Verb: "delete", Object: "ConfigMap " + v1alpha1.SystemNamespace + "/" + RecordName},
	}, nil
}
