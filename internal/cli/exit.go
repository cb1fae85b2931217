// Package cli is the commands of replumb: they parse, call and render, and decide nothing else.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
	"github.com/replumb/replumb/internal/verify/probe"
)

// The exit codes, which scripts rely on.
const (
	ExitDone        = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitBlocked     = 3
	ExitBudget      = 4
	ExitLocked      = 5
	ExitInterrupted = 130
)

// UsageError is a command line that cannot be meant.
type UsageError struct {
	Problem string
	Hint    string
}

func (e *UsageError) Error() string { return e.Problem }

// HintedError is an error with advice.
type HintedError struct {
	Err  error
	Hint string
}

func (e *HintedError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *HintedError) Unwrap() error { return e.Err }

// ExitCode of an error.
func ExitCode(err error) int {
	var usage *UsageError
	var wrong *spec.Error
	var blocked *findings.BlockedError
	var denied *cluster.DeniedError
	var changed *migration.ChangedPlanError
	var held *lease.HeldError
	var traffic *cni.TrafficError
	var lost *probe.LossError
	var loss *lossguard.LossError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &loss): // before anything that it may be the cause of
		return ExitBudget
	case errors.As(err, new(*agentset.SilentError)):
		return ExitError
	case errors.As(err, &usage), errors.As(err, &wrong):
		return ExitUsage
	case errors.As(err, &blocked), errors.As(err, &denied), errors.As(err, &changed), errors.As(err, &traffic):
		return ExitBlocked
	case errors.As(err, &lost):
		return ExitBudget
	case errors.As(err, &held):
		return ExitLocked
	case errors.Is(err, engine.ErrInterrupted), errors.Is(err, engine.ErrPaused), errors.Is(err, context.Canceled):
		return ExitInterrupted
	}
	return ExitError
}

// Report writes an error, and what to do about it, for people.
func Report(w io.Writer, err error) {
	if err == nil {
		return
	}
	fmt.Fprintf(w, "error: %v\n", err)
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", hint)
	}
}

func hintOf(err error) string {
	var hinted *HintedError
	var usage *UsageError
	var wrong *spec.Error
	var state *migration.StateError
	var unreachable *cluster.UnreachableError
	var denied *cluster.DeniedError
	var blocked *findings.BlockedError
	var late *engine.DeadlineError
	if errors.As(err, &hinted) { // whoever wrote it knew most
		return hinted.Hint
	}
	if hint := hintOfRun(err); hint != "" {
		return hint
	}
	switch {
	case errors.As(err, &usage):
		return usage.Hint
	case errors.As(err, &wrong):
		return wrong.Hint
	case errors.As(err, &state):
		return state.Hint
	case errors.As(err, &unreachable):
		return "is the cluster up, and is it the one you mean? see --kubeconfig and --context"
	case errors.As(err, &denied):
		return "bind the ClusterRole in deploy/rbac.yaml to the user"
	case errors.As(err, &blocked):
		return "replumb check -f FILE shows every finding with its fix; nothing was changed"
	case errors.Is(err, engine.ErrInterrupted), errors.Is(err, context.Canceled):
		return "it is safe to run the same command again: it carries on"
	case errors.As(err, &late):
		return "when the cause is removed, run the same command again: it carries on"
	case apierrors.IsForbidden(err):
		return "bind the ClusterRole in deploy/rbac.yaml to the user"
	}
	return ""
}

// hintOfRun is the hint of errors that only a run has.
func hintOfRun(err error) string {
	var held *lease.HeldError
	var changed *migration.ChangedPlanError
	var back *servicecidr.CameBackError
	var unknown *engine.UnknownPhaseError
	var record *dnsrecords.Error
	var adviser interface{ Advice() string }
	var asked *dnscutover.Error
	var member *etcd.RefusedError
	var traffic *cni.TrafficError
	switch {
	case errors.As(err, &traffic):
		return traffic.Hint()
	case errors.As(err, &record):
		return record.Hint
	case errors.As(err, &adviser):
		return adviser.Advice()
	case errors.As(err, &asked):
		return asked.Hint
	case errors.As(err, &member):
		return member.Hint
	case errors.As(err, &held) && held.Holder.Migration != "":
		return "wait until it is done, or ask it to stop: replumb pause " + held.Holder.Migration
	case errors.As(err, &held):
		return "wait until it is done; if nobody is there any more: kubectl delete lease -n kube-system replumb"
	case errors.As(err, &changed):
		return "look at the new plan: replumb plan -f FILE; nothing was changed"
	case errors.As(err, &back):
		return "restart that API server with the new --service-cluster-ip-range, then run the same command again"
	case errors.As(err, &unknown):
		return "the phases are " + strings.Join(unknown.Phases, ", ")
	case errors.Is(err, engine.ErrPaused):
		return "replumb resume NAME carries on"
	}
	return ""
}
