package command

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestTimeout: a command that --timeout ends says so, as one that was interrupted; any other error
// is as it was.
func TestTimeout(t *testing.T) {
	waiting := func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("services: %w", ctx.Err())
	}
	for name, tt := range map[string]struct {
		run  func(context.Context) error
		code int
		late bool
	}{
		"a read":        {waiting, fault.ExitInterrupted, true},
		"a run":         {func(ctx context.Context) error { return errors.Join(engine.ErrInterrupted, waiting(ctx)) }, fault.ExitInterrupted, true},
		"what was lost": {func(ctx context.Context) error { return errors.Join(waiting(ctx), &lossguard.LossError{}) }, fault.ExitBudget, false},
		"another error": {func(context.Context) error { return errors.New("any") }, fault.ExitError, false},
		"none":          {func(context.Context) error { return nil }, fault.ExitDone, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Settings{timeout: time.Millisecond}
			root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
			root.AddCommand(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error { return tt.run(cmd.Context()) }})
			s.Govern(root)
			root.SetArgs([]string{"do"})
			err := root.ExecuteContext(t.Context())
			if got := ExitCode(err); got != tt.code {
				t.Errorf("exit code %d, want %d: %v", got, tt.code, err)
			}
			if late := errors.As(err, new(*TimeoutError)); late != tt.late {
				t.Errorf("late: %t, want %t: %v", late, tt.late, err)
			}
		})
	}
}
