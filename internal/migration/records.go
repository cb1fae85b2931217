package migration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// RecordMemory keeps earlier DNS records in the status of a Migration. It implements
// records.Memory.
type RecordMemory struct {
	Client client.Client
	Name   string
}

// Recall returns nil for a record that nothing is known of.
func (m RecordMemory) Recall(ctx context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	have, err := Get(ctx, m.Client, m.Name)
	if err != nil || have == nil {
		return nil, err
	}
	return recordOf(have.Status.Records, name, typ), nil
}

// Remember writes one record's part of the status.
func (m RecordMemory) Remember(ctx context.Context, status v1alpha1.RecordStatus) error {
	return UpdateStatus(ctx, m.Client, m.Name, func(st *v1alpha1.MigrationStatus) {
		if have := recordOf(st.Records, status.Name, status.Type); have != nil {
			*have = status
			return
		}
		st.Records = append(st.Records, status)
	})
}

func (m RecordMemory) Change(name string, typ v1alpha1.RecordType) engine.Change {
	return engine.Change{Verb: "patch", Object: "Migration " + m.Name, Body: map[string]any{
		"status": map[string]any{"records": fmt.Sprintf("what %s %s was, and when it was changed", name, typ)},
	}}
}

func recordOf(all []v1alpha1.RecordStatus, name string, typ v1alpha1.RecordType) *v1alpha1.RecordStatus {
	i := slices.IndexFunc(all, func(r v1alpha1.RecordStatus) bool { return r.Name == name && r.Type == typ })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// Secrets reads the data of Secrets of a cluster.
func Secrets(c client.Reader) func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		secret := &corev1.Secret{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
		return secret.Data, err
	}
}
