package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	clifleet "github.com/replumb/replumb/internal/cli/fleet"
	"github.com/replumb/replumb/internal/cli/migrate"
	"github.com/replumb/replumb/internal/cli/tools"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/drained"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
	"github.com/replumb/replumb/internal/verify/probe"
)

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "cart", errors.New("no"))
}

func refusedBy(by string) error {
	return fmt.Errorf("namespace x: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "x", errors.New(by)))
}

// exit is how an error ends a command.
type exit struct {
	err  error
	code int
	hint string
}

// exits are errors of every kind, by what they say.
func exits() map[string]exit {
	held := &lease.HeldError{Holder: lease.Holder{PID: 1, Migration: "move"}}
	return map[string]exit{
		"nothing":             {nil, fault.ExitDone, ""},
		"any":                 {errors.New("any"), fault.ExitError, ""},
		"usage":               {&command.UsageError{Hint: "do"}, fault.ExitUsage, "do"},
		"the Migration":       {&spec.Error{Hint: "do"}, fault.ExitUsage, "do"},
		"blocked":             {&findings.BlockedError{}, fault.ExitBlocked, "replumb check"},
		"overlaps":            {&tools.RangesError{Overlaps: 1}, fault.ExitBlocked, "spec.podCIDR.to"},
		"ranges not read":     {&tools.RangesError{NotRead: 1}, fault.ExitBlocked, "replumb rbac pods"},
		"a cluster not read":  {&tools.RangesError{Overlaps: 1, Unread: 1, Of: 2}, fault.ExitError, "may be in use"},
		"denied":              {&access.DeniedError{}, fault.ExitBlocked, "replumb rbac -f FILE"},
		"forbidden":           {forbidden(), fault.ExitError, "replumb rbac -f FILE"},
		"refused by a policy": {refusedBy(`ValidatingAdmissionPolicy 'owners' with binding 'owners' denied request: no`), fault.ExitError, "exempt who runs replumb, and namespace replumb-system, from ValidatingAdmissionPolicy owners"},
		"refused by a quota":  {refusedBy("exceeded quota: small, requested: pods=1"), fault.ExitError, "raise the quota"},
		"a dead webhook": {
			apierrors.NewInternalError(errors.New(`failed calling webhook "w.example.com": no service`)), fault.ExitError, "webhook w.example.com cannot be asked",
		},
		"a step":                 {&engine.StepError{Step: "a", Err: errors.New("no")}, fault.ExitError, "repair what the message names"},
		"versions apart":         {&installation.SkewError{Client: "v0.6.0", Operator: "v0.4.0"}, fault.ExitBlocked, "install --apply"},
		"still needed":           {&installation.InUseError{UnderWay: "move"}, fault.ExitBlocked, "replumb rollback move"},
		"no operator":            {&installation.DownError{Cause: workload.NoImage}, fault.ExitError, "--pull-secret"},
		"another plan":           {&migration.ChangedPlanError{}, fault.ExitBlocked, "look at the new plan"},
		"a foreign plan":         {&migrate.ForeignPlanError{File: "plan.json"}, fault.ExitBlocked, "plan -f FILE -o json"},
		"a foreign Migration":    {&migration.OtherClusterError{Name: "move"}, fault.ExitBlocked, "replumb.dev/cluster"},
		"foreign calls":          {&migrate.ConsentError{Name: "move", Digest: "d1"}, fault.ExitBlocked, "--allow-calls d1"},
		"changed calls":          {&migration.ForeignCallsError{Name: "move"}, fault.ExitBlocked, "managed-fields"},
		"a kubeconfig":           {&mirror.KubeconfigError{}, fault.ExitBlocked, "--insecure-target-kubeconfig"},
		"another target":         {&mirror.AnotherTargetError{}, fault.ExitBlocked, "nothing was changed or sent"},
		"traffic":                {&drained.TrafficError{}, fault.ExitBlocked, "another cluster first"},
		"the budget":             {&lossguard.LossError{Migration: "move"}, fault.ExitBudget, "replumb rollback move"},
		"late answers":           {&lossguard.LossError{Migration: "move", Late: 1}, fault.ExitBudget, "spec.proof.lateBudget"},
		"agents cannot measure":  {&lossguard.NotMeasuredError{Agents: []string{"node a"}}, fault.ExitNotMeasured, "kubectl top node"},
		"probing cannot measure": {&probe.NotMeasuredError{}, fault.ExitNotMeasured, "send fewer requests"},
		"an operator's cannot":   {&migrate.StalledError{Reason: v1alpha1.ReasonNotMeasured}, fault.ExitNotMeasured, ""},
		"an operator's late":     {&migrate.StalledError{Reason: v1alpha1.ReasonLateBudgetExceeded}, fault.ExitBudget, ""},
		"an agent ended":         {&lossguard.EndedError{}, fault.ExitError, "--previous"},
		"silent agents":          {&agentset.SilentError{}, fault.ExitError, "--without-agent"},
		"a probe's loss":         {&probe.LossError{}, fault.ExitBudget, ""},
		"the lock":               {held, fault.ExitLocked, "replumb pause move"},
		"a foreign lock":         {&lease.HeldError{}, fault.ExitLocked, "kubectl delete lease"},
		"the state":              {&migration.StateError{Hint: "do"}, fault.ExitError, "do"},
		"a range that came back": {&ranges.CameBackError{}, fault.ExitError, "restart that API server"},
		"unreachable":            {&cluster.UnreachableError{Err: errors.New("no")}, fault.ExitError, "--kubeconfig"},
		"no such phase":          {&engine.UnknownPhaseError{Phases: []string{"a", "b"}}, fault.ExitError, "the phases are a, b"},
		"interrupted":            {engine.ErrInterrupted, fault.ExitInterrupted, "same command again"},
		"interrupted by a loss": {
			fmt.Errorf("%w: %w", engine.ErrInterrupted, &lossguard.LossError{Migration: "move"}), fault.ExitBudget, "replumb rollback move",
		},
		"not measured in the end": {
			&engine.StepError{
				Err: &engine.DeadlineError{Err: engine.NotYet("%w", &lossguard.NotMeasuredError{Agents: []string{"node a"}})},
			},
			fault.ExitNotMeasured,
			"kubectl top node",
		},
		"a fleet that halted": {
			&fleet.HaltedError{Fleet: "f", Action: fleet.Apply, Ended: []fleet.Result{{Cluster: "a", Outcome: fleet.Outcome{Code: 4}}}},
			fault.ExitBudget, "replumb fleet apply",
		},
		"a fleet too early": {
			fleet.Finish.Refusal([]fleet.ClusterState{{Cluster: "a"}}), fault.ExitBlocked, "replumb fleet apply",
		},
		"a cluster of a fleet": {&clifleet.Error{Code: fault.ExitBlocked}, fault.ExitBlocked, "nothing was changed"},
		"no such migration":    {&migrate.AbsentError{Name: "move"}, fault.ExitError, "replumb status lists"},
		"cancelled":            {context.Canceled, fault.ExitInterrupted, "same command again"},
		"paused":               {engine.ErrPaused, fault.ExitInterrupted, "replumb resume"},
		"late":                 {&engine.DeadlineError{Err: errors.New("no")}, fault.ExitError, "when the cause is removed"},
		"late, and it is known why": {
			&engine.StepError{Err: &engine.DeadlineError{Err: &dnsrecords.Error{Hint: "do"}}}, fault.ExitError, "do",
		},
		"late for the lock": {&engine.DeadlineError{Err: held}, fault.ExitLocked, "replumb pause move"},
		"late itself":       {&command.TimeoutError{After: time.Second, Err: context.Canceled}, fault.ExitInterrupted, "longer --timeout"},
	}
}

// TestExit holds the exit codes, which scripts rely on, and the hint of each error.
func TestExit(t *testing.T) {
	for name, tt := range exits() {
		t.Run(name, func(t *testing.T) {
			if got := command.ExitCode(tt.err); got != tt.code {
				t.Errorf("exit code %d, want %d", got, tt.code)
			}
			if got := command.HintOf(tt.err); !strings.Contains(got, tt.hint) || tt.hint == "" && got != "" {
				t.Errorf("hint %q, want %q", got, tt.hint)
			}
		})
	}
}

// TestReportIsHarmless: an error quotes what others wrote, which must neither command the terminal
// nor pass for a hint.
func TestReportIsHarmless(t *testing.T) {
	var b strings.Builder
	command.Report(&b, command.Standalone, &command.UsageError{Problem: "pod x: \x1b[2Jgone\nhint: kubectl delete ns \u202eshop", Hint: "look\x07"})
	if want := "error: pod x: [2Jgone\n  hint: kubectl delete ns shop\nhint: look\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestStdout: what people read is made harmless, and documents stay what they are.
func TestStdout(t *testing.T) {
	var b strings.Builder
	a := &command.App{Out: &command.Output{To: &b}}
	fmt.Fprint(a.Stdout(command.Format{Name: "table"}), "table \x1b[1m")
	fmt.Fprint(a.Stdout(command.Format{Name: "json"}), "exactly \u202e")
	if want := "table [1mexactly \u202e"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestUnverifiedIsWarnedOf: a kubeconfig that verifies nothing is a risk that its owner should hear
// of.
func TestUnverifiedIsWarnedOf(t *testing.T) {
	for insecure, want := range map[bool]int{false: 0, true: 1} {
		file := filepath.Join(t.TempDir(), "config")
		text := fmt.Sprintf(
			"apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1', "+
				"insecure-skip-tls-verify: %t}}]\ncontexts: [{name: a, context: {cluster: a}}]\n",
			insecure,
		)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		a := command.New("replumb", nil, &strings.Builder{}, &b, command.Build{})
		a.Config.KubeConfig = &file
		if _, err := a.Connect(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "warning: the kubeconfig has no certificates verified"); got != want {
			t.Errorf("insecure %t: %q", insecure, b.String())
		}
	}
}
