package migration

import (
	"context"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Deps are for the steps of every kind. Plans can be made and shown without a cluster.
type Deps struct {
	Cluster *cluster.Cluster
	// Image of replumb for the pods it runs itself; empty if this build has none.
	Image pull.Image
	// Directed is true in the operator: others write spec.desired, and runs obey it.
	Directed bool
	// Clock, if set, is used in place of the real one.
	Clock clock.PassiveClock
}

// ImageOf is what the pods of a migration run: the image that it names, or the own one.
func (t Deps) ImageOf(s *v1alpha1.MigrationSpec) pull.Image { return pull.Named(s).Or(t.Image) }

// Now is the time by the API server's clock, since this machine's may be minutes off.
func (t Deps) Now() time.Time {
	now := time.Now
	if t.Clock != nil {
		now = t.Clock.Now
	}
	if t.Cluster == nil {
		return now()
	}
	return now().Add(t.Cluster.Skew())
}

// Client is nil, and not a nil pointer in an interface, when there is no cluster.
func (t Deps) Client() client.Client {
	if t.Cluster == nil {
		return nil
	}
	return t.Cluster
}

// Base is what the planners of all kinds of migrations have in common. They embed it.
type Base struct {
	Tools Deps
	// Migration is what is wanted, with everything that is open in the file filled in.
	Migration *v1alpha1.Migration
	Findings  findings.Findings
	// HasCRD and Recorded say what the cluster has already.
	HasCRD      bool
	Recorded    bool
	Changes     []spec.FieldChange
	Deployments Deployments
	// Identity is the cluster's. It has no UID if the user may not ask for it.
	Identity engine.Identity
}

// AsBase is what helpers for planners of all kinds work with.
func (b *Base) AsBase() *Base { return b }

// The defaults of Plans.

func (*Base) RunBeside(context.Context) (stop func() error) { return func() error { return nil } }

func (*Base) Arrive(context.Context) error { return nil }

func (*Base) Amiss() error { return nil }

func (*Base) Follows() bool { return false }

func (*Base) Summary(_ v1alpha1.Phase, counts v1alpha1.Counts) (v1alpha1.Counts, []v1alpha1.TierStatus) {
	return counts, nil
}

func (b *Base) Found() findings.Findings { return b.Findings }

// Hooks are the calls of an occasion of this migration.
func (b *Base) Hooks(o hook.Occasion) []engine.Group {
	o.Migration, o.Cluster = b.Migration.Name, b.Identity
	return hook.Groups(b.Migration.Spec.Hooks, o)
}

// Final passes the point of no return.
func (b *Base) Final() engine.Step {
	return finalStep(b.Tools.Client(), b.Migration.Name, b.Tools.Directed)
}

// Namespace is where replumb keeps what it runs, and its backups. sweep goes before it does.
func (b *Base) Namespace(sweep Sweep) *NamespaceStep {
	return &NamespaceStep{Cluster: b.Tools.Cluster, Migration: b.Migration.Name, Sweep: sweep}
}

// Securing is what differs between kinds in what comes before the first change.
type Securing struct {
	Sweep      Sweep
	Privileged bool
	// Recorded are steps that write down more, right after the Migration is recorded.
	Recorded []engine.Step
	// Originals are the objects that are about to be changed for the first time.
	Originals []client.Object
	// Backup is the title of the step that backs Originals up. Default: how many they are.
	Backup string
	Then   []engine.Step
}

// Secure records the migration, backs up, and freezes deployments if that is asked for.
func (b *Base) Secure(s Securing) []engine.Group {
	want := b.Migration.DeepCopy()
	want.Spec.Desired, want.Status = v1alpha1.DesiredApplied, v1alpha1.MigrationStatus{} // the status is written by itself
	Bind(want, b.Identity.UID)
	steps := []engine.Step{
		&CRDStep{Cluster: b.Tools.Cluster, Upgrade: b.HasCRD},
		b.Namespace(s.Sweep),
	}
	if s.Privileged {
		steps = append(steps, b.privilege())
	}
	steps = append(steps, &RecordStep{
		Cluster: b.Tools.Cluster, Want: want, Recorded: b.Recorded, Changes: b.Changes, Directed: b.Tools.Directed,
	})
	steps = append(steps, s.Recorded...)
	if len(s.Originals) > 0 {
		title := s.Backup
		if title == "" {
			title = "Back up " + english.Plural(len(s.Originals), "object", "")
		}
		steps = append(steps, backup.NewStep(b.Tools.Client(), want, "secure/backup", title, s.Originals))
	}
	return engine.InOrder(slices.Concat(steps, s.Then, b.freezeDeployments())...)
}

func (b *Base) privilege() *PrivilegeStep {
	return &PrivilegeStep{Cluster: b.Tools.Cluster, Migration: b.Migration.Name}
}

// Unprivilege takes back what Securing.Privileged has allowed.
func (b *Base) Unprivilege() engine.Step { return b.privilege().Undo() }

// Forget removes backups and the namespace, unless backups are to be kept.
func (b *Base) Forget(sweep Sweep) []engine.Step {
	if b.Migration.Spec.Backups == v1alpha1.BackupsKeep {
		return nil
	}
	return b.ForgetAll(sweep)
}

// ForgetAll removes backups and the namespace, also where backups are to be kept: the originals are
// back.
func (b *Base) ForgetAll(sweep Sweep) []engine.Step {
	return []engine.Step{&backup.ForgetStep{Client: b.Tools.Client(), Migration: b.Migration.Name}, b.Namespace(sweep).Undo()}
}
