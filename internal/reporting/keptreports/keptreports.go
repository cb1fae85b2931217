// Package keptreports keeps reports beyond their Migrations, in ConfigMaps of which the oldest
// gives way.
package keptreports

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

const (
	// most reports take 14 MiB of etcd's usual 2 GiB, a ConfigMap each.
	most = 20

	dataReport = "report.json.gz"
	prefix     = "replumb-report-"
	// annotationMade is the report's time, annotationMigration its Migration's UID.
	annotationMade      = "replumb.dev/made"
	annotationMigration = "replumb.dev/migration-uid"
)

// Store is the archive of a cluster.
type Store struct {
	client client.Client
	size   int
	most   int
}

// NewStore is the archive of a cluster.
func NewStore(c client.Client) *Store { return &Store{client: c, size: chunklog.Size, most: most} }

const patience = 15 * time.Second

// Keep saves the report at the end of a run, even a cancelled one, if there is a Migration and the
// right to write.
func Keep(ctx context.Context, c *cluster.Cluster, name string, words migration.Report) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	m := &v1alpha1.Migration{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, m); err != nil {
		return nil // that it is not there, or cannot be read, is what the run ended with
	}
	in, err := htmlreport.Collect(ctx, c, m, words)
	if err == nil {
		err = NewStore(c).Save(ctx, m, htmlreport.Build(in))
	}
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NotKeptError says that there is no report of a migration.
type NotKeptError struct {
	Migration string
	// Have are the migrations of which there is one.
	Have []string
}

func (e *NotKeptError) Error() string {
	return fmt.Sprintf("migration %s does not exist, and no report of it is kept", e.Migration)
}

func (e *NotKeptError) Advice() string {
	if len(e.Have) == 0 {
		return "replumb status lists migrations; reports of those that are gone are kept once a run of them has ended"
	}
	return "replumb status lists migrations; reports are kept of " + strings.Join(e.Have, ", ")
}

// Save replaces the Migration's earlier report, or else the oldest if there are enough.
func (s *Store) Save(ctx context.Context, m *v1alpha1.Migration, report *htmlreport.Document) error {
	payload, err := s.pack(report)
	if err != nil {
		return err
	}
	err = retry.OnError(retry.DefaultRetry, clash, func() error { return s.put(ctx, m, report.Made, payload) })
	if err != nil {
		return fmt.Errorf("keeping the report of migration %s: %w", m.Name, err)
	}
	return nil
}

func clash(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// pack compresses a report, with fewer samples if it is too large.
func (s *Store) pack(report *htmlreport.Document) ([]byte, error) {
	for _, seconds := range []int64{0, 60, 600, 3600, -1} {
		body, err := json.Marshal(report.Thinned(seconds))
		if err != nil {
			return nil, fmt.Errorf("writing the report: %w", err)
		}
		payload, err := chunklog.Compress(body)
		if err != nil {
			return nil, err
		}
		if len(payload) <= s.size {
			return payload, nil
		}
	}
	return nil, fmt.Errorf("the report of migration %s has no room, without samples too", report.Migration)
}

func (s *Store) put(ctx context.Context, m *v1alpha1.Migration, made time.Time, payload []byte) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	o := s.place(all, m)
	o.Labels = map[string]string{v1alpha1.LabelMigration: m.Name, v1alpha1.LabelRole: v1alpha1.RoleArchive}
	o.Annotations = map[string]string{
		annotationMade: made.UTC().Format(time.RFC3339), annotationMigration: string(m.UID), chunklog.AnnotationSum: chunklog.Sum(payload),
	}
	o.BinaryData = map[string][]byte{dataReport: payload}
	if o.ResourceVersion == "" {
		return s.client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	}
	return s.client.Update(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
}

// place is the Migration's ConfigMap, a new one, or the oldest if there are enough.
func (s *Store) place(all []corev1.ConfigMap, m *v1alpha1.Migration) *corev1.ConfigMap {
	taken := 0
	for i := range all {
		if all[i].Labels[v1alpha1.LabelMigration] == m.Name && all[i].Annotations[annotationMigration] == string(m.UID) {
			return &all[i]
		}
		number, _ := strconv.Atoi(strings.TrimPrefix(all[i].Name, prefix))
		taken = max(taken, number)
	}
	if len(all) >= s.most {
		return &all[0]
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.JournalNamespace, Name: fmt.Sprintf("%s%04d", prefix, taken+1),
	}}
}

func (s *Store) list(ctx context.Context) ([]corev1.ConfigMap, error) {
	all := &corev1.ConfigMapList{}
	err := s.client.List(
		ctx, all, client.InNamespace(v1alpha1.JournalNamespace),
		client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleArchive},
	)
	if err != nil {
		return nil, fmt.Errorf("listing the reports that are kept: %w", err)
	}
	slices.SortStableFunc(all.Items, func(a, b corev1.ConfigMap) int {
		return cmp.Or(strings.Compare(a.Annotations[annotationMade], b.Annotations[annotationMade]), strings.Compare(a.Name, b.Name))
	})
	return all.Items, nil
}

// Load is the latest report of a migration. It fails with a *NotKeptError if there is none.
func (s *Store) Load(ctx context.Context, migration string) (*htmlreport.Document, error) {
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	missing := &NotKeptError{Migration: migration}
	for i := range slices.Backward(all) {
		cm := &all[i]
		if cm.Labels[v1alpha1.LabelMigration] == migration {
			return unpack(cm)
		}
		if name := cm.Labels[v1alpha1.LabelMigration]; !slices.Contains(missing.Have, name) {
			missing.Have = append(missing.Have, name)
		}
	}
	slices.Sort(missing.Have)
	return nil, missing
}

func unpack(cm *corev1.ConfigMap) (*htmlreport.Document, error) {
	d := &htmlreport.Document{}
	read := false
	err := chunklog.Each(cm.BinaryData[dataReport], cm.Annotations[chunklog.AnnotationSum], func(raw json.RawMessage) error {
		read = true
		return json.Unmarshal(raw, d)
	})
	if err == nil && !read {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("the report in configmap %s/%s cannot be read: %w", cm.Namespace, cm.Name, err)
	}
	d.Notes = append(
		d.Notes,
		"the Migration is not in the cluster any more: this is what was known at "+d.Made.UTC().Format("2006-01-02 15:04:05 UTC"),
	)
	return d, nil
}
