package mirror

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

// recordClusters records what cannot be seen later: which clusters these are, and where names led.
func recordClusters(c client.Client, survey *Inventory) engine.Step {
	name := survey.Spec.Name
	set := func(st *v1alpha1.MigrationStatus) {
		if st.Mirror == nil {
			st.Mirror = &v1alpha1.MirrorStatus{Serving: v1alpha1.ServingSource}
		}
		m := st.Mirror
		m.SourceUID, m.TargetUID = survey.Source.UID, survey.Target.UID
		if m.Serving == v1alpha1.ServingSource { // later they are what they were
			m.Names = survey.Names
		}
	}
	return &engine.Write{
		Name: "secure/names", About: "Record both clusters, and where names lead", As: engine.RoleOwn,
		Write: func(ctx context.Context) error { return migration.UpdateStatus(ctx, c, name, set) },
		Holds: func(ctx context.Context) error {
			m, err := migration.Get(ctx, c, name)
			if err != nil {
				return err
			}
			if m == nil || m.Status.Mirror == nil || m.Status.Mirror.TargetUID != survey.Target.UID ||
				m.Status.Mirror.Serving == v1alpha1.ServingSource && !equality.Semantic.DeepEqual(m.Status.Mirror.Names, survey.Names) {
				return engine.NotYet("where names lead is not recorded yet")
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			st := v1alpha1.MigrationStatus{Mirror: survey.Remembered.DeepCopy()}
			set(&st)
			return migration.StatusChange(name, map[string]any{"mirror": st.Mirror})()
		},
	}
}

func recordServing(c client.Client, name, id string, side v1alpha1.ServingSide) *engine.Write {
	about := fmt.Sprintf("Record that the %s serves", strings.ToLower(string(side)))
	if side == v1alpha1.ServingBoth {
		about = "Record that both clusters serve from here on"
	}
	return recordMirror(c, name, id, about, map[string]any{"serving": side}, func(m *v1alpha1.MirrorStatus) error {
		if m == nil || m.Serving != side {
			return engine.NotYet("status.mirror.serving of migration %s is not %s yet", name, side)
		}
		return nil
	}, func(m *v1alpha1.MirrorStatus) { m.Serving = side })
}

// SpecChangedError says that the recorded spec is not the one that the mirror was made by.
type SpecChangedError struct {
	Name   string
	Change spec.FieldChange
}

func (e *SpecChangedError) Error() string {
	return fmt.Sprintf("%s of migration %s was changed while this run made the mirror by what it was before", e.Change.Field, e.Name)
}

func (*SpecChangedError) Advice() string {
	return "no name leads to the mirror yet; apply again, and the mirror is made by what the Migration has now"
}

// recordSwitch records that both clusters serve from here on. From then on the API server refuses
// changes of what the mirror is made by; one that came before ends the run.
func recordSwitch(c client.Client, m *v1alpha1.Migration, id string) engine.Step {
	step := recordServing(c, m.Name, id, v1alpha1.ServingBoth)
	step.Write = func(ctx context.Context) error {
		return migration.UpdateRecorded(ctx, c, m.Name, func(have *v1alpha1.Migration) error {
			whole := have.DeepCopy()
			spec.Default(whole)
			_, changes, err := spec.Merge(whole, m)
			if err != nil {
				return err
			}
			for _, change := range changes {
				if strings.HasPrefix(change.Field, root+".") {
					return &SpecChangedError{Name: m.Name, Change: change}
				}
			}
			if have.Status.Mirror == nil {
				have.Status.Mirror = &v1alpha1.MirrorStatus{}
			}
			have.Status.Mirror.Serving = v1alpha1.ServingBoth
			return nil
		})
	}
	return step
}

// recordMirror writes status.mirror until it holds. There is none before the migration has begun.
func recordMirror(
	c client.Client, name, id, about string, shown map[string]any,
	holds func(*v1alpha1.MirrorStatus) error, set func(*v1alpha1.MirrorStatus),
) *engine.Write {
	return &engine.Write{
		Name: id, About: about, As: engine.RoleOwn,
		Write: func(ctx context.Context) error {
			return migration.UpdateStatus(ctx, c, name, func(st *v1alpha1.MigrationStatus) {
				if st.Mirror == nil {
					st.Mirror = &v1alpha1.MirrorStatus{}
				}
				set(st.Mirror)
			})
		},
		Holds: func(ctx context.Context) error {
			m, err := migration.Get(ctx, c, name)
			if err != nil || m == nil {
				return cmp.Or(err, holds(nil))
			}
			return holds(m.Status.Mirror)
		},
		Changes: migration.StatusChange(name, map[string]any{"mirror": shown}),
	}
}

// readiness is how long workloads may take to become ready: images are pulled.
const readiness = 15 * time.Minute

// awaitReady waits until nothing of a cluster is unready any more, and reports what is, and why.
func awaitReady(id, side string, unready func(context.Context) ([]string, error)) engine.Step {
	return &engine.Wait{
		Name: id, About: "Wait until every workload of the " + side + " is ready", Limit: readiness,
		For: func(ctx context.Context) error {
			left, err := unready(ctx)
			if err != nil || len(left) == 0 {
				return err
			}
			return engine.NotYet("%d not ready in the %s: %s", len(left), side, few(left))
		},
	}
}

func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:most], "; "), len(all)-most)
}

// VolumeRequest is what the action of spec.mirror.copy.volumeAction gets.
type VolumeRequest struct {
	Migration string `json:"migration"`
	// Claims of the source, as namespace/name, that have copies in the target by now.
	Claims []string `json:"claims"`
}

// fillVolumes calls the operator's action in every run: an earlier result is not visible.
func fillVolumes(name string, claims []string, action v1alpha1.Action) engine.Step {
	claims = slices.Sorted(slices.Values(claims))
	return &engine.Write{
		Name: "copy/volumes", About: "Fill the volumes of the target", As: engine.RoleCall, Limit: action.Timeout.Duration + time.Minute,
		Write: func(ctx context.Context) error {
			return callout.Call(ctx, action, VolumeRequest{Migration: name, Claims: claims}, nil)
		},
		Changes: engine.Shows(engine.Change{
			Verb: "call", Object: "spec.mirror.copy.volumeAction", Body: VolumeRequest{Migration: name, Claims: claims},
		}),
	}
}
