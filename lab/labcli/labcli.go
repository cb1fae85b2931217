// Package labcli is the command line of replumb-lab.
package labcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/lab/lab"
)

// Exit codes, the same as replumb's.
const (
	exitOK          = 0
	exitUsage       = 2
	exitInterrupted = 130
)

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is a command line that cannot be carried out.
type usageError struct{ error }

// insideError is the end of a command that was run inside the lab, not of one by which the lab does its work.
type insideError struct{ *exec.ExitError }

// Main runs the command line args and returns the exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := streams{in: in, out: out, err: errOut}
	root := newRoot(s)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	// A command run inside the lab says itself what is wrong; its exit code is ours.
	if inside := (insideError{}); errors.As(err, &inside) && inside.Exited() {
		return inside.ExitCode()
	}
	_, _ = fmt.Fprintln(errOut, "error:", err)
	if hint := fault.Advice(err); hint != "" {
		_, _ = fmt.Fprintln(errOut, "hint:", hint)
	}
	code, _ := fault.ExitCode(err)
	switch invalid := (*lab.InvalidError)(nil); {
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, &invalid), errors.As(err, &usageError{}):
		return exitUsage
	default:
		return code
	}
}

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "replumb-lab",
		Short: "Run a real multi-node Kubernetes cluster on this machine",
		Long: `replumb-lab runs a real Kubernetes cluster on one Linux machine: the stock etcd, API server, controller manager,
scheduler, containerd, kubelet, kube-proxy and CoreDNS, each node with a network of its own. It needs root, and no
container engine, registry or virtual machine. The components are built once, from their Go modules.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nhint: see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(
		newUp(s), newDown(s), newStatus(s), newKubeconfig(s), newLoad(s), newExec(s), newBuild(s), newDemo(s), newRestart(s), newNode(s),
		newNetwork(s), newManifests(s), newRegistry(s), newPush(s), newRehearse(s),
	)
	return root
}

// nameFlag adds the flag that says which lab a command is about.
func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", lab.Default().Name, "name of the lab")
}

// args makes a cobra argument check's refusal a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{fmt.Errorf("%w\nhint: see %s --help", err, cmd.CommandPath())}
		}
		return nil
	}
}
