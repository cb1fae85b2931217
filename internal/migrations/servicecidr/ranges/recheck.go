package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/controlplane"
)

// recheckLimit is how long what was in order may take to say so again: a kubelet or API server may
// be restarting.
const recheckLimit = 20 * time.Second

// GateReopenedError says that what operators had changed for the migration is so no more, or not on
// what came since.
type GateReopenedError struct {
	Err error
	// Guide is what to do about it.
	Guide string
}

func (e *GateReopenedError) Error() string { return "not finished: " + e.Err.Error() }

// Unwrap gives what is wrong.
func (e *GateReopenedError) Unwrap() error { return e.Err }

func (e *GateReopenedError) Advice() string {
	return "nothing is final yet, and old addresses answer; then run finish again:\n" + e.Guide
}

// RecheckStep is a gate that does not wait for operators.
func RecheckStep(id, title, guide string, holds func(context.Context) error, remark func() string) engine.Step {
	return &engine.Wait{
		Name: "recheck/" + id, About: title, Limit: recheckLimit, As: engine.RoleCheck, Again: true, Remark: remark,
		For: func(ctx context.Context) error {
			err := holds(ctx)
			switch {
			case err == nil:
				return nil
			case engine.Retryable(err):
				return engine.NotYet("%w", &GateReopenedError{Err: err, Guide: guide})
			}
			return err
		},
	}
}

// managersOn holds unless a controller manager is seen to have other ranges as
// --service-cluster-ip-range. That flag may be left out, and where controller managers are no pods
// it cannot be seen.
func managersOn(ctx context.Context, c client.Client, want []netip.Prefix) error {
	pods, err := controlplane.ControllerManager.Pods(ctx, c)
	if err != nil {
		return fmt.Errorf("listing the pods of controller managers: %w", err)
	}
	var wrong []string
	for i := range pods {
		if ranges := apiserver.CommandRanges(&pods[i]); len(ranges) > 0 && len(without(want, ranges)) > 0 {
			wrong = append(wrong, pods[i].Name)
		}
	}
	if len(wrong) > 0 {
		return engine.NotYet("--service-cluster-ip-range is not %s on %s", FlagOf(want), strings.Join(wrong, ", "))
	}
	return nil
}
