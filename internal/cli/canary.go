package cli

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

// version of a build by make; empty in one that someone made otherwise. The linker sets it.
var version string

// digest of the image of this release (sha256:…), which the linker sets where it is known; empty otherwise. With it pods run that image,
// whatever its tag leads to by then.
var digest string //nolint:gochecknoglobals // as version is

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// image is where pods find this version of replumb; empty if it was not released.
func image() string {
	if !release.MatchString(version) {
		return ""
	}
	if digest != "" {
		return "ghcr.io/replumb/replumb:" + version + "@" + digest
	}
	return "ghcr.io/replumb/replumb:" + version
}

// canary is what runs inside the pods that try a range of addresses out. People have no use for it.
func (a *app) canary() *cobra.Command {
	cmd := &cobra.Command{
		Use: "canary", Short: "Run inside a pod that tries a new address out", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.canaryAnswer(), a.canaryCall(), a.canaryAsk())
	return cmd
}

func (a *app) canaryAnswer() *cobra.Command {
	return &cobra.Command{
		Use: "answer ADDRESS...", Short: "Accept TCP connections until interrupted", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return testpod.Serve(cmd.Context(), args...) },
	}
}

func (a *app) canaryCall() *cobra.Command {
	var reach, refused []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "call", Short: "Connect to addresses that must answer, and to others that must not", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := testpod.Call(ctx, reach, refused); err != nil {
				return err
			}
			_, err := fmt.Fprintf(a.out, "%d answered, %d did not, as they should\n", len(reach), len(refused))
			return err
		},
	}
	cmd.Flags().StringSliceVar(&reach, "reach", nil, "addresses, as host:port, that must answer")
	cmd.Flags().StringSliceVar(&refused, "refused", nil, "addresses, as host:port, that must not answer")
	cmd.Flags().DurationVar(&timeout, "timeout", 45*time.Second, "how long to try")
	return cmd
}

// canaryAsk never fails for what it finds out: what is compared is what did not answer before with what does not now.
func (a *app) canaryAsk() *cobra.Command {
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
			_, err := fmt.Fprintln(a.out, answers)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "report", "", "file to write the answers to; none means stdout")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to try")
	return cmd
}
