package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/controlplane"
)

// recheckLimit leaves a restarting kubelet or API server time to answer.
const recheckLimit = 20 * time.Second

// GateReopenedError says that an operator's change is undone, or not on newcomers.
type GateReopenedError struct {
	Err   error
	Guide string
}

func (e *GateReopenedError) Error() string { return "not finished: " + e.Err.Error() }

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

// managersOn holds unless a controller manager is seen to have other ranges in
// --service-cluster-ip-range: it may be left out, or not to be seen.
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
		return notOn(want, wrong)
	}
	return nil
}
