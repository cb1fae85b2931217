package journal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

// Reader reads a journal repeatedly: only ConfigMaps that have changed.
type Reader struct {
	client    client.Client
	migration string
	owner     types.UID
	pieces    map[string]read
}

type read struct {
	version  string
	sequence int
	history  History
}

// NewReader reads the journal of a Migration that is in the cluster.
func NewReader(c client.Client, m *v1alpha1.Migration) *Reader {
	return &Reader{client: c, migration: m.Name, owner: m.UID, pieces: map[string]read{}}
}

// Read returns the whole journal as it is now. The caller must not change it.
func (r *Reader) Read(ctx context.Context) (*History, error) {
	there := &metav1.PartialObjectMetadataList{}
	there.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	err := r.client.List(ctx, there, client.InNamespace(v1alpha1.JournalNamespace),
		client.MatchingLabels{v1alpha1.LabelMigration: r.migration, v1alpha1.LabelRole: v1alpha1.RoleJournal})
	if err != nil {
		return nil, fmt.Errorf("listing the journal of migration %s: %w", r.migration, err)
	}
	names := map[string]bool{}
	for i := range there.Items {
		o := &there.Items[i]
		if !slices.ContainsFunc(o.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == r.owner }) {
			continue
		}
		names[o.Name] = true
		if r.pieces[o.Name].version == o.ResourceVersion {
			continue
		}
		if err := r.refresh(ctx, o.Name); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(r.pieces, func(name string, _ read) bool { return !names[name] })
	return r.whole(), nil
}

// refresh reads one ConfigMap by a list, the only right of readers.
func (r *Reader) refresh(ctx context.Context, name string) error {
	one := &corev1.ConfigMapList{}
	err := r.client.List(ctx, one, client.InNamespace(v1alpha1.JournalNamespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return fmt.Errorf("configmap %s/%s: %w", v1alpha1.JournalNamespace, name, err)
	}
	for i := range one.Items {
		p := read{version: one.Items[i].ResourceVersion, sequence: chunklog.Sequence(&one.Items[i])}
		p.history.take(&one.Items[i])
		r.pieces[name] = p
	}
	return nil
}

func (r *Reader) whole() *History {
	h := &History{}
	for _, p := range slices.SortedFunc(maps.Values(r.pieces), func(a, b read) int { return a.sequence - b.sequence }) {
		h.Runs = append(h.Runs, p.history.Runs...)
		h.Events = append(h.Events, p.history.Events...)
		h.Samples = append(h.Samples, p.history.Samples...)
		h.Losses = append(h.Losses, p.history.Losses...)
		h.Moves = append(h.Moves, p.history.Moves...)
		h.Findings = append(h.Findings, p.history.Findings...)
		h.Stragglers = append(h.Stragglers, p.history.Stragglers...)
		h.Damaged = append(h.Damaged, p.history.Damaged...)
		h.Thinned = h.Thinned || p.history.Thinned
	}
	h.sort()
	return h
}

func (h *History) take(cm *corev1.ConfigMap) {
	times, _ := strconv.Atoi(cm.Annotations[annotationThinned])
	h.Thinned = h.Thinned || times > 0
	if err := each(cm, h.add); err != nil {
		h.Damaged = append(h.Damaged, fmt.Sprintf("configmap %s/%s: %v", cm.Namespace, cm.Name, err))
	}
}
