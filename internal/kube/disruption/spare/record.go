package spare

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// record is what a Migration keeps of the Deployments that it gave one more pod: how many they had.
// It outlasts who writes such a Deployment anew with the number that is there and without what it
// does not know, as kubeadm upgrade does with CoreDNS (k8s.io/kubernetes
// cmd/kubeadm/app/phases/addons/dns).
type record map[types.NamespacedName]int32

func recordOf(m *v1alpha1.Migration) record {
	r := record{}
	for entry := range strings.SplitSeq(m.Annotations[v1alpha1.AnnotationOneMore], ",") {
		name, number, _ := strings.Cut(entry, "=")
		namespace, name, _ := strings.Cut(name, "/")
		if n, err := strconv.ParseInt(number, 10, 32); err == nil && name != "" {
			r[types.NamespacedName{Namespace: namespace, Name: name}] = int32(n)
		}
	}
	return r
}

func (r record) String() string {
	var all []string
	for key, n := range maps.All(r) {
		all = append(all, fmt.Sprintf("%s=%d", key, n))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// recall is what a Migration has recorded; nothing, if it is gone.
func recall(ctx context.Context, c client.Client, migration string) (record, error) {
	m := &v1alpha1.Migration{}
	err := c.Get(ctx, client.ObjectKey{Name: migration}, m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("migration %s: %w", migration, err)
	}
	return recordOf(m), nil
}

// keep changes what a Migration has recorded.
func keep(ctx context.Context, c client.Client, migration string, change func(record)) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := c.Get(ctx, client.ObjectKey{Name: migration}, m); err != nil {
			return err
		}
		r := recordOf(m)
		change(r)
		switch text := r.String(); text {
		case m.Annotations[v1alpha1.AnnotationOneMore]:
			return nil
		case "":
			delete(m.Annotations, v1alpha1.AnnotationOneMore)
		default:
			if m.Annotations == nil {
				m.Annotations = map[string]string{}
			}
			m.Annotations[v1alpha1.AnnotationOneMore] = text
		}
		return c.Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
	if err != nil {
		return fmt.Errorf("migration %s: %w", migration, err)
	}
	return nil
}
