package incluster

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

// TestPod runs inside the pods that try a range of addresses out.
func TestPod(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "canary", Short: "Run inside a pod that tries a new address out", Hidden: true, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(testPodAnswer(), testPodCall(a), testPodAsk(a))
	return cmd
}

func testPodAnswer() *cobra.Command {
	return &cobra.Command{
		Use: "answer ADDRESS...", Short: "Accept TCP connections until interrupted", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return testpod.Serve(cmd.Context(), args...) },
	}
}

func testPodCall(a *command.App) *cobra.Command {
	var reach, refused []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "call", Short: "Connect to addresses that must answer, and to others that must not", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := testpod.Call(ctx, reach, refused); err != nil {
				return err
			}
			_, err := fmt.Fprintf(a.Out, "%d answered, %d did not, as they should\n", len(reach), len(refused))
			return err
		},
	}
	cmd.Flags().StringSliceVar(&reach, "reach", nil, "addresses, as host:port, that must answer")
	cmd.Flags().StringSliceVar(&refused, "refused", nil, "addresses, as host:port, that must not answer")
	cmd.Flags().DurationVar(&timeout, "timeout", 45*time.Second, "how long to try")
	return cmd
}

func testPodAsk(a *command.App) *cobra.Command {
	var file string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "ask QUESTION...", Short: "Find out which addresses answer, and which names have an address", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			answers := testpod.Ask(ctx, args)
			if file != "" {
				return os.WriteFile(file, []byte(answers), 0o600)
			}
			_, err := fmt.Fprintln(a.Out, answers)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "report", "", "file to write the answers to; none means stdout")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to try")
	return cmd
}
