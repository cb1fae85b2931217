package migrations

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
)

// StatusOf reads where everything stands. A Migration that is over is shown as recorded where its
// objects cannot be looked at: later changes may have moved on what it moved, or ended its target.
func StatusOf(ctx context.Context, j Job) (migration.StatusDocument, error) {
	found, err := j.Status(ctx)
	m := j.About().Migration
	if err == nil || ctx.Err() != nil || !m.Status.Phase.Over() {
		return found, err
	}
	return recorded(m, err), nil
}

func recorded(m *v1alpha1.Migration, why error) migration.StatusDocument {
	return migration.StatusDocument{
		Counts:  m.Status.Counts,
		Summary: "as recorded when it was over",
		Text: []migration.TextBlock{{Lines: []string{
			"objects cannot be compared with it any more: " + printable.Line(why.Error()),
		}}},
	}
}
