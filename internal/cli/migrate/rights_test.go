package migrate

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "cart", errors.New("no"))
}

// TestRightsOfKind names, to a user who lacks rights, the command that prints those of that kind of
// migration.
func TestRightsOfKind(t *testing.T) {
	for kind, j := range map[string]migrations.Job{
		"services": &servicecidr.Job{}, "pods": &podcidr.Job{}, "nodes": &nodes.Job{}, "mirrors": &mirror.Job{}, "networks": &cni.Job{},
	} {
		t.Run(kind, func(t *testing.T) {
			for _, err := range []error{forbidden(), &engine.StepError{Err: forbidden()}, &access.DeniedError{}} {
				if got := command.HintOf(ofJob(j, err)); !strings.Contains(got, "replumb rbac "+kind+" --user NAME") {
					t.Errorf("%v: hint %q", err, got)
				}
				if command.ExitCode(ofJob(j, err)) != command.ExitCode(err) {
					t.Errorf("%v: another exit code", err)
				}
			}
			frozen := &apierrors.StatusError{ErrStatus: metav1.Status{
				Reason:  metav1.StatusReasonForbidden,
				Message: "ValidatingAdmissionPolicy 'replumb-freeze-deploys' with binding denied request",
			}}
			if got := command.HintOf(ofJob(j, frozen)); !strings.HasPrefix(got, "this is no lack of rights") {
				t.Errorf("refused by a freeze: hint %q", got)
			}
			known := &mirror.TargetError{Err: forbidden(), Hint: "look at the target"}
			if got := command.HintOf(ofJob(j, known)); got != known.Hint {
				t.Errorf("hint %q, want that of the error", got)
			}
			if err := ofJob(j, engine.ErrInterrupted); err.Error() != engine.ErrInterrupted.Error() {
				t.Error("an interruption is taken for a lack of rights")
			}
		})
	}
}
