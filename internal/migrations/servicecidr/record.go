package servicecidr

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// noteStep writes the progress on the Migration once every hop of a batch is proven.
type noteStep struct {
	tools     Tools
	migration string
	batch     string
	counts    v1alpha1.Counts
	tiers     []v1alpha1.TierStatus
}

func (s *noteStep) ID() string    { return "note/" + s.batch }
func (s *noteStep) Title() string { return "Record that " + s.batch + " has moved" }
func (s *noteStep) State(context.Context) (engine.State, error) {
	return engine.Pending, nil
}

func (s *noteStep) Do(ctx context.Context) error {
	return migration.UpdateStatus(ctx, s.tools.Cluster, s.migration, func(st *v1alpha1.MigrationStatus) {
		s.counts.Bridged = max(s.counts.Bridged, s.counts.Moved)
		st.Phase, st.Counts, st.Tiers = v1alpha1.PhaseApplying, s.counts, s.tiers
		migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, s.batch+" has moved")
	})
}
func (s *noteStep) Verify(context.Context) error { return nil }
