package migrationtest

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// The rights that take part in a freeze and a suspension: a process is killed just before it takes
// one of them.
const (
	suspends = "patch applications.argoproj.io"
	resumes  = "patch kustomizations.kustomize.toolkit.fluxcd.io"
	binds    = "create validatingadmissionpolicybindings.admissionregistration.k8s.io"
	unbinds  = "delete validatingadmissionpolicies.admissionregistration.k8s.io"
	forgets  = "delete configmaps"
)

// Freezes has a Migration freeze deployments, and suspend Argo CD and Flux.
func Freezes(m *v1alpha1.Migration) {
	m.Spec.DeploymentFreeze = &v1alpha1.DeploymentFreezeSpec{Mode: v1alpha1.FreezeEnforce, GitOps: v1alpha1.GitOpsSuspend}
}

// FrozenRun is a migration with a freeze of deployments and a suspension of Argo CD and Flux, whose
// commands are run as by a new process each time.
type FrozenRun struct {
	Others   *Others
	Requests *Requests
	// Apply goes as far as a phase, or to its end if none is named.
	Apply            func(until string) error
	Rollback, Finish func() error
	// Lift are the steps of unfreeze.
	Lift []engine.Step
	// Moves is a right that apply takes once deployments are frozen, and MovesBack one that the way
	// back takes before they are not any more.
	Moves, MovesBack string
}

// cut runs a command whose process is killed just before it takes a right for the n-th time.
func (r *FrozenRun) cut(right string, n int, command func() error) {
	o := r.Others
	o.Helper()
	r.Requests.Kill(right, n)
	err := command()
	if killed := r.Requests.Revive(); !killed || err == nil {
		o.Fatalf("it was not killed at %s: %v", right, err)
	}
}

func (r *FrozenRun) through() error { return r.Apply("") }

// stands fails the test unless deployments are frozen and nothing reconciles them, or the other way
// round.
func (r *FrozenRun) stands(frozen bool) {
	o := r.Others
	o.Helper()
	if frozen {
		o.Frozen()
		o.Suspended()
	} else {
		o.Free()
		o.AsBefore()
	}
}

func (r *FrozenRun) unfreeze() {
	o := r.Others
	o.Helper()
	for _, step := range r.Lift {
		o.Must(engine.Drive(o.Context(), step))
	}
	r.stands(false)
}

// ask changes what the Migration in the cluster says of the freeze.
func (r *FrozenRun) ask(freeze string) {
	o := r.Others
	o.Helper()
	all := &v1alpha1.MigrationList{}
	o.Must(o.server.List(o.Context(), all))
	for i := range all.Items {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"deploymentFreeze":`+freeze+`}}`))
		o.Must(o.server.Patch(o.Context(), &all.Items[i], patch))
	}
}

// ThereAndFinished takes it to the end: killed while it suspends, freezes, moves, lifts and
// resumes, and with unfreeze in between.
func (r *FrozenRun) ThereAndFinished() {
	o := r.Others
	o.Helper()
	r.stands(false) // the control: what is refused below goes through
	r.cut(suspends, 2, r.through)
	o.Free()
	r.unfreeze() // what a process that is gone has suspended
	r.cut(suspends, 2, r.through)
	r.cut(binds, 1, r.through)
	o.Suspended()
	o.Must(r.Apply("secure"))
	r.stands(true)
	r.cut(r.Moves, 1, r.through)
	r.stands(true)
	r.unfreeze()
	o.Must(r.through())
	r.stands(true)
	r.unfreeze()
	o.Must(r.through()) // which has nothing to move any more
	r.stands(true)
	r.cut(unbinds, 1, r.Finish)
	r.cut(resumes, 2, r.Finish)
	r.cut(forgets, 1, r.Finish)
	o.Must(r.Finish())
	r.stands(false)
}

// ThereAndBack takes it back from the middle, killed on the way, and from its end.
func (r *FrozenRun) ThereAndBack() {
	o := r.Others
	o.Helper()
	r.stands(false)
	r.cut(r.Moves, 1, r.through)
	r.stands(true)
	o.Must(r.Rollback())
	r.stands(false)
	o.Must(r.through())
	r.stands(true)
	r.ask(`null`) // as by an edit of the Migration in the cluster, which says nothing of a freeze then
	r.cut(r.MovesBack, 1, r.Rollback)
	r.stands(true)
	r.cut(unbinds, 1, r.Rollback)
	r.cut(resumes, 2, r.Rollback)
	o.Must(r.Rollback())
	r.stands(false)
}
