package switchover

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// Status reads status.cni of a Migration; empty, if there is none.
func (d Deps) Status(ctx context.Context, name string) (v1alpha1.CNIStatus, error) {
	m, err := migration.Get(ctx, d.Cluster, name)
	if err != nil || m == nil || m.Status.CNI == nil {
		return v1alpha1.CNIStatus{}, err
	}
	return *m.Status.CNI, nil
}

func (d Deps) updateStatus(ctx context.Context, name string, change func(*v1alpha1.CNIStatus)) error {
	return migration.UpdateStatus(ctx, d.Cluster, name, func(st *v1alpha1.MigrationStatus) {
		if st.CNI == nil {
			st.CNI = &v1alpha1.CNIStatus{}
		}
		change(st.CNI)
	})
}

// serverNow is the API server's clock, by which pods are dated. Nothing is written.
func (d Deps) serverNow(ctx context.Context) (metav1.Time, error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: "clock-"}}
	if err := d.Cluster.Create(ctx, o, client.DryRunAll, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return metav1.Time{}, fmt.Errorf("asking the API server for the time: %w", err)
	}
	return o.CreationTimestamp, nil
}

// StatusSteps change status.cni of a Migration.
type StatusSteps struct {
	deps      Deps
	migration string
}

// step changes the status until holds finds the change; shown is what it comes to.
func (m StatusSteps) step(
	id, about string, shown map[string]any, change func(context.Context) error, holds func(v1alpha1.CNIStatus) bool,
) engine.Step {
	return &engine.Write{
		Name: id, About: about, As: engine.RoleOwn, Write: change,
		Holds: func(ctx context.Context) error {
			st, err := m.deps.Status(ctx, m.migration)
			if err == nil && !holds(st) {
				return engine.NotYet("status.cni of migration %s is not written yet", m.migration)
			}
			return err
		},
		Changes: migration.StatusChange(m.migration, map[string]any{"cni": shown}),
	}
}

func (m StatusSteps) recordInventory(s *Inventory) engine.Step {
	var st v1alpha1.CNIStatus
	set := func(st *v1alpha1.CNIStatus) {
		st.From, st.Nodes, st.Unready = s.From(), s.NodeNames(), s.unready()
		st.Ranges = nil
		for _, r := range s.Ranges {
			st.Ranges = append(st.Ranges, r.String())
		}
		if s.Manifests != nil {
			st.ManifestsHash = s.Manifests.Hash
		}
	}
	set(&st)
	shown := map[string]any{
		"from": st.From, "nodes": st.Nodes, "unready": st.Unready, "ranges": st.Ranges, "manifestsHash": st.ManifestsHash,
	}
	return m.step("secure/remember", "Record what the cluster has", shown,
		func(ctx context.Context) error { return m.deps.updateStatus(ctx, m.migration, set) },
		func(st v1alpha1.CNIStatus) bool { return st.ManifestsHash != "" && st.From != "" })
}

func (m StatusSteps) begin(about string) engine.Step {
	return m.step("begin", about, map[string]any{"begun": "now"},
		func(ctx context.Context) error {
			return m.updateAt(ctx, func(st *v1alpha1.CNIStatus, now metav1.Time) { st.Begun, st.Network, st.Since = &now, "", nil })
		},
		func(st v1alpha1.CNIStatus) bool { return st.Begun != nil })
}

// Since records since when a network is on every node: pods made before do not have it.
func (m StatusSteps) Since(network v1alpha1.CNIName) engine.Step {
	return m.step("since/"+string(network), fmt.Sprintf("Record since when %s is on every node", network),
		map[string]any{"network": network, "since": "now"},
		func(ctx context.Context) error {
			return m.updateAt(ctx, func(st *v1alpha1.CNIStatus, now metav1.Time) { st.Network, st.Since = network, &now })
		},
		func(st v1alpha1.CNIStatus) bool { return st.Network == network && st.Since != nil })
}

func (m StatusSteps) updateAt(ctx context.Context, change func(*v1alpha1.CNIStatus, metav1.Time)) error {
	now, err := m.deps.serverNow(ctx)
	if err != nil {
		return err
	}
	return m.deps.updateStatus(ctx, m.migration, func(st *v1alpha1.CNIStatus) { change(st, now) })
}

func (m StatusSteps) reset() engine.Step {
	return m.step("tidy/status", "Remove what the Migration remembers of the cluster", nil,
		func(ctx context.Context) error {
			return client.IgnoreNotFound(
				migration.UpdateStatus(ctx, m.deps.Cluster, m.migration, func(st *v1alpha1.MigrationStatus) { st.CNI = nil }),
			)
		},
		func(st v1alpha1.CNIStatus) bool { return equality.Semantic.DeepEqual(st, v1alpha1.CNIStatus{}) })
}
